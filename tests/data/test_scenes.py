"""Scenes of digits, the bundled ones and MNIST's on CIFAR-10's photographs: what they are made of, and every target
recomputed from the recipe in another way."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
import tensorflow_datasets as tfds

from semisfl_jax import data
from semisfl_jax.data import bundled, scenes
from semisfl_jax.tasks import truth as truths
from tests.helpers.settings import data_options
from tests.helpers.tfds_files import classes, options_of, pixels, write_images

OUTPUTS = {'semseg': 11, 'parts': 5, 'saliency': 1, 'edges': 1, 'depth': 1, 'stuff': 6, 'keypoints': 2}
TASKS = list(OUTPUTS)  # those with maps
OUTPUTS |= {'instances': 10, 'panoptic': 16, 'persons': 5}


@pytest.fixture(scope='module')
def loaded():
    return data.load(data_options(name='digit_scenes'))


@pytest.fixture(scope='module')
def ingredients():
    return {split: bundled.ingredients(split) for split in ('train', 'test')}


# --- the targets, recomputed


def weights(source, target):
    """[target][source]: Pillow's bilinear filter in fractions."""
    scale = Fraction(source, target)
    width = max(scale, Fraction(1))
    rows = []
    for i in range(target):
        center = (i + Fraction(1, 2)) * scale
        row = [max(Fraction(0), 1 - abs(center - j - Fraction(1, 2)) / width) for j in range(source)]
        rows.append([value / sum(row) for value in row])
    return np.array(rows, dtype=object)


def nearest_first(recipe, ingredients):
    """Nearest sprite first: number of the sprite that owns each pixel, -1 for none; and the strokes [n, 48, 48]."""
    owner, strokes = np.full((48, 48), -1), []
    for number, sprite in reversed(list(enumerate(recipe.sprites))):
        axis = weights(8, sprite.side)
        level = axis @ ingredients.sprites[sprite.image].astype(object) @ axis.T
        stroke = np.zeros((48, 48), bool)
        # An exact level from 111.5 on is rounded to 112 or more.
        box = slice(sprite.top, sprite.top + sprite.side), slice(sprite.left, sprite.left + sprite.side)
        stroke[box] = level >= Fraction(223, 2)
        owner[(owner < 0) & stroke] = number
        strokes.insert(0, stroke)
    return owner, strokes


