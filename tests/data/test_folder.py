"""Folders of images as data sets: ImageNet's, CINIC-10 as it is published, and a user's own."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.data import folder
from semisfl_jax.data.folder import find_image100
from tests.helpers.settings import data_options
from tests.helpers.tfds_files import classes, encoded, options_of, pixels, write_images


def write_folder(root, **splits):
    """SPLIT/CLASS/*.png from split -> class -> images."""
    for split, by_class in splits.items():
        for name, images in by_class.items():
            directory = root / split / name
            directory.mkdir(parents=True)
            for i, image in enumerate(images):
                (directory / f'{i}.png').write_bytes(encoded(image))
    return root


# --- IMAGE-100


@pytest.fixture
def imagenet(tmp_path):
    """Three classes with 3, 4, 5 images for training and 1, 2, 3 for testing, of different sizes, one color each."""

    def images(k, count):
        return [np.full((40 + 7 * i, 60 - 5 * k, 3), (50 * k + 20, 10 * i, 100), np.uint8) for i in range(count)]

    splits = {
        split: {f'n0{k + 1}': images(k, k + extra) for k in range(3)} for split, extra in (('train', 3), ('val', 1))
    }
    write_folder(tmp_path / 'imagenet', **splits)
    (tmp_path / 'imagenet/train/n01/1.JPEG').write_bytes(encoded(images(0, 2)[1], 'JPEG'))
    (tmp_path / 'imagenet/train/n01/1.png').rename(tmp_path / 'imagenet/train/n01/notes.txt')
    (tmp_path / 'classes.txt').write_text('n03 third\nn01\n\n')
    return tmp_path


def image100(root, **changes):
    of_folder = {'image_folder': str(root / 'imagenet'), 'class_list': str(root / 'classes.txt')}
    return options_of(root, **{'name': 'image100', **of_folder, **changes})


def test_an_imagenet_folder_gives_the_listed_classes(imagenet):
    loaded = data.load(image100(imagenet))
    assert (loaded.name, loaded.num_classes, data.outline(image100(imagenet)).classes) == ('image100', 2, 2)
    assert loaded.train_images.shape == (8, 144, 144, 3)
    assert loaded.train_labels.tolist() == [0] * 5 + [1] * 3
    assert loaded.test_labels.tolist() == [0] * 3 + [1]
    assert loaded.mean == (0.485, 0.456, 0.406)
    for images, labels in ((loaded.train_images, loaded.train_labels), (loaded.test_images, loaded.test_labels)):
        red = np.where(labels == 0, 120, 20)[:, None, None]
        assert np.abs(images[..., 0].astype(int) - red).max() <= 3
    np.testing.assert_array_equal(loaded.train_images[0], np.broadcast_to([120, 0, 100], (144, 144, 3)))


def test_one_hundred_classes_need_no_list(tmp_path, imagenet):
    by_class = {f'n{k:03}': [np.full((4, 4, 3), k, np.uint8)] for k in range(100)}
    write_folder(tmp_path / 'hundred', train=by_class, val=by_class)
    source = find_image100(data_options(image_folder=str(tmp_path / 'hundred'), image_size=8))
    train, _ = source.open()
    assert source.num_classes == train.samples == 100
    images, labels = next(train.chunks())
    np.testing.assert_array_equal(labels, np.arange(100))
    np.testing.assert_array_equal(images[:, 0, 0, 0], np.arange(100))
    with pytest.raises(UserError, match=r'3 classes, not 100.*config\.data\.class_list'):
        data.load(image100(imagenet, class_list=''))


@pytest.mark.parametrize(
    ('spoil', 'named'),
    [
        (lambda root: (root / 'imagenet' / 'val').rename(root / 'imagenet' / 'test'), 'val/'),
        (lambda root: (root / 'classes.txt').write_text('n01\nn01\n'), 'class_list'),
        (lambda root: (root / 'classes.txt').write_text('n01\nn77\n'), 'n77'),
        (lambda root: (root / 'imagenet/val/n01/0.png').unlink(), 'n01'),
        (lambda root: (root / 'imagenet/train/n01/1.JPEG').write_bytes(b'GIF'), r'1\.JPEG'),
    ],
)
def test_what_is_wrong_in_a_folder_is_named(imagenet, spoil, named):
    spoil(imagenet)
    with pytest.raises(UserError, match=named):
        data.load(image100(imagenet))


# --- a user's own: what is left out


def test_images_that_are_left_out_are_counted(tmp_path, caplog):
    """In other folders, or of another format; hidden files and those that are no images are not meant."""
    by_class = {name: pixels(2, (8, 8, 3), k) for k, name in enumerate('ab')}
    root = write_folder(
        tmp_path / 'own', train=by_class, test={'a': pixels(1, (8, 8, 3), 5), 'b': pixels(1, (8, 8, 3), 6)}
    )
    shutil.copy(root / 'train/a/0.png', root / 'train/a/.hidden.png')
    (root / 'README.md').write_text('of mine')
    options = options_of(tmp_path, name='folder', image_folder=str(root), image_size=8)
    assert len(data.load(options).train_images) == 4
    assert not caplog.records
    Image.fromarray(pixels(1, (8, 8, 3), 7)[0]).save(root / 'train/a/2.BMP')  # which is read
    for other in ('val/a/0.png', 'train/1.png', 'train/a/more/1.png', 'train/b/drawn.svg'):
        (root / other).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / 'train/a/0.png', root / other)
    assert len(data.load(options).train_images) == 5
    (record,) = caplog.records
    assert "4 images left out, such as 'train/1.png'; only those in train/CLASS/, test/CLASS/" in record.getMessage()


# --- CINIC-10

CIFAR10 = ['airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck']


def test_cinic10_is_read_in_the_order_of_cifar10(tmp_path, monkeypatch):
    """Gray images become color, valid/ is not used; decoded once for every size."""
    train, valid, test = (pixels(10 * n, (32, 32, 3), n).reshape(10, n, 32, 32, 3) for n in (3, 2, 1))
    splits = {'train': train, 'valid': valid, 'test': test}
    root = write_folder(tmp_path / 'cinic', **{k: dict(zip(CIFAR10, v, strict=True)) for k, v in splits.items()})
    for k, name in enumerate(CIFAR10):
        (root / 'train' / name / '2.png').write_bytes(encoded(train[k, 2, ..., 0]))
    train[:, 2] = train[:, 2, ..., :1]
    loaded, small = (
        data.load(options_of(tmp_path, name='cinic10', image_folder=str(root), image_size=size)) for size in (0, 8)
    )
    assert (loaded.name, loaded.num_classes, loaded.fake) == ('cinic10', 10, False)
    np.testing.assert_array_equal(loaded.train_images, train.reshape(-1, 32, 32, 3))
    np.testing.assert_array_equal(loaded.train_labels, np.repeat(np.arange(10), 3))
    np.testing.assert_array_equal(loaded.test_images, test.reshape(-1, 32, 32, 3))
    np.testing.assert_array_equal(loaded.test_labels, np.arange(10))
    assert loaded.mean == (0.47889522, 0.47227842, 0.43047404)
    assert loaded.std == (0.24205776, 0.23828046, 0.25874835)
    monkeypatch.setattr('semisfl_jax.data.folder.decode_chunk', None)
    for size, first in ((0, loaded), (8, small)):
        again = data.load(options_of(tmp_path, name='cinic10', image_folder=str(root), image_size=size))
        assert again.checksum == first.checksum
        assert again.test_images.shape == (10, *[size or 32] * 2, 3)


def test_cinic10_in_a_prepared_directory_is_found(tmp_path):
    with pytest.raises(UserError, match=r'cinic10.*config\.data\.data_dir \(there is no .*config\.data\.image_folder'):
        data.load(options_of(tmp_path, name='cinic10'))
    splits = {split: (pixels(20, (32, 32, 3), len(split)), np.arange(20) % 10) for split in ('train', 'test')}
    write_images(tmp_path, 'cinic10', splits, classes(10))
    loaded = data.load(options_of(tmp_path, name='cinic10'))
    np.testing.assert_array_equal(loaded.train_images, splits['train'][0])
    np.testing.assert_array_equal(loaded.test_images, splits['test'][0])
    assert loaded.mean == (0.47889522, 0.47227842, 0.43047404)


# --- a user's own


def own(root, **changes):
    return image100(root, **{'name': 'folder', 'class_list': '', 'image_size': 8, **changes})


@pytest.mark.parametrize('test', ['test', 'val', 'valid'])
def test_classes_are_the_directories_in_the_order_of_their_names(imagenet, test):
    (imagenet / 'imagenet/val').rename(imagenet / 'imagenet' / test)
    (imagenet / 'imagenet/train/.ipynb_checkpoints').mkdir()
    (imagenet / 'imagenet/train/n01/._0.png').write_bytes(b'beside an image')
    loaded = data.load(own(imagenet))
    assert (loaded.name, loaded.num_classes, loaded.train_images.shape) == ('folder', 3, (12, 8, 8, 3))
    np.testing.assert_array_equal(loaded.train_labels, np.repeat([0, 1, 2], [3, 4, 5]))
    np.testing.assert_array_equal(loaded.test_labels, np.repeat([0, 1, 2], [1, 2, 3]))
    np.testing.assert_array_equal(loaded.test_images[:, 0, 0, 0], 50 * loaded.test_labels + 20)


def test_an_image_of_the_same_size_in_place_of_another_is_read(imagenet):
    path = min((imagenet / 'imagenet/train/n02').iterdir())
    for changed, color in enumerate((10, 250)):
        path.write_bytes(encoded(np.full((144, 144, 3), color, np.uint8)).ljust(1000, b'0'))
        os.utime(path, ns=(changed, changed))
        assert path.stat().st_size == 1000
        assert data.checksum_of(own(imagenet)) == data.load(own(imagenet)).checksum  # in this order
        assert (data.load(own(imagenet)).train_images[3] == color).all()


def test_files_whose_times_alone_changed_are_not_decoded_again_and_changed_ones_leave_one_entry(imagenet, monkeypatch):
    expected, decode = data.load(own(imagenet)).train_images, folder.decode_chunk
    monkeypatch.setattr(folder, 'decode_chunk', None)
    for path in (imagenet / 'imagenet').rglob('*'):
        os.utime(path, ns=(7, 7))
    for _ in range(2):
        np.testing.assert_array_equal(data.load(own(imagenet)).train_images, expected)
    monkeypatch.setattr(folder, 'decode_chunk', decode)
    path = min((imagenet / 'imagenet/train/n02').iterdir())
    path.write_bytes(encoded(np.full((144, 144, 3), 10, np.uint8)).ljust(2000, b'0'))
    assert (data.load(own(imagenet)).train_images[3] == 10).all()
    assert len(list(Path(own(imagenet).cache_dir).glob('folder-folder-*'))) == 1


def test_images_of_unknown_class_of_a_folder(imagenet):
    (imagenet / 'imagenet/train/n03').rename(imagenet / 'imagenet/unlabeled')
    shutil.rmtree(imagenet / 'imagenet/val/n03')
    loaded = data.load(own(imagenet))
    np.testing.assert_array_equal(loaded.train_labels, np.repeat([0, 1, -1], [3, 4, 5]))


def test_what_a_folder_of_ones_own_lacks_is_named(imagenet):
    for changes, named in (({'image_folder': ''}, 'image_folder'), ({'image_size': 0}, 'image_size')):
        with pytest.raises(UserError, match=f'config.data.{named}'):
            data.load(own(imagenet, **changes))
    shutil.rmtree(imagenet / 'imagenet/val/n02')
    with pytest.raises(UserError, match='n02'):
        data.load(own(imagenet))
    (imagenet / 'imagenet/val/n04').mkdir()
    with pytest.raises(UserError, match="val/ has the class 'n04', train/ does not"):
        data.load(own(imagenet))
    with pytest.raises(UserError, match='no home folder of ~nobody_here'):
        data.load(own(imagenet, image_folder='~nobody_here/x'))
    for name in ('n02', 'n03'):
        shutil.rmtree(imagenet / 'imagenet/train' / name)
    with pytest.raises(UserError, match='1 classes'):
        data.load(own(imagenet))
