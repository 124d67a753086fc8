"""Decoding of images, and the cache of what was decoded."""

import io
import os
import subprocess

import numpy as np
import pytest
from PIL import Image

from semisfl_jax.base.errors import UserError
from semisfl_jax.data import decode
from semisfl_jax.data.decode import decode_chunk
from tests.helpers.tfds_files import encoded


@pytest.mark.parametrize('channels', [1, 3, 4])
@pytest.mark.parametrize('size', [0, 5])
def test_decoding_restores_png_pixels(channels, size):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, channels), dtype=np.uint8)
    expected = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    if size:
        expected = expected.resize((size, size), Image.Resampling.BILINEAR)
    result = decode.decode(encoded(pixels), size, channels)
    assert result.shape == ((size, size, channels) if size else (9, 7, channels))
    np.testing.assert_array_equal(result, np.asarray(expected).reshape(result.shape))


def test_of_sixteen_bits_the_upper_eight_are_read():
    pixels = np.array([[0, 255, 256], [32768, 65279, 65535]], np.uint16)
    np.testing.assert_array_equal(decode.decode(encoded(pixels), 0, 1)[..., 0], [[0, 0, 1], [128, 254, 255]])


# Of rows 1 2 and 3 4: how they are stored if the camera was held in each of eight ways, as the standard of EXIF has it
STORED = {
    1: [[1, 2], [3, 4]],
    2: [[2, 1], [4, 3]],
    3: [[4, 3], [2, 1]],
    4: [[3, 4], [1, 2]],
    5: [[1, 3], [2, 4]],
    6: [[2, 4], [1, 3]],
    7: [[4, 2], [3, 1]],
    8: [[3, 1], [4, 2]],
}


@pytest.mark.parametrize('orientation', STORED)
def test_images_are_upright(orientation):
    stored, exif = Image.fromarray(np.array(STORED[orientation], np.uint8)), Image.Exif()
    exif[0x0112] = orientation
    stored.save(file := io.BytesIO(), 'PNG', exif=exif)
    assert decode.decode(file.getvalue(), 0, 1)[..., 0].tolist() == [[1, 2], [3, 4]]


def test_damaged_exif_data_do_not_matter():
    pixels = np.full((8, 8, 3), 7, np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), 'PNG', exif=b'Exif\0\0nothing of the kind')
    np.testing.assert_array_equal(decode.decode(file.getvalue(), 0, 3), pixels)


@pytest.mark.parametrize('mode', ['RGBA', 'LA', 'P', 'RGB', 'L'])
def test_what_is_transparent_is_white(mode):
    """Whatever color is stored there; in the last three modes, an entry or a color of the image is transparent."""
    hidden, shown = 90, 200
    pixels = np.array([[hidden, shown]], np.uint8)
    image = Image.fromarray(pixels)
    if mode in ('RGBA', 'LA'):
        image = image.convert(mode)
        image.putalpha(Image.fromarray(np.where(pixels == hidden, 0, 255).astype(np.uint8)))
        extra = {}
    elif mode == 'P':
        image = Image.fromarray((pixels == shown).astype(np.uint8), 'L').convert('P')
        image.putpalette([hidden] * 3 + [shown] * 3)
        extra = {'transparency': 0}
    else:
        image, extra = image.convert(mode), {'transparency': hidden if mode == 'L' else (hidden,) * 3}
    image.save(file := io.BytesIO(), 'PNG', **extra)
    for channels in (1, 3):
        expected = np.broadcast_to(np.array([255, shown])[None, :, None], (1, 2, channels))
        np.testing.assert_array_equal(decode.decode(file.getvalue(), 0, channels), expected)


@pytest.mark.parametrize('kind', ['BMP', 'GIF', 'PNG', 'PPM', 'TGA', 'TIFF', 'WEBP', 'JPEG2000', 'ICO'])
def test_what_pillow_reads_is_read(kind):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 1), np.uint8).repeat(3, axis=2)
    options = {'lossless': True} if kind == 'WEBP' else {'sizes': [(16, 16)]} if kind == 'ICO' else {}
    Image.fromarray(pixels).save(file := io.BytesIO(), kind, **options)
    np.testing.assert_array_equal(decode.decode(file.getvalue(), 0, 3), pixels)


def test_no_file_starts_another_program(monkeypatch):
    """Pillow would give EPS to Ghostscript, by what a file holds, not by its name."""
    for module in (subprocess, os):
        monkeypatch.setattr(module, 'system' if module is os else 'Popen', None)
    with pytest.raises(UserError, match='cannot identify'):
        decode.decode(b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n', 0, 3)


def test_levels_that_are_no_whole_numbers_are_refused():
    """Pillow would make 0 of all below 1."""
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(file := io.BytesIO(), 'TIFF')
    with pytest.raises(UserError, match='not whole numbers'):
        decode.decode(file.getvalue(), 0, 3)


def test_an_image_that_swells_ends_in_one_line(tmp_path, monkeypatch):
    Image.new('L', (64, 64)).save(tmp_path / 'a.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    with pytest.raises(UserError, match=r'a\.png'):
        decode_chunk([tmp_path / 'a.png'], (8, 8, 1), 8)
