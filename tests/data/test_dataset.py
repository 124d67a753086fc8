"""Arrays of a data set: what is wrong in them, their statistics and checksums."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.data import dataset
from semisfl_jax.data.dataset import holdout
from tests.helpers import tfds_files
from tests.helpers.partitions import class_counts
from tests.helpers.settings import data_options


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


def split_of(images, labels):
    return {'train': (images[:-8], labels[:-8]), 'test': (images[-8:], labels[-8:])}


def from_reader(root, monkeypatch, splits):
    arrays = {f'{split}_images': images for split, (images, _) in splits.items()}
    arrays |= {f'{split}_labels': labels for split, (_, labels) in splits.items()}
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: dataset.make('mine', arrays, 2))
    return data_options(name='mine')


def from_folder(root, monkeypatch, splits):
    for split, (images, labels) in splits.items():
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            (root / split / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / split / str(label) / f'{number}.png')
    return tfds_files.options_of(root, name='folder', image_folder=str(root), image_size=8)


def from_tfds(root, monkeypatch, splits):
    tfds_files.write_images(root, 'shapes', splits, tfds_files.classes(2))
    return tfds_files.options_of(root, name='shapes')


SOURCES = pytest.mark.parametrize('source', [from_reader, from_folder, from_tfds])


@SOURCES
@pytest.mark.parametrize(('levels', 'dark'), [((128, 128), ''), ((16, 16), 'train'), ((200, 16), 'test')])
def test_images_that_were_not_scaled_are_named(tmp_path, monkeypatch, caplog, source, levels, dark):
    """As scikit-learn's digits of 0 to 16: one line with the largest value, of the images that have it."""
    images = np.minimum(tfds_files.pixels(24, (8, 8, 3)), np.repeat(levels, [16, 8])[:, None, None, None])
    data.load(source(tmp_path, monkeypatch, split_of(images.astype(np.uint8), np.arange(24) % 2)))
    expected = [f'largest value of {dark}_images is 16,'] if dark else []
    assert [record.getMessage().partition('the ')[2][: len(expected[0])] for record in caplog.records] == expected


@SOURCES
def test_test_images_that_are_training_images_are_counted(tmp_path, monkeypatch, caplog, source):
    """Three copies; images that share but their middle, or all but one byte, are others."""
    images = tfds_files.pixels(24, (8, 8, 3))
    images[16:19], images[19], images[20, 3:] = images[:3], images[5], images[6, 3:]
    images[19, 0, 0, 0] ^= 1
    data.load(source(tmp_path, monkeypatch, split_of(images, np.arange(24) % 2)))
    (record,) = caplog.records
    assert '3 of its 8 test images are also training images' in record.getMessage()


@pytest.mark.parametrize('options', [{'name': 'digits'}, {'name': 'mnist', 'fake': True}])
def test_nothing_is_said_of_images_of_the_package(options, caplog):
    data.load(data_options(**options))
    assert not caplog.records


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


def test_holdout_is_a_stratified_fifth():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [100, 50, 26]))
    train, test = holdout(labels)
    assert sorted([*train, *test]) == list(range(176))
    # 36 = ceil(176 / 5), in shares 20.45, 10.23, 5.32: one more goes to the largest remainder.
    assert class_counts(labels, test, 3).tolist() == [21, 10, 5]
    np.testing.assert_array_equal(test, holdout(labels)[1])
