"""What tests of detectors share: boxes, a value between elements, torchvision."""

import numpy as np
import pytest


def some_boxes(count, seed=0, side=64):
    rng = np.random.default_rng(seed)
    low, size = rng.uniform(0, 0.7 * side, (count, 2)), rng.uniform(2, 0.5 * side, (count, 2))
    return np.concatenate([low, low + size], axis=1).astype(np.float32)


def whole_frames(masks):
    """Frames of masks [..., G, H, W] that cover the image."""
    height, width = masks.shape[-2:]
    return np.broadcast_to(np.array([0, 0, width, height], np.float32), (*masks.shape[:-2], 4))


def bilinear(values, y, x):
    """A value between the elements of a map, as RoIAlign defines it, in plain Python."""
    h, w = values.shape[:2]
    if not (-1 <= y <= h and -1 <= x <= w):
        return 0 * values[0, 0]
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    low_y, low_x = int(y), int(x)
    high_y, high_x = min(low_y + 1, h - 1), min(low_x + 1, w - 1)
    top = values[low_y, low_x] * (1 - x + low_x) + values[low_y, high_x] * (x - low_x)
    bottom = values[high_y, low_x] * (1 - x + low_x) + values[high_y, high_x] * (x - low_x)
    return top * (1 - y + low_y) + bottom * (y - low_y)


def torchvision():
    """Its module of detectors, or the test is skipped."""
    pytest.importorskip('torch')
    pytest.importorskip('torchvision.ops', exc_type=ImportError)
    from torchvision.models import detection

    return detection


def as_torch(x):
    import torch

    return torch.tensor(np.asarray(x))
