"""The truth of pictures as an array: for each, COCO's annotations in JSON, as bytes, padded with zeros.

An annotation has the keys of COCO that its task is scored with: category_id from 1 on without gaps, iscrowd, area,
bbox, segmentation, keypoints, num_keypoints. If it has no segmentation, the pixels of the k-th one are k in a map of
segments.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np


def encode(annotations: Sequence[dict[str, Any]]) -> bytes:
    """Writes the annotations of a picture."""
    return json.dumps(annotations, separators=(',', ':')).encode()


def padded(texts: Sequence[bytes], length: int = 0) -> np.ndarray:
    """Stacks the texts of pictures, [n, L] uint8; L is `length`, or else as long as the longest."""
    width = length or max(map(len, texts))
    return np.frombuffer(b''.join(text.ljust(width, b'\0') for text in texts), np.uint8).reshape(len(texts), width)


def decode(text: np.ndarray) -> list[dict[str, Any]]:
    """Reads the annotations of a picture, [L] uint8."""
    return json.loads(text.tobytes().rstrip(b'\0') or b'[]')
