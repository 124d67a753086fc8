"""An ImageNet folder as a data set."""

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.folder import find_image100
from tests.encoded_images import encoded
from tests.settings import data_options


@pytest.fixture
def imagenet(tmp_path):
    """train/<id>/* and val/<id>/* for three classes: 3, 4, 5 and 1, 2, 3 JPEGs of different sizes, one color each."""
    for split, extra in (('train', 3), ('val', 1)):
        for k, wnid in enumerate(('n01', 'n02', 'n03')):
            folder = tmp_path / 'imagenet' / split / wnid
            folder.mkdir(parents=True)
            for i in range(k + extra):
                color = np.full((40 + 7 * i, 60 - 5 * k, 3), (50 * k + 20, 10 * i, 100), np.uint8)
                name = f'{wnid}_{i}.JPEG' if i else f'{wnid}_{i}.png'
                (folder / name).write_bytes(encoded(color, 'JPEG' if i else 'PNG'))
            (folder / 'notes.txt').write_text('no image')
    (tmp_path / 'classes.txt').write_text('n03 third\nn01\n\n')
    return tmp_path


def folder_options(root, **changes):
    return data_options(
        name='image100',
        image_folder=str(root / 'imagenet'),
        class_list=str(root / 'classes.txt'),
        cache_dir=str(root / 'cache'),
        **changes,
    )


def test_an_imagenet_folder_gives_the_listed_classes(imagenet):
    loaded = data.load(folder_options(imagenet))
    assert loaded.name == 'image100'
    assert loaded.num_classes == 2
    assert loaded.train_images.shape == (8, 144, 144, 3)
    assert loaded.train_labels.tolist() == [0] * 5 + [1] * 3
    assert loaded.test_labels.tolist() == [0] * 3 + [1]
    assert loaded.mean == (0.485, 0.456, 0.406)
    for images, labels in ((loaded.train_images, loaded.train_labels), (loaded.test_images, loaded.test_labels)):
        red = np.where(labels == 0, 120, 20)[:, None, None]
        assert np.abs(images[..., 0].astype(int) - red).max() <= 3
    np.testing.assert_array_equal(loaded.train_images[0], np.broadcast_to([120, 0, 100], (144, 144, 3)))
    assert loaded.checksum == data.load(folder_options(imagenet)).checksum


def test_one_hundred_classes_need_no_list(tmp_path):
    for split in ('train', 'val'):
        for k in range(100):
            folder = tmp_path / split / f'n{k:03}'
            folder.mkdir(parents=True)
            (folder / 'a.png').write_bytes(encoded(np.full((4, 4, 3), k, np.uint8)))
    source = find_image100(data_options(image_folder=str(tmp_path), image_size=8))
    train, _ = source.open()
    assert source.num_classes == train.samples == 100
    images, labels = next(train.chunks())
    np.testing.assert_array_equal(labels, np.arange(100))
    np.testing.assert_array_equal(images[:, 0, 0, 0], np.arange(100))


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (lambda root: (root / 'imagenet' / 'val').rename(root / 'imagenet' / 'test'), 'train/ and val/'),
        (lambda root: (root / 'classes.txt').unlink(), 'class_list .* cannot be read'),
        (lambda root: (root / 'classes.txt').write_text('n01\nn01\n'), 'at least two classes'),
        (lambda root: (root / 'classes.txt').write_text('n01\nn77\n'), "class 'n77' has no readable directory"),
        (lambda root: [p.unlink() for p in (root / 'imagenet/val/n01').glob('*.png')], 'holds no images'),
        (lambda root: (root / 'imagenet/train/n01/n01_1.JPEG').write_bytes(b'GIF'), r'n01_1.JPEG.* cannot be decoded'),
    ],
)
def test_a_wrong_folder_is_one_clear_line(imagenet, spoil, message):
    spoil(imagenet)
    with pytest.raises(UserError, match=message):
        data.load(folder_options(imagenet))


def test_a_folder_of_another_number_of_classes_needs_a_list(imagenet):
    options = folder_options(imagenet)
    options.class_list = ''
    with pytest.raises(UserError, match='holds 3 classes, not 100'):
        data.load(options)
