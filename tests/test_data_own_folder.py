"""Images of a user's own, in a folder."""

import shutil

import numpy as np
import pytest
from PIL import Image

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from tests import runs
from tests.encoded_images import encoded
from tests.tfds_files import options_of, pixels

SHAPES = {'cat': (20, 14, 3), 'ant': (16, 16, 3), 'dog': (9, 30, 3)}  # of the images of a class, not in order


@pytest.fixture
def folder(tmp_path):
    """Eight images of each class in train/, two in test/."""
    for split, count in (('train', 8), ('test', 2)):
        for seed, (name, shape) in enumerate(SHAPES.items()):
            directory = tmp_path / 'own' / split / name
            directory.mkdir(parents=True)
            for i, image in enumerate(pixels(count, shape, seed)):
                (directory / f'{i}.png').write_bytes(encoded(image))
    return tmp_path


def options(root, **changes):
    return options_of(root, **{'name': 'folder', 'image_folder': str(root / 'own'), 'image_size': 8} | changes)


@pytest.mark.parametrize('test', ['test', 'val', 'valid'])
def test_classes_are_the_directories_in_the_order_of_their_names(folder, test):
    (folder / 'own' / 'test').rename(folder / 'own' / test)
    loaded = data.load(options(folder))
    assert (loaded.name, loaded.num_classes, loaded.train_images.shape) == ('folder', 3, (24, 8, 8, 3))
    np.testing.assert_array_equal(loaded.train_labels, np.repeat([0, 1, 2], 8))
    np.testing.assert_array_equal(loaded.test_labels, np.repeat([0, 1, 2], 2))
    ant, cat = (Image.fromarray(pixels(2, SHAPES[name], seed)[1]) for name, seed in (('ant', 1), ('cat', 0)))
    for row, image in ((1, ant), (3, cat)):
        small = np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(loaded.test_images[row], small)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'image_folder': ''}, r"^data set 'folder' needs --config\.data\.image_folder=DIR, with train/ and test/$"),
        ({'image_size': 0}, r"^data set 'folder' needs --config\.data\.image_size=32, the side to resize to$"),
        ({'image_folder': '/nowhere'}, r"image_folder '/nowhere' must have the directories train/ and test/"),
    ],
)
def test_what_is_missing_is_named(folder, changes, message):
    with pytest.raises(UserError, match=message):
        data.load(options(folder, **changes))


def test_an_incomplete_folder_is_refused(folder):
    shutil.rmtree(folder / 'own' / 'test' / 'dog')
    with pytest.raises(UserError, match='dog'):
        data.load(options(folder))
    for name in ('cat', 'dog'):
        shutil.rmtree(folder / 'own' / 'train' / name)
    with pytest.raises(UserError, match='has 1 classes in train/: use two or more'):
        data.load(options(folder))


def test_a_run(folder):
    own = {'data__name': 'folder', 'data__image_folder': folder / 'own', 'data__image_size': 8}
    own |= {
        'data__num_labeled': 6,
        'data__cache_dir': folder / 'cache',
        'federation__num_clients': 3,
        'federation__num_active': 3,
    }
    assert runs.run(folder / 'run', algorithm='supervised_only', rounds=1, **own) == 0
    assert 0 <= runs.records(folder / 'run')[0]['student_accuracy'] <= 1
