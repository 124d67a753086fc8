"""Scenes of digits: what they are made of, and every target recomputed from the recipe in another way."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from configs.default import get_config
from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import bundled, maps, scenes

TASKS = ['semseg', 'parts', 'saliency', 'edges', 'depth', 'stuff', 'keypoints']
OUTPUTS = [11, 5, 1, 1, 1, 6, 2]


def options_of(**changes):
    options = get_config().data
    options.update(name='digit_scenes', **changes)
    return options


@pytest.fixture(scope='module')
def loaded():
    return data.load(options_of())


@pytest.fixture(scope='module')
def ingredients():
    return {split: bundled.ingredients(split) for split in ('train', 'test')}


def recipes(ingredients, split, count):
    return [scenes.draw('digit_scenes', split, row, ingredients[split]) for row in range(count)]


# --- the set


def test_shapes_and_counts(loaded):
    assert (loaded.name, loaded.num_classes, loaded.fake) == ('digit_scenes', 10, False)
    assert loaded.train_images.shape == (2000, 48, 48, 3)
    assert loaded.test_images.shape == (400, 48, 48, 3)
    assert loaded.train_labels.dtype == np.int32
    assert list(loaded.targets) == TASKS
    for task, outputs in zip(TASKS, OUTPUTS, strict=True):
        targets = loaded.targets[task]
        assert targets.outputs == outputs
        assert targets.train.shape == (2000, 48, 48)
        assert targets.test.shape == (400, 48, 48)
        assert targets.train.dtype == targets.test.dtype == np.uint8
    outline = data.outline(options_of())
    assert (outline.image, outline.classes) == ((48, 48, 3), 10)
    assert data.shape(options_of(image_size=32)) == ((32, 32, 3), 10)


def test_the_bytes_of_the_targets(loaded):
    """Recorded: they depend on no library but NumPy's generator. Images also depend on the decoder of JPEG."""
    digest = hashlib.sha256()
    for task in TASKS:
        for split in loaded.targets[task][:2]:
            digest.update(split.data)
    digest.update(loaded.train_labels.data)
    assert digest.hexdigest() == 'e6b579ca1c941677854081ab50ecfda053b78475c9e7a578f7bdcfca09479859'


def test_scenes_depend_on_their_number_alone(loaded, ingredients):
    """Not on how many are painted or in which order, and so not on the chunks."""
    for split, row in (('test', 7), ('train', 1999), ('train', 0), ('test', 7)):
        recipe = scenes.draw('digit_scenes', split, row, ingredients[split])
        image, label, targets = scenes.paint(recipe, ingredients[split], 48)
        np.testing.assert_array_equal(image, getattr(loaded, f'{split}_images')[row])
        assert label == getattr(loaded, f'{split}_labels')[row]
        for task in TASKS:
            np.testing.assert_array_equal(targets[task], getattr(loaded.targets[task], split)[row])


# --- train and test are disjoint


def test_train_and_test_share_no_digit(ingredients):
    for split, count in (('train', 1437), ('test', 360)):
        options = get_config().data
        options.name = 'digits'
        images = getattr(data.load(options), f'{split}_images')
        np.testing.assert_array_equal(ingredients[split].sprites, images[..., 0])
        assert len(images) == count
        rows = [sprite.image for recipe in recipes(ingredients, split, 400) for sprite in recipe.sprites]
        assert 0 <= min(rows) <= max(rows) < count


