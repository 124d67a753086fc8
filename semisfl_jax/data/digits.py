"""scikit-learn's handwritten digits: 1,797 grayscale images of 8 × 8, bundled with scikit-learn, no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image

from semisfl_jax.data import dataset
from semisfl_jax.data.decode import resize


def load(image_size: int = 0) -> dataset.Dataset:
    """1,437 training and 360 test images [n, 8, 8, 1], stratified, the same split in every run.

    The levels 0..16 are scaled to 0..255 and rounded.

    Args:
      image_size: side to resize to, 0 to keep 8.
    """
    levels, labels = _read()
    images = np.rint(levels * (255 / 16)).astype(np.uint8)
    if image_size:
        images = np.stack([np.asarray(resize(Image.fromarray(image), image_size)) for image in images])
    train, test = dataset.holdout(labels)
    arrays = {
        'train_images': images[train][..., None],
        'train_labels': labels[train],
        'test_images': images[test][..., None],
        'test_labels': labels[test],
    }
    return dataset.make('digits', arrays, num_classes=10)


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Levels [n, 8, 8] float64 in 0..16 and labels [n] int32."""
    spec = importlib.util.find_spec('sklearn')
    for package in (spec and spec.submodule_search_locations) or ():
        file = Path(package, 'datasets', 'data', 'digits.csv.gz')
        if file.exists():  # importing scikit-learn takes a second, a tenth of the shortest run
            table = np.loadtxt(file, delimiter=',')
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int32)
    from sklearn.datasets import load_digits

    raw = load_digits()
    return raw.images, raw.target.astype(np.int32)
