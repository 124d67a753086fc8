"""Data without a file: digits, synthetic images, a user's readers; images with a border, statistics and checksums."""

import dataclasses
import hashlib

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import dataset, sources
from semisfl_jax.data.catalog import KNOWN
from tests.settings import data_options


def test_digits_are_scikit_learns():
    raw, digits = load_digits(), data.load(data_options(name='digits'))
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
    assert digits.mean == pytest.approx(((digits.train_images / 255).mean(),))
    assert digits.std == pytest.approx(((digits.train_images / 255).std(),))


# --- synthetic images


@pytest.mark.parametrize('name', KNOWN)
def test_made_up_sets_have_the_true_shapes(name):
    """Images, classes and maps as the outline says before any is made; maps have numbers of their task."""
    side = 16 if KNOWN[name].original else 0
    options = data_options(name=name, fake=True, fake_size=200, image_size=side)
    made, outline = data.load(options), data.outline(options)
    assert made.fake
    assert made.outline == outline
    assert data.shape(options) == (outline.image, outline.classes)
    assert len(made.train_images) == 200
    assert len(made.test_images) == max(made.num_classes, 40)
    assert made.train_images.dtype == made.test_images.dtype == np.uint8
    labeled = 100 if name == 'stl10' else 200
    np.testing.assert_array_equal(made.train_labels >= 0, np.arange(200) < labeled)
    assert name == 'stl10' or np.ptp(np.bincount(made.train_labels)) <= 1
    assert len(made.mean) == len(made.std) == outline.image[2]
    for task, targets in made.targets.items():
        most = {'saliency': 1, 'edges': 1, 'depth': 254, 'keypoints': 2}.get(task, targets.outputs - 1)
        assert 1 <= targets.train[targets.train != 255].max() <= most
    if made.test_sizes is not None:
        height, width = KNOWN[name].original
        assert made.test_sizes[:2].tolist() == [[height * 3 // 4, width], [height, width * 3 // 4]]
    if name in ('digit_scenes', 'mnist_scenes'):
        np.testing.assert_array_equal(made.targets['semseg'].train > 0, made.targets['saliency'].train == 1)


def test_fake_images_are_deterministic_and_learnable():
    options = data_options(name='cifar10', fake=True, fake_size=600)
    first, second = data.load(options), data.load(options)
    assert first.checksum == second.checksum
    assert len(np.unique(first.train_images.reshape(600, -1), axis=0)) == 600
    means = np.stack([first.train_images[first.train_labels == k].mean(axis=0) for k in range(10)])
    distance = ((first.test_images[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    assert (distance.argmin(axis=1) == first.test_labels).mean() > 0.95


# --- a border


@pytest.mark.parametrize(('height', 'width', 'side', 'top', 'left'), [(3, 4, 6, 1, 1), (5, 2, 5, 0, 1)])
def test_the_image_lies_in_the_center(height, width, side, top, left):
    """A row or column that is left over comes at the bottom or on the right: 3 + 3 of 6 rows are 1 + 3 + 2."""
    images = 1 + np.arange(2 * height * width * 3, dtype=np.uint8).reshape(2, height, width, 3) % 200
    expected = np.zeros((2, side, side, 3), np.uint8)
    for i in range(height):
        for j in range(width):
            expected[:, top + i, left + j] = images[:, i, j]
    np.testing.assert_array_equal(sources.add_border(images, side), expected)


def test_digits_are_resized_then_padded():
    plain, padded, both = (
        data.load(data_options(name='digits', image_size=size, pad_to=side))
        for size, side in ((0, 8), (0, 12), (10, 13))
    )
    assert padded.train_images.shape == (1437, 12, 12, 1)
    for before, after in ((plain.train_images, padded.train_images), (plain.test_images, padded.test_images)):
        np.testing.assert_array_equal(after[:, 2:10, 2:10], before)
        assert after.astype(int).sum() == before.astype(int).sum()  # zeros elsewhere
    assert (padded.mean, padded.std) == (plain.mean, plain.std)  # of the images without the border
    names = 'train_images', 'train_labels', 'test_images', 'test_labels'
    for loaded in (plain, padded):
        assert loaded.checksum == dataset.checksum('digits', {name: getattr(loaded, name) for name in names})
    assert plain.checksum == data.load(data_options(name='digits')).checksum
    expected = Image.fromarray(plain.test_images[5, ..., 0]).resize((10, 10), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(both.test_images[5, ..., 0], np.pad(np.asarray(expected), (1, 2)))


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'name': 'digits', 'pad_to': 7}, 'pad_to=7 .*8x8'),
        ({'name': 'pascal_context', 'fake': True, 'fake_size': 30, 'image_size': 8, 'pad_to': 16}, 'pad_to=16'),
        ({'name': 'flowers', 'fake': True}, "'flowers'"),
        ({'name': 'MNIST'}, "'MNIST' .*write 'mnist'"),
        ({'name': 'mnist', 'fake_size': 100}, 'fake_size'),
        ({'name': 'digits', 'image_folder': '/x'}, "image_folder .*'digits'"),
        ({'name': 'digits', 'class_list': 'x.txt'}, "class_list .*'digits'"),
        ({'name': 'image100'}, 'class_list'),
        ({'name': 'pascal_context'}, 'image_folder'),
    ],
)
def test_options_that_do_not_fit_are_named(changes, named):
    with pytest.raises(UserError, match=named):
        data.load(data_options(**changes))


# --- a user's readers


def arrays_with_depth():
    """Of a data set of 6 and 3 images of 3 classes."""
    images, labels = np.zeros((9, 8, 8, 1), np.uint8), np.arange(9) % 3
    arrays = {'train_images': images[:6], 'train_labels': labels[:6]}
    arrays |= {'test_images': images[6:], 'test_labels': labels[6:]}
    return arrays | {'train_target_depth': images[:6, ..., 0], 'test_target_depth': images[6:, ..., 0]}


@pytest.mark.parametrize(
    ('key', 'value', 'found'),
    [
        ('train_images', np.zeros((6, 8, 8, 1)), r'float64 \[6, 8, 8, 1\]'),
        ('train_images', np.zeros((0, 8, 8, 1), np.uint8), r'uint8 \[0, 8, 8, 1\]'),
        ('test_images', None, 'None'),
        ('test_images', np.zeros((3, 9, 9, 1), np.uint8), r'uint8 \[3, 9, 9, 1\]'),
        ('train_labels', np.zeros(5, np.int32), r'int32 \[5\]'),
        ('train_labels', np.arange(6), '0 to 5'),
        ('test_target_depth', np.zeros((3, 8, 9), np.uint8), r'uint8 \[3, 8, 9\]'),
    ],
)
def test_wrong_arrays_are_named(key, value, found):
    arrays = arrays_with_depth()
    assert dataset.make('mine', arrays, num_classes=3, outputs={'depth': 1}).targets['depth'].outputs == 1
    with pytest.raises(UserError, match=f"'mine'.*{key} .*{found}"):
        dataset.make('mine', arrays | {key: value}, 3, outputs={'depth': 1})
    del arrays[key]
    with pytest.raises(UserError, match=f"'mine'.*{key}"):
        dataset.make('mine', arrays, 3, outputs={'depth': 1})


def test_what_a_registered_reader_returns_is_checked(monkeypatch):
    made = dataset.make('mine', arrays_with_depth(), num_classes=3)
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: made)
    assert data.load(data_options(name='mine')) is made
    wrong = [dataclasses.replace(made, **change) for change in ({'test_labels': np.full(3, -1)}, {'num_classes': '3'})]
    for given, named in zip([*wrong, None], ['test_labels', 'num_classes', 'None'], strict=True):
        monkeypatch.setitem(data.READERS, 'mine', lambda image_size, given=given: given)
        with pytest.raises(UserError, match=f"'mine'.* {named}"):
            data.load(data_options(name='mine'))
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: made)
    with pytest.raises(UserError, match=r"image_size=24.*'mine' returns images of \d+ x \d+"):
        data.load(data_options(name='mine', image_size=24))


