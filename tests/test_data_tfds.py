"""Data sets of tensorflow-datasets, read without TensorFlow: small synthetic ones."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from configs.default import get_config
from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from tests.tfds_files import classes, options_of, pixels, tfds, write


def test_svhn_is_read_as_it_was_written(tmp_path):
    train, test = pixels(50, (32, 32, 3)), pixels(21, (32, 32, 3), 1)
    splits = {'train': (train, np.arange(50) % 10), 'test': (test, np.arange(21) % 10)}
    splits['extra'] = (pixels(30, (32, 32, 3), 2), np.arange(30) % 10)
    write(tmp_path, 'svhn_cropped', '3.1.0', splits, (32, 32, 3), classes(10))
    svhn = data.load(options_of(tmp_path, name='svhn'))
    assert svhn.name == 'svhn_cropped'
    assert svhn.num_classes == 10
    assert svhn.train_images.dtype == np.uint8
    assert svhn.train_labels.dtype == np.int32
    np.testing.assert_array_equal(svhn.train_images, train)  # the split 'extra' is left alone
    np.testing.assert_array_equal(svhn.train_labels, np.arange(50) % 10)
    np.testing.assert_array_equal(svhn.test_images, test)
    np.testing.assert_array_equal(svhn.test_labels, np.arange(21) % 10)
    assert svhn.mean == svhn.std == (0.5, 0.5, 0.5)
    assert svhn.checksum == data.load(options_of(tmp_path, name='svhn_cropped')).checksum


def test_stl10_appends_its_unlabeled_split(tmp_path):
    train, test, rest = pixels(20, (96, 96, 3)), pixels(9, (96, 96, 3), 1), pixels(30, (96, 96, 3), 2)
    splits = {
        'test': (test, np.arange(9)),
        'train': (train, np.arange(20) % 10),
        'unlabelled': (rest, np.full(30, -1)),
    }
    write(tmp_path, 'stl10', '1.0.0', splits, (96, 96, 3), classes(10))
    stl = data.load(options_of(tmp_path, name='stl10'))
    np.testing.assert_array_equal(stl.train_images, np.concatenate([train, rest]))
    np.testing.assert_array_equal(stl.train_labels, [*(np.arange(20) % 10), *[-1] * 30])
    np.testing.assert_array_equal(np.flatnonzero(stl.train_labels >= 0), np.arange(20))
    np.testing.assert_array_equal(stl.test_images, test)
    assert stl.mean == (0.4408, 0.4279, 0.3867)
    config = get_config()
    config.data.num_labeled = 20
    partition = data.make_partition(stl, config)
    assert partition.server_index.tolist() == list(range(20))
    assert [rows.tolist() for rows in partition.client_index] != [[row] for row in range(20, 50)]  # shuffled
    assert sorted(np.concatenate(partition.client_index).tolist()) == list(range(20, 50))


def test_a_set_that_only_its_files_know_is_read_by_name(tmp_path):
    train, test = pixels(25, (10, 12, 1)), pixels(7, (10, 12, 1), 1)
    splits = {'train': (train, np.arange(25) % 4), 'validation': (test, np.arange(7) % 4)}
    extra = {'id': (tfds.features.Text(), 'name of a file')}
    write(tmp_path, 'my_shapes', '2.0.0', splits, (10, 12, 1), classes(4), extra)
    mine = data.load(options_of(tmp_path, name='my_shapes'))
    np.testing.assert_array_equal(mine.train_images, train)
    np.testing.assert_array_equal(mine.test_images, test)  # 'validation', for want of a test split
    assert mine.num_classes == 4
    assert mine.mean == pytest.approx(((train / 255).mean(),))
    assert mine.std == pytest.approx(((train / 255).std(),))
    resized = data.load(options_of(tmp_path, name='my_shapes', image_size=6))
    assert resized.train_images.shape == (25, 6, 6, 1)


def test_a_set_without_test_labels_is_tested_on_validation(tmp_path):
    shape = (6, 6, 3)
    splits = {
        'train': (pixels(12, shape), np.arange(12) % 3),
        'test': (pixels(8, shape, 1), np.full(8, -1)),
        'validation': (pixels(5, shape, 2), np.arange(5) % 3),
    }
    write(tmp_path, 'hidden_test', '1.0.0', splits, shape, classes(3))
    np.testing.assert_array_equal(data.load(options_of(tmp_path, name='hidden_test')).test_images, pixels(5, shape, 2))


def test_a_set_of_one_split_keeps_a_fifth_for_testing(tmp_path):
    images, labels = pixels(40, (5, 5, 3)), np.arange(40) % 4
    write(tmp_path, 'one_split', '1.0.0', {'train': (images, labels)}, (5, 5, 3), classes(4))
    held = data.load(options_of(tmp_path, name='one_split'))
    assert np.bincount(held.test_labels).tolist() == [2] * 4
    assert np.bincount(held.train_labels).tolist() == [8] * 4
    both = np.concatenate([held.train_images, held.test_images]).reshape(40, -1)
    both_labels = np.concatenate([held.train_labels, held.test_labels])
    mine, theirs = np.lexsort(both.T), np.lexsort(images.reshape(40, -1).T)
    np.testing.assert_array_equal(both[mine], images.reshape(40, -1)[theirs])
    np.testing.assert_array_equal(both_labels[mine], labels[theirs])


def test_unequal_images_need_a_size(tmp_path):
    images = [pixels(1, (5 + i % 2, 7, 3), i)[0] for i in range(8)]
    splits = {'train': (images, np.arange(8) % 2), 'test': (images, np.arange(8) % 2)}
    write(tmp_path, 'unequal', '1.0.0', splits, (None, None, 3), classes(2))
    with pytest.raises(UserError, match=r'unequal size.*--config.data.image_size'):
        data.load(options_of(tmp_path, name='unequal'))
    loaded = data.load(options_of(tmp_path, name='unequal', image_size=6))
    expected = [Image.fromarray(image).resize((6, 6), Image.Resampling.BILINEAR) for image in images]
    np.testing.assert_array_equal(loaded.train_images, np.stack([np.asarray(image) for image in expected]))


def test_equal_images_of_undeclared_size_need_none(tmp_path):
    images = pixels(8, (5, 7, 3))
    splits = {'train': (images, np.arange(8) % 2), 'test': (images, np.arange(8) % 2)}
    write(tmp_path, 'undeclared', '1.0.0', splits, (None, None, 3), classes(2))
    np.testing.assert_array_equal(data.load(options_of(tmp_path, name='undeclared')).test_images, images)


def test_image100_comes_out_of_imagenet2012(tmp_path):
    names = ['n01440764', 'n01443537', 'n01484850', 'n01491361', 'n01494475', 'n01496331']  # ImageNet's first
    shades = np.arange(30) % 6
    images = [np.full((20 + i, 30, 3), 40 * k, np.uint8) for i, k in enumerate(shades)]
    splits = {'train': (images, shades), 'validation': (images[:12], shades[:12])}
    label = tfds.features.ClassLabel(names=names)
    write(tmp_path, 'imagenet2012', '5.1.0', splits, (None, None, 3), label)
    (tmp_path / 'classes.txt').write_text(f'{names[4]}\n{names[1]}\n')
    options = options_of(tmp_path, name='image100', class_list=str(tmp_path / 'classes.txt'))
    loaded = data.load(options)
    assert loaded.name == 'image100'
    assert loaded.num_classes == 2
    assert loaded.train_images.shape == (10, 144, 144, 3)
    assert loaded.test_images.shape == (4, 144, 144, 3)
    np.testing.assert_array_equal(loaded.train_images[:, 0, 0, 0], np.where(loaded.train_labels == 0, 160, 40))
    assert np.bincount(loaded.train_labels).tolist() == [5, 5]
    (tmp_path / 'classes.txt').write_text(f'{names[4]}\nn99999999\n')
    with pytest.raises(UserError, match=r"'n99999999' of config.data.class_list is not a class"):
        data.load(options)


def test_other_files_of_the_same_name_are_other_data(tmp_path):
    digests = []
    for seed in (0, 1):
        root = tmp_path / str(seed)
        splits = {'train': (pixels(12, (6, 6, 3), seed), np.arange(12) % 3)}
        write(root, 'twice', '1.0.0', splits, (6, 6, 3), classes(3))
        options = options_of(root, name='twice')
        options.cache_dir = str(tmp_path / 'cache')
        digests.append(data.load(options).checksum)
    assert digests[0] != digests[1]


@pytest.mark.parametrize('keep', [0, 0.5])
def test_damaged_files_are_one_clear_line(tmp_path, keep):
    splits = {'train': (pixels(40, (16, 16, 3)), np.arange(40) % 3), 'test': (pixels(6, (16, 16, 3)), np.arange(6) % 3)}
    write(tmp_path, 'cut', '1.0.0', splits, (16, 16, 3), classes(3))
    file = next((tmp_path / 'tfds/cut/1.0.0').glob('cut-train*00001-of*'))
    file.write_bytes(file.read_bytes()[: int(keep * file.stat().st_size)])
    with pytest.raises(UserError, match='cannot be read') as caught:
        data.load(options_of(tmp_path, name='cut'))
    assert '\n' not in str(caught.value)


def test_tensorflow_is_not_imported_for_reading(tmp_path):
    splits = {'train': (pixels(6, (6, 6, 3)), np.arange(6) % 3), 'test': (pixels(6, (6, 6, 3)), np.arange(6) % 3)}
    write(tmp_path, 'plain', '1.0.0', splits, (6, 6, 3), classes(3))
    program = f"""
import sys
from configs.default import get_config
from semisfl_jax import data
assert 'tensorflow_datasets' not in sys.modules
options = get_config().data
options.update(name='plain', data_dir={str(tmp_path / 'tfds')!r}, cache_dir={str(tmp_path / 'cache')!r})
print(data.load(options).train_images.shape, 'tensorflow' in sys.modules)
"""
    result = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
    assert result.stdout == '(6, 6, 6, 3) False\n'
    assert result.stderr == ''