@pytest.mark.parametrize(('split', 'row'), [('train', 1), ('train', 4), ('train', 11), ('test', 0), ('test', 13)])
def test_targets_are_those_of_the_recipe(loaded, ingredients, split, row):
    recipe = scenes.draw('digit_scenes', split, row, ingredients[split])
    owner, strokes = nearest_first(recipe, ingredients[split])
    digits = [int(ingredients[split].labels[sprite.image]) for sprite in recipe.sprites]
    photograph, top, left = recipe.ground
    letters = [line for squares in bundled.SQUARES for line in squares.split()]
    expected = {task: np.zeros((48, 48), int) for task in TASKS}
    areas = [(owner == number).sum() for number in range(len(digits))]
    largest = max(range(len(digits)), key=lambda number: (areas[number], number))
    for y in range(48):
        for x in range(48):
            number = owner[y, x]
            neighbors = [owner[y, x + 1]] if x < 47 else []
            neighbors += [owner[y + 1, x]] if y < 47 else []
            expected['edges'][y, x] = any(other != number for other in neighbors)
            if number < 0:
                letter = letters[27 * photograph + (top + y) // 16][(left + x) // 16]
                expected['stuff'][y, x] = {'.': 255}.get(letter, 'sbwtlp'.find(letter))
                continue
            rows = np.flatnonzero(strokes[number].any(axis=1))
            quarter = 1 + 4 * (y - rows[0]) // (rows[-1] - rows[0] + 1)
            expected['semseg'][y, x] = digits[number] + 1
            expected['parts'][y, x] = quarter if digits[number] % 2 == 0 else 0
            expected['saliency'][y, x] = number == largest
            expected['depth'][y, x] = recipe.sprites[number].side * 254 // 26
            expected['stuff'][y, x] = 255
            for kind, end in ((1, rows[0]), (2, rows[-1])):
                run = np.flatnonzero(strokes[number][end])
                if (y, x) == (end, run[len(run) // 2]):
                    expected['keypoints'][y, x] = kind
    for task in TASKS:
        np.testing.assert_array_equal(getattr(loaded.targets[task], split)[row], expected[task], task)
    assert getattr(loaded, f'{split}_labels')[row] == digits[largest]


@pytest.mark.parametrize(('split', 'row'), [('train', 1), ('train', 4), ('test', 13)])
def test_objects_are_those_of_the_recipe(ingredients, split, row):
    recipe = scenes.draw('digit_scenes', split, row, ingredients[split])
    owner, strokes = nearest_first(recipe, ingredients[split])
    _, _, targets = scenes.paint(recipe, ingredients[split], 48)
    digits = [int(ingredients[split].labels[sprite.image]) for sprite in recipe.sprites]
    shown = [number for number in range(len(digits)) if (owner == number).any()]
    things, persons, panoptic = (
        truths.decode(targets[f'{task}.truth']) for task in ('instances', 'persons', 'panoptic')
    )
    assert len(things) == len(persons) == len(shown) == (targets['instances.labels'] > 0).sum()
    for slot, number in enumerate(shown):
        places = [(y, x) for y in range(48) for x in range(48) if owner[y, x] == number]
        left, right = (f(x for _, x in places) for f in (min, max))
        top, bottom = (f(y for y, _ in places) for f in (min, max))
        assert targets['instances.boxes'][slot].tolist() == [left, top, right + 1, bottom + 1]
        assert targets['instances.labels'][slot] == digits[number] + 1
        bits = np.unpackbits(targets['instances.masks'][slot], axis=-1)
        assert bits.shape == (32, 32)
        for i in range(32):
            for j in range(32):
                y, x = top + (2 * i + 1) * (bottom + 1 - top) // 64, left + (2 * j + 1) * (right + 1 - left) // 64
                assert bits[i, j] == (owner[y, x] == number)
        common = {'iscrowd': 0, 'area': len(places), 'bbox': [left, top, right + 1 - left, bottom + 1 - top]}
        assert things[slot] == panoptic[slot] == {'category_id': digits[number] + 1, **common}
        stroke = [(y, x) for y in range(48) for x in range(48) if strokes[number][y, x]]
        ends = [f(place[axis] for place in stroke) for axis in (0, 1) for f in (min, max)]
        runs = [[place for place in stroke if place[k // 2] == end] for k, end in enumerate(ends)]
        middle = Fraction(ends[0] + ends[1], 2), Fraction(ends[2] + ends[3], 2)
        central = min(stroke, key=lambda place: (place[0] - middle[0]) ** 2 + (place[1] - middle[1]) ** 2)
        joints = [*(run[len(run) // 2] for run in runs), central]
        assert targets['persons.joints'][slot].tolist() == [[x, y] for y, x in joints]
        seen = [2 if owner[place] == number else 1 for place in joints]
        assert targets['persons.visible'][slot].tolist() == seen
        keypoints = [value for (y, x), v in zip(joints, seen, strict=True) for value in (x, y, v)]
        assert persons[slot] == {'category_id': 1, **common, 'keypoints': keypoints, 'num_keypoints': 5}
        assert ((targets['instances.segments'] == slot + 1) == (owner == number)).all()
        assert ((targets['panoptic.segments'] == slot + 1) == (owner == number)).all()
    assert targets['persons.known'].all()
    stuff = targets['stuff']
    np.testing.assert_array_equal(targets['panoptic.semantic'], np.where(owner >= 0, 6, stuff))
    kinds = sorted(set(stuff[(owner < 0) & (stuff < 255)].tolist()))
    assert panoptic[len(shown) :] == [{'category_id': 11 + kind, 'iscrowd': 0} for kind in kinds]
    for number, kind in enumerate(kinds, len(shown) + 1):
        np.testing.assert_array_equal(targets['panoptic.segments'] == number, (owner < 0) & (stuff == kind))
    assert not targets['panoptic.segments'][(owner < 0) & (stuff == 255)].any()
    assert not targets['instances.boxes'][len(shown) :].any()


# --- sides and padding


def test_padding_has_no_truth(monkeypatch, loaded):
    monkeypatch.setattr(bundled, 'COUNTS', {'train': 6, 'test': 3})
    options = data_options(name='digit_scenes', pad_to=51)
    padded = data.load(options)
    assert list(padded.targets) == list(data.outline(options).outputs) == TASKS, 'objects would have to move'
    assert padded.train_images.shape == (6, 51, 51, 3)
    for task in TASKS:
        for target, truth in zip(padded.targets[task][:2], loaded.targets[task][:2], strict=True):
            bordered = np.pad(truth[: len(target)], ((0, 0), (1, 2), (1, 2)), constant_values=255)
            np.testing.assert_array_equal(target, bordered)  # 3 pixels more: one before, two behind


# --- MNIST's digits


def bars(count):
    """Digits [count, 28, 28, 1]: digit k is a bar of 20 rows and 2 + k columns in the middle."""
    images = np.zeros((count, 28, 28, 1), np.uint8)
    for row in range(count):
        images[row, 4:24, 13 - row % 10 // 2 : 15 + (row % 10 + 1) // 2] = 255
    return images


def write_digits(root, train, test):
    splits = {split: (images, np.arange(len(images)) % 10) for split, images in (('train', train), ('test', test))}
    write_images(root, 'mnist', splits, classes(10), version=str(tfds.builder('mnist').version))


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """MNIST of bars, 30 and 20; CIFAR-10 of plain levels, 20k for class k, and 20k + 10 in the test set."""
    monkeypatch.setattr(scenes, 'MNIST_COUNTS', {'train': 60, 'test': 30})
    write_digits(tmp_path, bars(30), bars(20))
    plain = np.broadcast_to(20 * (np.arange(20) % 10)[:, None, None, None], (20, 32, 32, 3)).astype(np.uint8)
    photographs = {'train': (plain, np.arange(20) % 10), 'test': (plain + 10, np.arange(20) % 10)}
    write_images(tmp_path, 'cifar10', photographs, classes(10), version=str(tfds.builder('cifar10').version))
    return tmp_path


def test_scenes_show_digits_on_photographs(prepared):
    loaded = data.load(options_of(prepared, name='mnist_scenes'))
    assert (loaded.name, loaded.num_classes) == ('mnist_scenes', 10)
    assert loaded.train_images.shape == (60, 48, 48, 3)
    assert loaded.test_images.shape == (30, 48, 48, 3)
    outputs = {task: targets.outputs for task, targets in loaded.targets.items()}
    assert outputs == OUTPUTS | {'stuff': 10, 'panoptic': 20}
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
        assert label == row


def test_scenes_are_cached_and_others_of_other_digits(prepared, tmp_path, monkeypatch):
    first = data.load(options_of(prepared, name='mnist_scenes'))
    assert isinstance(first.train_images.base, np.memmap)
    with monkeypatch.context() as patch:
        patch.setattr(scenes, 'paint', lambda *_: pytest.fail('painted again'))
        again = data.load(options_of(prepared, name='mnist_scenes'))
    assert again.checksum == first.checksum
    for task in TASKS:
        np.testing.assert_array_equal(again.targets[task].train, first.targets[task].train)
    other = tmp_path / 'other'
    write_digits(other, *[pixels(20, (28, 28, 1))] * 2)
    (other / 'tfds' / 'cifar10').symlink_to(prepared / 'tfds' / 'cifar10')
    options = options_of(other, name='mnist_scenes')
    options.cache_dir = str(prepared / 'cache')
    assert data.load(options).checksum != first.checksum


def test_scenes_have_the_shapes_of_their_outline(loaded):
    assert (loaded.name, loaded.num_classes, loaded.fake) == ('digit_scenes', 10, False)
    assert loaded.train_images.shape == (2000, 48, 48, 3)
    assert loaded.test_images.shape == (400, 48, 48, 3)
    assert loaded.train_labels.dtype == np.int32
    assert {task: targets.outputs for task, targets in loaded.targets.items()} == OUTPUTS
    assert loaded.outline == data.outline(data_options(name='digit_scenes'))
    assert data.outline(data_options(name='digit_scenes', image_size=32))[:2] == ((32, 32, 3), 10)


def test_the_bytes_of_the_targets(loaded):
    """Recorded: they depend on no library but NumPy's generator. Images also depend on the decoder of JPEG."""
    digest = hashlib.sha256()
    for task in TASKS:
        for split in loaded.targets[task][:2]:
            digest.update(split.data)
    digest.update(loaded.train_labels.data)
    assert digest.hexdigest() == 'e6b579ca1c941677854081ab50ecfda053b78475c9e7a578f7bdcfca09479859'
