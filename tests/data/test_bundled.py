"""Digits and scenes that come with the package."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images

from semisfl_jax import data
from semisfl_jax.data import bundled, scenes
from tests.helpers.settings import data_options


def test_digits_are_scikit_learns():
    raw, digits = load_digits(), data.load(data_options(name='digits'))
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_labels.dtype == np.int32
    assert (digits.num_classes, digits.fake) == (10, False)
    images = np.concatenate([digits.train_images, digits.test_images])[..., 0]
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    assert images.max() == 255
    # Level v of 0..16 became round(v * 255 / 16); dividing back restores it. Every image is there once.
    restored = np.rint(images / 255 * 16).reshape(-1, 64)
    mine = sorted((*pixels, label) for pixels, label in zip(restored.tolist(), labels.tolist(), strict=True))
    theirs = sorted((*pixels, label) for pixels, label in zip(raw.data.tolist(), raw.target.tolist(), strict=True))
    assert mine == theirs
    share = np.bincount(raw.target) * 360 / 1797
    assert (np.abs(np.bincount(digits.test_labels) - share) < 1).all()
    assert digits.mean == pytest.approx(((digits.train_images / 255).mean(),))
    assert digits.std == pytest.approx(((digits.train_images / 255).std(),))


def test_train_and_test_share_no_pixel_of_a_photograph():
    ingredients = {split: bundled.ingredients(split) for split in ('train', 'test')}
    photographs = np.stack(load_sample_images().images)
    seen = {split: np.zeros((2, 427, 640), bool) for split in ingredients}
    for split in ingredients:
        for row in range(400):
            recipe = scenes.draw('digit_scenes', split, row, ingredients[split])
            photograph, top, left = recipe.ground
            crop = photograph, slice(top, top + 48), slice(left, left + 48)
            seen[split][crop] = True
            np.testing.assert_array_equal(ingredients[split].ground(recipe.ground)[0], photographs[crop])
    assert not (seen['train'] & seen['test']).any()
    assert seen['train'].mean() > 0.6
    assert seen['test'].mean() > 0.15