def test_the_shape_of_a_known_set_with_another_reader_is_that_of_its_images(monkeypatch):
    larger = data.load(data_options(name='digits', image_size=16))
    monkeypatch.setitem(data.READERS, 'digits', lambda image_size: larger)
    assert data.shape(data_options(name='digits')) == ((16, 16, 1), 10)
    assert data.shape(data_options(name='digits', fake=True)) == ((8, 8, 1), 10)  # made up as the package has it


# --- statistics and checksum


def test_channel_statistics_equal_numpys():
    images = np.random.default_rng(0).integers(0, 256, (5000, 4, 3, 2), dtype=np.uint8)
    images[..., 1] = 7
    mean, std = dataset.channel_statistics(images)
    assert mean == pytest.approx(tuple((images / 255).mean(axis=(0, 1, 2))), abs=1e-12)
    assert std == pytest.approx(((images[..., 0] / 255).std(), 1.0), abs=1e-12)


def test_the_checksum_is_of_name_types_shapes_and_contents():
    """Of all arrays, in the order of their names."""
    image = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    expected = hashlib.sha256(b'x|a |u1 (2, 3, 4)|' + image.tobytes() + b'|b <i4 (2,)|' + bytes(8)).hexdigest()
    assert dataset.checksum('x', {'b': np.zeros(2, np.int32), 'a': image}) == expected
