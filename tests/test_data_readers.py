"""Readers that users register: what they return, and the line that refuses it."""

import dataclasses

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import dataset
from tests.settings import data_options


def test_the_shape_of_a_known_set_with_another_reader_is_that_of_its_images(monkeypatch):
    larger = data.load(data_options(name='digits', image_size=16))
    monkeypatch.setitem(data.READERS, 'digits', lambda image_size: larger)
    assert data.shape(data_options(name='digits')) == ((16, 16, 1), 10)
    assert data.shape(data_options(name='digits', fake=True)) == ((8, 8, 1), 10)  # made up as the package has it


def arrays_with_depth():
    """Of a data set of 6 and 3 images of 3 classes."""
    images, labels = np.zeros((9, 8, 8, 1), np.uint8), np.arange(9) % 3
    arrays = {'train_images': images[:6], 'train_labels': labels[:6]}
    arrays |= {'test_images': images[6:], 'test_labels': labels[6:]}
    return arrays | {'train_target_depth': images[:6, ..., 0], 'test_target_depth': images[6:, ..., 0]}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'train_labels': np.zeros(5, np.int32)}, r'train_labels is int32 \[5\]; use integer \[6\]'),
        ({'train_labels': np.arange(6)}, 'train_labels are 0 to 5; use -1 to 2'),
        ({'test_labels': np.full(3, -1)}, 'test_labels are -1 to -1; use 0 to 2'),
    ],
)
def test_a_registered_reader_that_returns_something_else_is_refused(monkeypatch, changes, message):
    made = dataset.make('mine', arrays_with_depth(), num_classes=3)
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: made)
    assert data.load(data_options(name='mine')) is made
    wrong = dataclasses.replace(made, **changes)
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: wrong)
    with pytest.raises(UserError, match=message):
        data.load(data_options(name='mine'))
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: None)
    with pytest.raises(UserError, match="data set 'mine': the reader returns None"):
        data.load(data_options(name='mine'))


@pytest.mark.parametrize(
    ('key', 'value', 'message'),
    [
        ('train_images', np.zeros((6, 8, 8, 1)), r'is float64 \[6, 8, 8, 1\]; use uint8 \[6, 8, 8, 1\]'),
        ('train_images', np.zeros((6, 8, 8), np.uint8), r'is uint8 \[6, 8, 8\]; use uint8 \[n, H, W, C\]'),
        ('train_images', np.zeros((0, 8, 8, 1), np.uint8), r'is uint8 \[0, 8, 8, 1\]; .* with n of at least 1'),
        ('test_images', None, 'is None; use uint8'),
        ('test_images', np.zeros((3, 9, 9, 1), np.uint8), r'is uint8 \[3, 9, 9, 1\]; use uint8 \[3, 8, 8, 1\]'),
        ('test_labels', np.zeros(3), r'is float64 \[3\]; use integer \[3\]'),
        ('test_target_depth', np.zeros((3, 8, 9), np.uint8), r'is uint8 \[3, 8, 9\]; use uint8 \[3, 8, 8\]'),
    ],
)
def test_wrong_arrays_are_one_clear_line_in_the_reader_itself(key, value, message):
    arrays = arrays_with_depth()
    assert dataset.make('mine', arrays, num_classes=3, outputs={'depth': 1}).targets['depth'].outputs == 1
    with pytest.raises(UserError, match=rf"data set 'mine': {key} {message}"):
        dataset.make('mine', arrays | {key: value}, 3, outputs={'depth': 1})
    del arrays[key]
    with pytest.raises(UserError, match=f'arrays has no {key}; it has '):
        dataset.make('mine', arrays, 3, outputs={'depth': 1})
