"""Images as files hold them."""

import io

from PIL import Image


def encoded(pixels, kind='PNG'):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()
