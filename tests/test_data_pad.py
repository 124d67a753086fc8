"""Images padded with zeros to a larger side: where they lie, what stays, and that it makes another data set."""

import jax
import numpy as np
import pytest
from PIL import Image

from semisfl_jax import config as config_lib
from semisfl_jax import data, models
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import dataset, sources
from semisfl_jax.training import experiment
from tests import runs
from tests.architectures import count
from tests.tfds_files import classes, options_of, pixels, write


@pytest.mark.parametrize(
    ('height', 'width', 'side', 'top', 'left'),
    [(28, 28, 32, 2, 2), (3, 4, 6, 1, 1), (5, 2, 5, 0, 1), (1, 2, 2, 0, 0)],
)
def test_the_image_lies_in_the_center(height, width, side, top, left):
    """A row or column that is left over comes at the bottom or on the right: 3 + 3 of 6 rows are 1 + 3 + 2."""
    images = 1 + np.arange(2 * height * width * 3, dtype=np.uint8).reshape(2, height, width, 3) % 200
    expected = np.zeros((2, side, side, 3), np.uint8)
    for i in range(height):
        for j in range(width):
            expected[:, top + i, left + j] = images[:, i, j]
    np.testing.assert_array_equal(sources.add_border(images, side), expected)
    assert sources.padded_shape((height, width, 3), side) == (side, side, 3)


def test_digits_are_resized_then_padded(tmp_path):
    plain = data.load(options_of(tmp_path, name='digits'))
    padded = data.load(options_of(tmp_path, name='digits', pad_to=12))
    assert padded.train_images.shape == (1437, 12, 12, 1)
    for before, after in ((plain.train_images, padded.train_images), (plain.test_images, padded.test_images)):
        np.testing.assert_array_equal(after[:, 2:10, 2:10], before)
        assert after.astype(int).sum() == before.astype(int).sum()  # zeros elsewhere
    np.testing.assert_array_equal(padded.train_labels, plain.train_labels)
    assert (padded.mean, padded.std) == (plain.mean, plain.std)  # of the images without the border
    assert padded.checksum != plain.checksum
    names = 'train_images', 'train_labels', 'test_images', 'test_labels'
    assert padded.checksum == dataset.checksum('digits', {name: getattr(padded, name) for name in names})
    assert data.load(options_of(tmp_path, name='digits', pad_to=8)).checksum == plain.checksum  # nothing to pad

    both = data.load(options_of(tmp_path, name='digits', image_size=10, pad_to=13))
    expected = Image.fromarray(plain.test_images[5, ..., 0]).resize((10, 10), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(both.test_images[5, 1:11, 1:11, 0], np.asarray(expected))
    assert both.test_images.shape[1:] == (13, 13, 1)
    assert not both.test_images[5, 11:].any()


def test_prepared_sets_are_padded(tmp_path):
    """Statistics that are measured are of the images without a border."""
    train, test = pixels(700, (6, 5, 3)), pixels(20, (6, 5, 3), 1)
    splits = {'train': (train, np.arange(700) % 4), 'test': (test, np.arange(20) % 4)}
    write(tmp_path, 'my_shapes', '1.0.0', splits, (6, 5, 3), classes(4))
    options = options_of(tmp_path, name='my_shapes', pad_to=9)
    padded = data.load(options)
    assert padded.train_images.shape == (700, 9, 9, 3)
    np.testing.assert_array_equal(padded.train_images[:, 1:7, 2:7], train)
    np.testing.assert_array_equal(padded.test_images[:, 1:7, 2:7], test)
    assert padded.train_images.astype(int).sum() == train.astype(int).sum()
    assert padded.mean == pytest.approx(tuple((train / 255).mean((0, 1, 2))))
    assert data.shape(options) == ((9, 9, 3), 4)
    assert data.load(options_of(tmp_path, name='my_shapes')).checksum != padded.checksum


def test_shapes_are_known_before_images_are_read(tmp_path):
    options = options_of(tmp_path, name='fashion_mnist', fake=True, fake_size=50, pad_to=32)
    assert data.shape(options) == (data.outline(options).image, 10) == ((32, 32, 1), 10)
    made = data.load(options)
    assert made.train_images.shape == (50, 32, 32, 1)
    assert (made.mean, made.std) == ((0.2860,), (0.3530,))
    assert data.shape(options_of(tmp_path, name='stl10', image_size=20, pad_to=24)) == ((24, 24, 3), 10)


def test_runs_are_built_for_padded_images():
    """Model and identity; a run without padding is another experiment."""
    config, plain = (config_lib.resolve(runs.config(data__pad_to=side)) for side in (12, 0))
    built = experiment.build(config)
    assert built.dataset.test_images.shape == (360, 12, 12, 1)
    bottom = built.algorithm.init(built.key).student.bottom
    assert count(bottom) == 9 * 16 + 16 + 9 * 16 * 32 + 32
    assert built.model.feature_size == 3 * 3 * 32  # 12, 6, 3
    assert config_lib.identity_hash(config) != config_lib.identity_hash(plain)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'name': 'digits', 'pad_to': 7}, 'pad_to=7 is smaller than the images, which are 8x8'),
        ({'name': 'mnist', 'fake': True, 'fake_size': 20, 'pad_to': 27}, 'pad_to=27 .*28x28'),
        ({'name': 'digits', 'image_size': 20, 'pad_to': 16}, 'pad_to=16 .*20x20'),
    ],
)
def test_images_that_do_not_fit_are_one_clear_line(tmp_path, changes, message):
    options = options_of(tmp_path, **changes)
    with pytest.raises(UserError, match=message) as caught:
        data.load(options)
    assert '\n' not in str(caught.value)
    with pytest.raises(UserError, match=message):
        data.shape(options)


def test_sides_that_contradict_each_other_are_refused():
    with pytest.raises(UserError, match=r'pad_to=20 is below data\.image_size=24'):
        config_lib.check(runs.config(data__pad_to=20, data__image_size=24))


def test_fashion_mnist_fits_the_pooling_of_resnet9(tmp_path):
    """28, 14, 7, 3: less than a window of 4 x 4 is left; 32, 16, 8, 4: exactly one. One channel in place of three."""
    shape, classes = data.shape(options_of(tmp_path, name='fashion_mnist', pad_to=32))
    model = models.build('resnet9', classes, shape)
    variables = jax.eval_shape(model.init, jax.random.key(0))
    assert count(variables.bottom['params']) + count(variables.top) == 6_575_370 - 2 * 9 * 64 == 6_574_218
    assert model.feature_size == 512
    before_block = models.build('resnet9', classes, shape, split_index=5)
    assert before_block.feature_size == 4 * 4 * 512
    assert models.build('resnet9', classes, (28, 28, 1), split_index=5).feature_size == 3 * 3 * 512
