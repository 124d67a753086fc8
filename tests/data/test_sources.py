"""Data without a file: digits, synthetic images, a user's readers; images with a border, statistics and checksums."""

import dataclasses

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.data import dataset, sources
from tests.helpers import tfds_files
from tests.helpers.settings import data_options

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
        ({'name': 'digits', 'normalization': 'imagenet'}, "normalization='imagenet'.*'digits' have 1"),
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
    with pytest.raises(UserError, match=r"image_size=24.*'mine' has images of \d+ x \d+"):
        data.load(data_options(name='mine', image_size=24))


def test_the_shape_of_a_known_set_with_another_reader_is_that_of_its_images(monkeypatch):
    larger = data.load(data_options(name='digits', image_size=16))
    monkeypatch.setitem(data.READERS, 'digits', lambda image_size: larger)
    assert data.outline(data_options(name='digits')) is None
    assert data.shape_only_dataset(data_options(name='digits')).outline[:2] == ((16, 16, 1), 10)
    assert data.outline(data_options(name='digits', fake=True))[:2] == ((8, 8, 1), 10)  # made up as the package has it


# --- what is warned of in images, wherever they come from


def split_of(images, labels):
    return {'train': (images[:-8], labels[:-8]), 'test': (images[-8:], labels[-8:])}


def from_folder(root, monkeypatch, splits):
    for split, (images, labels) in splits.items():
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            (root / split / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / split / str(label) / f'{number}.png')
    return tfds_files.options_of(root, name='folder', image_folder=str(root), image_size=8)


# --- names of classes

NAMES = ['1', '10', '2']  # as folders 1, 2 and 10 are numbered


def test_classes_have_the_names_that_their_source_has(tmp_path, monkeypatch):
    """Which do not count in the checksum; and a reader gives each one or none."""
    images, labels = tfds_files.pixels(24, (8, 8, 3)), np.arange(24) % 3
    of_folder = data.load(from_folder(tmp_path, monkeypatch, split_of(images, np.array(NAMES)[labels])))
    tfds_files.write_images(tmp_path, 'shapes', split_of(images, labels), tfds.features.ClassLabel(names=NAMES))
    of_tfds = data.load(tfds_files.options_of(tmp_path, name='shapes'))
    assert of_folder.class_names == of_tfds.class_names == of_tfds.outline.class_names == tuple(NAMES)
    named = dataset.make('shapes', of_tfds.arrays, 3, class_names=NAMES)
    assert named.class_names == tuple(NAMES)
    assert named.checksum == of_tfds.checksum == dataset.make('shapes', of_tfds.arrays, 3).checksum
    with pytest.raises(UserError, match=r"'shapes': class_names has 2 for 3 classes"):
        dataset.make('shapes', of_tfds.arrays, 3, class_names=NAMES[:2])
