"""Real data sets of tensorflow-datasets, where prepared."""

import os
from pathlib import Path

import numpy as np
import pytest

from configs.default import get_config
from semisfl_jax import data
from tests.marks import slow_but


def prepared(name):
    directory = os.environ.get('TFDS_DATA_DIR')
    return bool(directory) and (Path(directory) / name).is_dir()


@pytest.fixture(scope='session')
def real_cache(tmp_path_factory):
    return tmp_path_factory.mktemp('real')


@pytest.mark.parametrize(
    ('name', 'train', 'image', 'mean', 'std'),
    slow_but(
        [
            ('mnist', 60000, (28, 28, 1), 0.1307, 0.3081),
            ('fashion_mnist', 60000, (28, 28, 1), 0.2860, 0.3530),
            ('cifar10', 50000, (32, 32, 3), None, None),
        ]
    ),
)
def test_real_sets_are_what_is_known_of_them(name, train, image, mean, std, real_cache):
    if not prepared(name):
        pytest.skip(f'{name} is not prepared in $TFDS_DATA_DIR')
    options = get_config().data
    options.update(name=name, data_dir='', cache_dir=str(real_cache))
    real = data.load(options)
    assert real.train_images.shape == (train, *image)
    assert real.test_images.shape == (10000, *image)
    assert np.bincount(real.test_labels).sum() == 10000
    if mean is not None:
        values = real.train_images.astype(np.float32) / 255
        assert values.mean(dtype=np.float64) == pytest.approx(mean, abs=1e-4)
        assert values.std(dtype=np.float64) == pytest.approx(std, abs=1e-4)
    if name == 'mnist':
        assert np.bincount(real.train_labels).tolist() == [
            5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949
        ]  # fmt: skip
    else:
        assert np.bincount(real.train_labels).tolist() == [train // 10] * 10
    assert data.load(options).checksum == real.checksum
