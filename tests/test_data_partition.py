"""The split between server and clients, held against arithmetic done here."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisfl_jax import data
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.apportion import largest_remainder, level
from semisfl_jax.data.dataset import holdout
from tests.partitions import SKEWED, class_counts, config_of, dataset_of

SVHN_TRAIN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]  # images per digit, 73,257 in all
IGNORED = ['unlabeled', 'dropped']


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(any),
    st.integers(0, 5000),
)
@settings(max_examples=50, deadline=None)
def test_largest_remainder_is_exact_and_within_one(weight, total):
    counts = largest_remainder(np.array(weight), total)
    assert counts.sum() == total
    assert all(abs(c * sum(weight) - w * total) < sum(weight) for c, w in zip(counts, weight, strict=True))
    # No part with a smaller remainder was rounded up before one with a larger remainder.
    up = [w * total % sum(weight) for c, w in zip(counts, weight, strict=True) if c > w * total // sum(weight)]
    down = [w * total % sum(weight) for c, w in zip(counts, weight, strict=True) if c == w * total // sum(weight)]
    assert not up or not down or min(up) >= max(down)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_level_columns_and_totals_stay_within_one(sizes, parts):
    counts = level(np.array(sizes), parts)
    assert counts.shape == (parts, len(sizes))
    assert counts.sum(axis=0).tolist() == sizes
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


@pytest.mark.parametrize(
    ('partition', 'alpha', 'split', 'client_labels', 'mu', 'ignored', 'unknown'),
    [
        *itertools.product(['uniform'], [0.1], ['natural', 'balanced'], [0, 40], [0, 7], IGNORED, [0, 333]),
        *itertools.product(['dirichlet'], [0.01, 0.1, 1.0, 100.0], ['natural'], [0, 40], [0, 7], IGNORED, [0]),
    ],
)
def test_nothing_twice_and_nothing_lost_but_what_is_dropped(
    partition, alpha, split, client_labels, mu, ignored, unknown
):
    dataset = dataset_of(SKEWED, unknown)
    changes = {'partition': partition, 'alpha': alpha, 'labeled_split': split, 'num_clients': 9}
    changes |= {'client_labels': client_labels, 'mu': mu, 'ignored_labeled': ignored}
    made = data.make_partition(dataset, config_of(**changes))
    everyone = np.concatenate([made.server_index, *made.client_index, *made.client_labeled_index]).tolist()
    dropped = set()
    if mu == 0 and ignored == 'dropped':  # just what the clients would hold with labels
        dropped = set(
            np.concatenate(data.make_partition(dataset, config_of(**changes | {'mu': 7})).client_labeled_index)
        )
        assert len(dropped) == client_labels
    assert sorted([*everyone, *dropped]) == list(range(sum(SKEWED) + unknown))
    assert len(made.server_index) == 100 - client_labels
    assert sum(map(len, made.client_labeled_index)) == (client_labels if mu else 0)
    assert made.num_clients == len(made.client_labeled_index) == 9
    assert min(map(len, made.client_index)) >= 1
    assert (dataset.train_labels[made.server_index] >= 0).all()
    for rows in (made.server_index, *made.client_index, *made.client_labeled_index):
        assert rows.dtype == np.int32
        assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize(
    ('sizes', 'labels', 'expected'),
    [
        ([5000] * 10, 4000, [400] * 10),
        # 1000 n_c / 73257 = 67.54, 189.21, 144.49, 115.99, 101.81, 93.94, 78.18, 76.37, 68.87, 63.60: whole parts
        # sum to 994, and the six largest remainders are those of 3, 5, 8, 4, 9 and 0.
        (SVHN_TRAIN, 1000, [68, 189, 144, 116, 102, 94, 78, 76, 69, 64]),
    ],
)
def test_natural_labels_follow_the_class_frequencies(sizes, labels, expected):
    dataset = dataset_of(sizes)
    made = data.make_partition(dataset, config_of(num_labeled=labels))
    assert class_counts(dataset.train_labels, made.server_index, 10).tolist() == expected


def test_balanced_labels_are_equal_per_class():
    dataset = dataset_of(SKEWED)
    made = data.make_partition(dataset, config_of(labeled_split='balanced', num_labeled=102))
    assert class_counts(dataset.train_labels, made.server_index, 5).tolist() == [21, 21, 20, 20, 20]


def test_fewer_labels_are_a_subset_under_the_same_seed():
    dataset = dataset_of([100] * 5)
    few, many = (data.make_partition(dataset, config_of(num_labeled=n)).server_index for n in (50, 100))
    assert set(few.tolist()) < set(many.tolist())


def test_uniform_clients_hold_every_class_equally():
    dataset = dataset_of(SKEWED)
    made = data.make_partition(dataset, config_of())
    held = data.describe(made, dataset.train_labels)
    independent = np.array([class_counts(dataset.train_labels, rows, 5) for rows in made.client_index])
    np.testing.assert_array_equal(held, independent)
    assert np.ptp(held, axis=0).max() <= 1
    assert np.ptp(held.sum(axis=1)) <= 1


@pytest.mark.parametrize('alpha', [0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize('seed', [0, 1])
def test_dirichlet_shares_are_the_formula(alpha, seed):
    dataset = dataset_of([5000, 3000, 4000, 1000])
    made = data.make_partition(dataset, config_of(partition='dirichlet', alpha=alpha, seed=seed, num_clients=12))
    draws = rng.host(seed, 'partition', 'dirichlet').dirichlet([alpha] * 4, 12)  # p [N, K]
    pool = np.array([5000, 3000, 4000, 1000]) - class_counts(dataset.train_labels, made.server_index, 4)
    expected = draws / draws.sum(axis=0) * pool
    held = data.describe(made, dataset.train_labels)
    assert np.abs(held - expected).max() <= 1 + 1e-6
    np.testing.assert_array_equal(held.sum(axis=0), pool)


def test_no_client_is_empty_however_many_there_are():
    dataset = dataset_of([60] * 5)
    made = data.make_partition(dataset, config_of(partition='dirichlet', alpha=0.01, num_clients=150))
    assert min(map(len, made.client_index)) >= 1
    assert sum(map(len, made.client_index)) == 200


def test_the_seed_decides():
    dataset = dataset_of(SKEWED)
    made = [data.make_partition(dataset, config_of(partition='dirichlet', seed=seed)) for seed in (0, 0, 1)]
    assert made[0].content_hash == made[1].content_hash
    assert made[0].content_hash != made[2].content_hash
    assert not np.array_equal(made[0].server_index, made[2].server_index)
    assert [len(rows) for rows in made[0].client_index] != [len(rows) for rows in made[2].client_index]


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'num_labeled': 701}, 'num_labeled=701'),
        ({'num_labeled': 4, 'labeled_split': 'balanced'}, 'each of the 5 classes'),
        ({'num_labeled': 300, 'labeled_split': 'balanced'}, 'needs 60 images of class 4, which has 49'),
        ({'num_clients': 601}, '600 unlabeled images are left'),
        ({'num_labeled': 700}, '0 unlabeled images are left'),
    ],
)
def test_settings_that_the_data_set_cannot_satisfy_are_one_clear_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        data.make_partition(dataset_of(SKEWED), config_of(**changes))
    assert '\n' not in str(caught.value)


def test_holdout_is_a_stratified_fifth():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [100, 50, 26]))
    train, test = holdout(labels)
    assert sorted([*train, *test]) == list(range(176))
    # 36 = ceil(176 / 5), in shares 20.45, 10.23, 5.32: one more goes to the largest remainder.
    assert class_counts(labels, test, 3).tolist() == [21, 10, 5]
    np.testing.assert_array_equal(test, holdout(labels)[1])
