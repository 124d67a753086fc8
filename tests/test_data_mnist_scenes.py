"""Scenes of MNIST's digits on CIFAR-10's photographs: from small synthetic sets of their names."""

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import fake, scenes, tfds_source
from tests.tfds_files import classes, options_of, pixels, write

tfds = pytest.importorskip('tensorflow_datasets')

TASKS = ['semseg', 'parts', 'saliency', 'edges', 'depth', 'stuff', 'keypoints']
OUTPUTS = [11, 5, 1, 1, 1, 10, 2]


def bars(count):
    """Digits [count, 28, 28, 1]: digit k is a bar of 20 rows and 2 + k columns in the middle."""
    images = np.zeros((count, 28, 28, 1), np.uint8)
    for row in range(count):
        images[row, 4:24, 13 - row % 10 // 2 : 15 + (row % 10 + 1) // 2] = 255
    return images


def versions():
    return {name: str(tfds.builder(name).version) for name in ('mnist', 'cifar10')}


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """MNIST of bars, 30 and 20; CIFAR-10 of plain levels, 20k for class k, and 20k + 10 in the test set."""
    monkeypatch.setattr(scenes, 'MNIST_COUNTS', {'train': 60, 'test': 30})
    plain = np.broadcast_to(20 * (np.arange(20) % 10)[:, None, None, None], (20, 32, 32, 3)).astype(np.uint8)
    digits = {'train': (bars(30), np.arange(30) % 10), 'test': (bars(20), np.arange(20) % 10)}
    photographs = {'train': (plain, np.arange(20) % 10), 'test': (plain + 10, np.arange(20) % 10)}
    write(tmp_path, 'mnist', versions()['mnist'], digits, (28, 28, 1), classes(10))
    write(tmp_path, 'cifar10', versions()['cifar10'], photographs, (32, 32, 3), classes(10))
    return tmp_path


def test_scenes_show_digits_on_photographs(prepared):
    loaded = data.load(options_of(prepared, name='mnist_scenes'))
    assert (loaded.name, loaded.num_classes) == ('mnist_scenes', 10)
    assert loaded.train_images.shape == (60, 48, 48, 3)
    assert loaded.test_images.shape == (30, 48, 48, 3)
    assert {task: targets.outputs for task, targets in loaded.targets.items()} == dict(zip(TASKS, OUTPUTS, strict=True))
    assert list(loaded.targets) == TASKS
    for split, extra in (('train', 0), ('test', 10)):
        images = getattr(loaded, f'{split}_images')
        stuff, semseg = (getattr(loaded.targets[task], split) for task in ('stuff', 'semseg'))
        for image, classes_of, digit in zip(images, stuff, semseg, strict=True):
            (kind,) = set(np.unique(classes_of).tolist()) - {255}
            np.testing.assert_array_equal(classes_of == 255, digit > 0)
            far = np.ones((48, 48), bool)  # soft borders are up to two pixels wide
            for down in range(-2, 3):
                for right in range(-2, 3):
                    far &= ~np.roll(digit > 0, (down, right), axis=(0, 1))
            assert (image[far] == 20 * kind + extra).all()
        assert len(np.unique(stuff)) > 8


def test_bars_are_as_wide_as_their_digit(prepared):
    """A bar of 2 + k of the middle 24 columns and 20 of 24 rows, in a box of 24."""
    digits = {'train_images': bars(30), 'train_labels': np.arange(30) % 10}
    plain = {'train_images': np.zeros((1, 32, 32, 3), np.uint8), 'train_labels': np.zeros(1, np.int32)}
    ingredients = scenes.mnist_ingredients('train', digits, plain)
    for row in range(10):
        sprite = scenes.Sprite(row, 10, 5, 24, (200, 100, 50))  # one to one
        image, label, targets = scenes.paint(scenes.Scene((0,), (sprite,)), ingredients, 48)
        columns = slice(5 + 13 - row // 2 - 2, 5 + 15 + (row + 1) // 2 - 2)
        expected = np.zeros((48, 48), int)
        expected[12:32, columns] = 1
        np.testing.assert_array_equal(targets['semseg'], expected * (row + 1))
        np.testing.assert_array_equal(image, expected[..., None] * np.array([200, 100, 50]))
        quarters = np.repeat([1, 2, 3, 4], 5)[:, None] if row % 2 == 0 else 0
        np.testing.assert_array_equal(targets['parts'][12:32, columns], np.broadcast_to(quarters, (20, row + 2)))
        middle = columns.start + (row + 2) // 2
        assert [tuple(np.argwhere(targets['keypoints'] == k)[0]) for k in (1, 2)] == [(12, middle), (31, middle)]
        assert label == row
        assert set(np.unique(targets['depth']).tolist()) == {0, 24 * 254 // 26}


def test_scenes_are_cached_and_padded(prepared, monkeypatch):
    first = data.load(options_of(prepared, name='mnist_scenes'))
    assert isinstance(first.train_images.base, np.memmap)
    padded = data.load(options_of(prepared, name='mnist_scenes', pad_to=50))
    assert padded.targets['stuff'].train.shape == (60, 50, 50)
    assert (padded.targets['edges'].train[:, 0] == 255).all()
    np.testing.assert_array_equal(padded.targets['parts'].test[:, 1:49, 1:49], first.targets['parts'].test)
    monkeypatch.setattr(scenes, 'paint', lambda *_: pytest.fail('painted again'))
    again = data.load(options_of(prepared, name='mnist_scenes'))
    assert again.checksum == first.checksum
    for task in TASKS:
        np.testing.assert_array_equal(again.targets[task].train, first.targets[task].train)


def test_other_digits_are_other_scenes(prepared, tmp_path_factory):
    other = tmp_path_factory.mktemp('other')
    digits = {split: (pixels(20, (28, 28, 1)), np.arange(20) % 10) for split in ('train', 'test')}
    write(other, 'mnist', versions()['mnist'], digits, (28, 28, 1), classes(10))
    (other / 'tfds' / 'cifar10').symlink_to(prepared / 'tfds' / 'cifar10')
    one, two = (options_of(root, name='mnist_scenes') for root in (prepared, other))
    two.cache_dir = one.cache_dir
    assert data.load(one).checksum != data.load(two).checksum


@pytest.mark.parametrize('absent', ['mnist', 'cifar10'])
def test_both_sets_are_needed(prepared, monkeypatch, absent):
    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: None)
    (prepared / 'tfds' / absent).rename(prepared / 'away')
    message = f"'mnist_scenes' is made of 'mnist' and 'cifar10': data set '{absent}'"
    with pytest.raises(UserError, match=message) as caught:
        data.load(options_of(prepared, name='mnist_scenes'))
    assert '\n' not in str(caught.value)


def test_made_up_scenes_have_the_shapes(tmp_path):
    made = data.load(options_of(tmp_path, name='mnist_scenes', fake=True, fake_size=20))
    assert made.train_images.shape == (20, 48, 48, 3)
    assert made.targets['stuff'].outputs == 10
    outline = data.outline(options_of(tmp_path, name='mnist_scenes', fake=True))
    assert outline.outputs == dict(zip(TASKS, OUTPUTS, strict=True))
    assert fake.counts('mnist_scenes') == (10000, 0, 2000)
