"""CINIC-10 from a folder as it is published, and from a directory of tensorflow-datasets: small synthetic ones."""

import numpy as np
import pytest
from PIL import Image

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.folder import CINIC10_CLASSES
from tests.encoded_images import encoded
from tests.tfds_files import classes, options_of, pixels, write

CIFAR10 = ['airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck']


@pytest.fixture
def folder(tmp_path):
    """train/CLASS/* with three images, one of them gray, valid/CLASS/* and test/CLASS/* with one, 32 x 32."""
    for seed, (split, count) in enumerate({'train': 3, 'valid': 1, 'test': 1}.items()):
        images = pixels(10 * count, (32, 32, 3), seed).reshape(10, count, 32, 32, 3)
        for k, name in enumerate(CIFAR10):
            directory = tmp_path / 'cinic' / split / name
            directory.mkdir(parents=True)
            for i, image in enumerate(images[k]):
                gray = split == 'train' and i == 2
                (directory / f'cifar10-{split}-{i}.png').write_bytes(encoded(image[..., 0] if gray else image))
    return tmp_path


def folder_options(root, **changes):
    return options_of(root, name='cinic10', image_folder=str(root / 'cinic'), **changes)


def test_a_folder_is_read_in_the_order_of_cifar10(folder):
    loaded = data.load(folder_options(folder))
    assert (loaded.name, loaded.num_classes, loaded.fake) == ('cinic10', 10, False)
    assert tuple(CIFAR10) == CINIC10_CLASSES
    train, test = (pixels(10 * n, (32, 32, 3), seed).reshape(10, n, 32, 32, 3) for seed, n in ((0, 3), (2, 1)))
    train[:, 2] = train[:, 2, ..., :1]  # gray
    np.testing.assert_array_equal(loaded.train_images, train.reshape(-1, 32, 32, 3))
    np.testing.assert_array_equal(loaded.train_labels, np.repeat(np.arange(10), 3))
    np.testing.assert_array_equal(loaded.test_images, test.reshape(-1, 32, 32, 3))  # valid/ is not used
    np.testing.assert_array_equal(loaded.test_labels, np.arange(10))
    assert loaded.mean == (0.47889522, 0.47227842, 0.43047404)
    assert loaded.std == (0.24205776, 0.23828046, 0.25874835)


def test_a_folder_is_cached_and_resized(folder, monkeypatch):
    first = data.load(folder_options(folder))
    small = data.load(folder_options(folder, image_size=8))
    assert len(list((folder / 'cache').glob('[!.]*'))) == 2
    expected = Image.fromarray(np.asarray(first.test_images[4])).resize((8, 8), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(small.test_images[4], np.asarray(expected))
    monkeypatch.setattr('semisfl_jax.data.folder.decode_chunk', None)
    assert data.load(folder_options(folder)).checksum == first.checksum
    assert data.load(folder_options(folder, image_size=8)).checksum == small.checksum != first.checksum


def test_a_folder_without_test_images_is_refused(folder):
    (folder / 'cinic' / 'test').rename(folder / 'cinic' / 'val')
    with pytest.raises(UserError, match='must have the directories train/ and test/'):
        data.load(folder_options(folder))


def test_without_data_one_line_says_where_they_are_published(tmp_path):
    with pytest.raises(UserError) as caught:
        data.load(options_of(tmp_path, name='cinic10'))
    message = str(caught.value)
    assert '\n' not in message
    for part in (
        'cinic10',
        'config.data.data_dir',
        'https://doi.org/10.7488/ds/2448',
        '--config.data.image_folder',
        'fake',
    ):
        assert part in message
    with pytest.raises(UserError, match=r"did you mean .*'cinic10'"):
        data.load(options_of(tmp_path, name='cinic'))


def test_a_prepared_directory_is_found(tmp_path):
    train, rest, test = (pixels(20, (32, 32, 3), seed) for seed in range(3))
    labels = np.arange(20) % 10
    splits = {'train': (train, labels), 'validation': (rest, labels), 'test': (test, labels)}
    write(tmp_path, 'cinic10', '1.0.0', splits, (32, 32, 3), classes(10))
    loaded = data.load(options_of(tmp_path, name='cinic10'))
    assert (loaded.name, loaded.num_classes) == ('cinic10', 10)
    np.testing.assert_array_equal(loaded.train_images, train)
    np.testing.assert_array_equal(loaded.test_images, test)
    np.testing.assert_array_equal(loaded.test_labels, labels)
    assert loaded.mean == (0.47889522, 0.47227842, 0.43047404)
