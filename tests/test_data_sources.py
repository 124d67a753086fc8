"""Digits, synthetic images, statistics and checksums: data without a file."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import dataset
from tests.settings import data_options

# --- digits


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    raw = load_digits()
    digits = data.load(data_options(name='digits'))
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_labels.dtype == np.int32
    assert (digits.num_classes, digits.fake) == (10, False)
    images = np.concatenate([digits.train_images, digits.test_images])[..., 0]
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    assert images.max() == 255
    # Level v of 0..16 became round(v * 255 / 16); dividing back restores it. Every image is there once.
    restored = np.rint(images / 255 * 16).reshape(-1, 64)
    mine = sorted((*pixels, label) for pixels, label in zip(restored.tolist(), labels.tolist(), strict=True))
    theirs = sorted((*pixels, label) for pixels, label in zip(raw.data.tolist(), raw.target.tolist(), strict=True))
    assert mine == theirs
    share = np.bincount(raw.target) * 360 / 1797
    assert (np.abs(np.bincount(digits.test_labels) - share) < 1).all()
    scaled = digits.train_images / 255
    assert digits.mean == pytest.approx((scaled.mean(),))
    assert digits.std == pytest.approx((scaled.std(),))


def test_digits_are_the_same_every_time_and_resize():
    first, second = (data.load(data_options(name='digits')) for _ in range(2))
    assert first.checksum == second.checksum
    assert len(first.checksum) == 64
    large = data.load(data_options(name='digits', image_size=28))
    assert large.train_images.shape == (1437, 28, 28, 1)
    assert large.checksum != first.checksum
    expected = Image.fromarray(first.train_images[3, ..., 0]).resize((28, 28), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(large.train_images[3, ..., 0], np.asarray(expected))


# --- synthetic images


@pytest.mark.parametrize(
    ('name', 'train', 'test', 'image', 'classes'),
    [
        ('digits', 1437, 360, (8, 8, 1), 10),
        ('mnist', 60000, 10000, (28, 28, 1), 10),
        ('fashion_mnist', 60000, 10000, (28, 28, 1), 10),
        ('cifar10', 50000, 10000, (32, 32, 3), 10),
        ('cifar100', 50000, 10000, (32, 32, 3), 100),
        ('svhn', 73257, 26032, (32, 32, 3), 10),
    ],
)
def test_fake_sets_have_the_true_shapes(name, train, test, image, classes):
    fake = data.load(data_options(name=name, fake=True))
    assert fake.fake
    assert fake.train_images.shape == (train, *image)
    assert fake.test_images.shape == (test, *image)
    assert fake.train_images.dtype == fake.test_images.dtype == np.uint8
    assert fake.num_classes == classes
    assert set(fake.train_labels.tolist()) == set(fake.test_labels.tolist()) == set(range(classes))
    assert np.ptp(np.bincount(fake.train_labels)) <= 1
    assert len(fake.mean) == len(fake.std) == image[2]


@pytest.mark.parametrize(('name', 'image', 'size'), [('stl10', (96, 96, 3), 700), ('image100', (144, 144, 3), 300)])
def test_large_fake_sets_can_be_small(name, image, size):
    fake = data.load(data_options(name=name, fake=True, fake_size=size))
    assert fake.train_images.shape == (size, *image)
    assert len(fake.test_images) == max(fake.num_classes, size // 5)
    labeled = {'stl10': 350, 'image100': 300}[name]
    assert (fake.train_labels[:labeled] >= 0).all()
    assert (fake.train_labels[labeled:] == -1).all()
    np.testing.assert_array_equal(np.flatnonzero(fake.train_labels >= 0), np.arange(labeled))


def test_fake_images_are_deterministic_and_learnable():
    options = data_options(name='cifar10', fake=True, fake_size=600)
    first, second = data.load(options), data.load(options)
    assert first.checksum == second.checksum
    assert (first.train_images != second.train_images).sum() == 0
    assert len(np.unique(first.train_images.reshape(600, -1), axis=0)) == 600
    means = np.stack([first.train_images[first.train_labels == k].mean(axis=0) for k in range(10)])
    distance = ((first.test_images[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    assert (distance.argmin(axis=1) == first.test_labels).mean() > 0.95


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'name': 'flowers', 'fake': True}, "no synthetic images for data set 'flowers'"),
        ({'name': 'mnist', 'fake_size': 100}, 'fake_size is for synthetic images'),
        ({'name': 'digits', 'image_folder': '/x'}, "image_folder belongs to data set 'folder' or 'image100' or "),
        ({'name': 'digits', 'class_list': 'x.txt'}, "class_list belongs to data set 'image100'"),
        ({'name': 'image100'}, 'needs --config.data.class_list'),
    ],
)
def test_wrong_options_are_one_clear_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        data.load(data_options(**changes))
    assert '\n' not in str(caught.value)


# --- statistics and checksum


def test_channel_statistics_equal_numpys():
    images = np.random.default_rng(0).integers(0, 256, (5000, 4, 3, 2), dtype=np.uint8)
    images[..., 1] = 7
    mean, std = dataset.channel_statistics(images)
    assert mean == pytest.approx(tuple((images / 255).mean(axis=(0, 1, 2))), abs=1e-12)
    assert std == pytest.approx(((images[..., 0] / 255).std(), 1.0), abs=1e-12)


def test_the_checksum_sees_name_shape_type_and_content():
    image = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    base = {'a': image, 'b': np.zeros(2, np.int32)}
    others = [
        ('x', base | {'a': image[::-1]}),
        ('y', base),
        ('x', base | {'a': image.reshape(2, 4, 3)}),
        ('x', base | {'b': np.zeros(1, np.int64)}),
        ('x', {'c': image, 'b': base['b']}),
    ]
    digests = [dataset.checksum(*pair) for pair in [('x', base), *others]]
    assert len(set(digests)) == 6
    assert digests[0] == dataset.checksum('x', {k: np.array(v) for k, v in reversed(base.items())})
    expected = hashlib.sha256(b'x|a |u1 (2, 3, 4)|' + image.tobytes() + b'|b <i4 (2,)|' + bytes(8)).hexdigest()
    assert digests[0] == expected