def test_train_and_test_share_no_pixel_of_a_photograph(ingredients):
    photographs = np.stack(load_sample_images().images)
    seen = {split: np.zeros((2, 427, 640), bool) for split in ingredients}
    for split in ingredients:
        for recipe in recipes(ingredients, split, 400):
            photograph, top, left = recipe.ground
            crop = photograph, slice(top, top + 48), slice(left, left + 48)
            seen[split][crop] = True
            np.testing.assert_array_equal(ingredients[split].ground(recipe.ground)[0], photographs[crop])
    assert not (seen['train'] & seen['test']).any()
    assert seen['train'].mean() > 0.6
    assert seen['test'].mean() > 0.15
    assert {x // 64 for x in np.flatnonzero(seen['test'].any(axis=(0, 1)))} == {3, 7}


def test_the_squares_show_what_their_letters_say():
    """By mean color, R, G, B: the sky is bright and blue, leaves are dark and not red, petals red, trees not bright."""
    china, flower = (image.astype(int) for image in load_sample_images().images)
    for image, squares in ((china, bundled.SQUARES[0]), (flower, bundled.SQUARES[1])):
        lines = squares.split()
        assert (len(lines), {len(line) for line in lines}) == (27, {40})
        for y, line in enumerate(lines):
            for x, letter in enumerate(line):
                red, green, blue = image[16 * y : 16 * y + 16, 16 * x : 16 * x + 16].mean(axis=(0, 1))
                assert {
                    's': min(red, green, blue) > 170,
                    'w': min(red, green, blue) > 140 and y >= 15,
                    'b': red > blue or max(red, green, blue) < 170,
                    't': red + green > 2 * blue and max(red, green, blue) < 190,
                    'l': red < 100 and red < blue + 30,
                    'p': red > blue + 40,
                    '.': True,
                }[letter], (y, x, letter)
    classes = bundled.stuff_of_photographs()
    assert classes[0, 0, 0] == 0  # sky
    assert classes[0, 16 * 3, 16 * 12] == 1  # the top of the tower
    assert classes[1, 426, 16 * 21] == 5  # petals
    assert classes[0, 16 * 2, 16 * 12] == 255  # several


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


def test_pixels_show_their_sprite_or_the_photograph(loaded, ingredients):
    """Well inside of a stroke, the level is 144 or more, the color is the sprite's; far from any, the photograph's."""
    photographs = np.stack(load_sample_images().images)
    for row, recipe in enumerate(recipes(ingredients, 'train', 40)):
        photograph, top, left = recipe.ground
        expected = photographs[photograph, top : top + 48, left : left + 48].copy()
        known = np.ones((48, 48), bool)
        for sprite in recipe.sprites:
            box = slice(sprite.top, sprite.top + sprite.side), slice(sprite.left, sprite.left + sprite.side)
            gray = Image.fromarray(ingredients['train'].sprites[sprite.image])
            level = np.asarray(gray.resize((sprite.side, sprite.side), Image.Resampling.BILINEAR))
            expected[box][level >= 146] = sprite.color
            known[box] &= (level >= 146) | (level <= 78)  # at 80 and below nothing is painted
            known[box] |= level >= 146
        np.testing.assert_array_equal(loaded.train_images[row][known], expected[known])
        assert known.mean() > 0.8


# --- sides, padding, synthetic images, errors


def test_scenes_at_another_side_show_the_same(ingredients):
    recipe = scenes.draw('digit_scenes', 'train', 4, ingredients['train'])
    small, label, targets = scenes.paint(recipe, ingredients['train'], 48)
    large, same, doubled = scenes.paint(recipe, ingredients['train'], 96)
    assert large.shape == (96, 96, 3)
    assert same == label
    halves = large.reshape(48, 2, 48, 2, 3).mean(axis=(1, 3))
    assert np.abs(halves - small).mean() < 8
    for task in ('semseg', 'parts', 'saliency', 'depth'):
        assert (doubled[task][::2, ::2] == targets[task]).mean() > 0.95
    assert [(doubled['keypoints'] == k).sum() for k in (1, 2)] == [(targets['keypoints'] == k).sum() for k in (1, 2)]


def test_padding_has_no_truth(monkeypatch, loaded):
    monkeypatch.setattr(bundled, 'COUNTS', {'train': 6, 'test': 3})
    padded = data.load(options_of(pad_to=51))
    assert padded.train_images.shape == (6, 51, 51, 3)
    inside = slice(1, 49)  # 3 pixels more: one before, two behind
    for task in TASKS:
        assert padded.targets[task].outputs == loaded.targets[task].outputs
        for split, count in (('train', 6), ('test', 3)):
            target = getattr(padded.targets[task], split)
            np.testing.assert_array_equal(target[:, inside, inside], getattr(loaded.targets[task], split)[:count])
            assert (np.delete(target, range(1, 49), axis=1) == 255).all()
            assert (np.delete(target, range(1, 49), axis=2) == 255).all()


def test_made_up_scenes_have_the_shapes():
    made = data.load(options_of(fake=True, fake_size=30))
    assert made.fake
    assert made.train_images.shape == (30, 48, 48, 3)
    assert {task: targets.outputs for task, targets in made.targets.items()} == dict(zip(TASKS, OUTPUTS, strict=True))
    for task, targets in made.targets.items():
        assert targets.train.shape == (30, 48, 48)
        values = set(np.unique(targets.train).tolist()) - {255}
        most = {'saliency': 1, 'edges': 1, 'depth': 254, 'keypoints': 2}.get(task, targets.outputs - 1)
        assert 1 <= max(values) <= most
    inside = made.targets['saliency'].train == 1
    np.testing.assert_array_equal(made.targets['semseg'].train > 0, inside)
    np.testing.assert_array_equal(made.targets['stuff'].train == 255, inside)
    assert made.checksum == data.load(options_of(fake=True, fake_size=30)).checksum


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'pad_to': 47}, 'pad_to=47 is smaller than the images, which are 48x48'),
        ({'image_folder': '/x'}, "image_folder belongs to data set .*, not to 'digit_scenes'"),
    ],
)
def test_wrong_options_are_one_clear_line(changes, message, monkeypatch):
    monkeypatch.setattr(bundled, 'COUNTS', {'train': 2, 'test': 2})
    with pytest.raises(UserError, match=message) as caught:
        data.load(options_of(**changes))
    assert '\n' not in str(caught.value)


# --- maps


@pytest.mark.parametrize(
    ('source', 'target'), [((8, 8), (14, 26)), ((32, 32), (48, 48)), ((28, 24), (14, 19)), ((5, 7), (5, 7))]
)
def test_smooth_resizing_is_pillows_to_a_level(source, target):
    values = np.random.default_rng(0).integers(0, 256, (*source, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(values).resize(target[::-1], Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(maps.smooth(values, *target).astype(int) - expected).max() <= 1
    np.testing.assert_array_equal(maps.smooth(values, *target)[..., 1], maps.smooth(values[..., 1], *target))


@pytest.mark.parametrize('size', [3, 8, 13, 16])
def test_nearest_resizing_is_pillows(size):
    values = np.random.default_rng(0).integers(0, 256, (8, 13), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(values).resize((size, size), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(maps.nearest(values, size, size), expected)


def test_borders_of_a_small_map():
    regions = np.array([[1, 1, 2], [1, 1, 2], [3, 3, 3]])
    np.testing.assert_array_equal(maps.borders(regions), [[0, 1, 0], [1, 1, 1], [0, 0, 0]])
    known = regions != 2
    np.testing.assert_array_equal(maps.known_borders(regions, known), [[0, 255, 255], [1, 255, 255], [0, 0, 0]])
