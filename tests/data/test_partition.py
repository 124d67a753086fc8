"""The split between server and clients, held against arithmetic done here."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng
from tests.helpers.partitions import SKEWED, class_counts, config_of, dataset_of, held

SVHN_TRAIN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]  # images per digit, 73,257 in all


def make(dataset, **changes):
    return data.make_partition(dataset, config_of(**changes))


# --- the server's images, and that nothing is lost


@given(
    st.fixed_dictionaries(
        {
            'partition': st.sampled_from(['uniform', 'dirichlet']),
            'alpha': st.sampled_from([0.01, 0.1, 100.0]),
            'labeled_split': st.sampled_from(['natural', 'balanced']),
            'client_labels': st.sampled_from([0, 40]),
            'mu': st.sampled_from([0, 7]),
            'ignored_labeled': st.sampled_from(['unlabeled', 'dropped']),
        }
    ),
    st.sampled_from([0, 333]),
)
@settings(max_examples=40, deadline=None)
def test_nothing_twice_and_nothing_lost_but_what_is_dropped(changes, unknown):
    dataset = dataset_of(SKEWED, unknown if changes['partition'] == 'uniform' else 0)
    changes = {**changes, 'num_clients': 9}
    made = make(dataset, **changes)
    everyone = np.concatenate([made.server_index, *made.client_index, *made.client_labeled_index]).tolist()
    dropped = set()
    if changes['mu'] == 0 and changes['ignored_labeled'] == 'dropped':  # just what they would hold with labels
        dropped = set(np.concatenate(make(dataset, **changes | {'mu': 7}).client_labeled_index))
        assert len(dropped) == changes['client_labels']
    assert sorted([*everyone, *dropped]) == list(range(len(dataset.train_labels)))
    assert len(made.server_index) == 100 - changes['client_labels']
    assert sum(map(len, made.client_labeled_index)) == (changes['client_labels'] if changes['mu'] else 0)
    assert made.num_clients == len(made.client_labeled_index) == 9
    assert min(map(len, made.client_index)) >= 1
    assert (dataset.train_labels[made.server_index] >= 0).all()
    for rows in (made.server_index, *made.client_index, *made.client_labeled_index):
        assert rows.dtype == np.int32
        assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize(
    ('sizes', 'changes', 'expected'),
    [
        # 1000 n_c / 73257 = 67.54, 189.21, 144.49, 115.99, 101.81, 93.94, 78.18, 76.37, 68.87, 63.60: whole parts
        # sum to 994, and the six largest remainders are those of 3, 5, 8, 4, 9 and 0.
        (SVHN_TRAIN, {'num_labeled': 1000}, [68, 189, 144, 116, 102, 94, 78, 76, 69, 64]),
        (SKEWED, {'num_labeled': 102, 'labeled_split': 'balanced'}, [21, 21, 20, 20, 20]),
    ],
)
def test_labels_follow_the_class_frequencies_or_are_equal(sizes, changes, expected):
    dataset = dataset_of(sizes)
    made = make(dataset, **changes)
    assert class_counts(dataset.train_labels, made.server_index, len(sizes)).tolist() == expected


def test_fewer_labels_are_a_subset_under_the_same_seed():
    few, many = (make(dataset_of([100] * 5), num_labeled=n).server_index for n in (50, 100))
    assert set(few.tolist()) < set(many.tolist())


# --- the clients' images


def test_uniform_clients_hold_every_class_equally():
    dataset = dataset_of(SKEWED)
    made = make(dataset)
    counts = data.describe(made, dataset.train_labels)
    np.testing.assert_array_equal(counts, held(dataset, made))
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


@pytest.mark.parametrize(('alpha', 'seed'), [(0.1, 0), (1.0, 1)])
def test_dirichlet_shares_are_the_formula(alpha, seed):
    dataset = dataset_of([5000, 3000, 4000, 1000])
    made = make(dataset, partition='dirichlet', alpha=alpha, seed=seed, num_clients=12)
    draws = rng.host(seed, 'partition', 'dirichlet').dirichlet([alpha] * 4, 12)  # p [N, K]
    pool = np.array([5000, 3000, 4000, 1000]) - class_counts(dataset.train_labels, made.server_index, 4)
    counts = held(dataset, made)
    assert np.abs(counts - draws / draws.sum(axis=0) * pool).max() <= 1 + 1e-6
    np.testing.assert_array_equal(counts.sum(axis=0), pool)


def test_unknown_labels_are_dealt_equally_and_never_labeled():
    dataset = dataset_of([100] * 3, unknown=1000)
    made = make(dataset, num_labeled=300)
    assert made.server_index.tolist() == list(range(300))
    assert sorted(len(rows) for rows in made.client_index) == [142, 143, 143, 143, 143, 143, 143]
    assert data.describe(made, dataset.train_labels).sum() == 0


def test_splits_are_as_they_were():
    """Hashes of earlier versions, which must not change for who keeps a partition file."""
    for changes, digest in (
        ({}, 'a689888a04aab86c'),
        ({'partition': 'dirichlet'}, 'ae7e5d4fb5cca5a5'),
        ({'partition': 'dirichlet', 'client_labels': 48}, '381bad689cacc4a3'),
        ({'partition': 'dirichlet', 'client_labels': 48, 'labeled_partition': 'uniform'}, '8ce08816bf7ed36a'),
        ({'client_labels': 40, 'mu': 0}, '07eb25aad7614854'),
        ({'partition': 'dirichlet', 'client_labels': -1, 'k_s': 0}, '6c3453789f057cdf'),
    ):
        assert make(dataset_of(SKEWED), **changes).content_hash[:16] == digest


# --- labels at the clients


def test_client_labels_are_stratified_and_ignored_at_mu_zero():
    """The images then go unlabeled, or nowhere; that is in the settings, where it decides anything."""
    dataset = dataset_of([500] * 4)
    used, ignored, dropped = (
        make(dataset, client_labels=60, **changes)
        for changes in ({'mu': 7}, {'mu': 0, 'ignored_labeled': 'unlabeled'}, {'mu': 0})
    )
    for split in (ignored, dropped):
        np.testing.assert_array_equal(used.server_index, split.server_index)
        assert sum(map(len, split.client_labeled_index)) == 0
    np.testing.assert_array_equal(held(dataset, dropped), held(dataset, used))
    settings = [split.settings.get('ignored_labeled') for split in (used, ignored, dropped, make(dataset, mu=0))]
    assert settings == [None, 'unlabeled', 'dropped', None]
    assert class_counts(dataset.train_labels, used.server_index, 4).tolist() == [10] * 4
    assert held(dataset, used, labeled=True).sum(axis=0).tolist() == [15] * 4
    assert np.ptp([len(rows) for rows in used.client_labeled_index]) <= 1


def test_labels_of_clients_are_dealt_equally_whatever_the_rest():
    """As the authors' code deals them (not on STL-10): to each client the share `client_labels` / N / n of every class,
    round(48 / 12 / 2000 * 500) = 1 image, and the same of all classes, beside unlabeled images by Dirichlet."""
    dataset = dataset_of([500] * 4)
    changes = {'partition': 'dirichlet', 'num_labeled': 100, 'client_labels': 48, 'num_clients': 12}
    same, equal = (make(dataset, **changes, labeled_partition=rule) for rule in ('same', 'uniform'))
    np.testing.assert_array_equal(held(dataset, equal, labeled=True), round(48 / 12 / 2000 * 500))
    np.testing.assert_array_equal(held(dataset, same), held(dataset, equal))
    np.testing.assert_array_equal(*(np.sort(np.concatenate(split.client_labeled_index)) for split in (same, equal)))
    assert [split.settings['labeled_partition'] for split in (same, equal)] == ['same', 'uniform']
    for none in ({}, {'client_labels': 40, 'mu': 0}, {'client_labels': -1}):
        assert 'labeled_partition' not in make(dataset, **none).settings


@pytest.mark.parametrize('rule', ['uniform', 'dirichlet'])
def test_where_the_server_has_no_phase_all_images_with_labels_at_the_clients_are_theirs(rule):
    """700 images, none set aside; with K_s above 0 the server keeps its 100, and -1 splits as 0."""
    dataset = dataset_of(SKEWED)
    changes = {'client_labels': -1, 'partition': rule, 'labeled_split': 'balanced', 'num_labeled': 300}
    made = make(dataset, **changes, k_s=0)
    assert (len(made.server_index), made.settings['num_labeled']) == (0, 0)
    assert sorted(np.concatenate(made.client_index).tolist()) == list(range(700))
    assert data.describe(made, dataset.train_labels).sum(axis=0).tolist() == SKEWED
    assert make(dataset, **changes | {'num_labeled': 5}, k_s=0).content_hash == made.content_hash
    none, every = (make(dataset, client_labels=count, partition=rule) for count in (0, -1))
    assert (len(every.server_index), sum(map(len, every.client_index))) == (100, 600)
    assert none.content_hash == every.content_hash


# --- rules of users


@pytest.mark.parametrize(
    'spoiled',
    [
        lambda counts: None,
        lambda counts: counts.T,
        lambda counts: counts * 1.0,
        lambda counts: np.vstack([counts[:5], 3 * counts[5], -counts[6]]),
        lambda counts: counts + 1,
    ],
)
def test_a_rule_from_outside_that_returns_something_else_is_refused(monkeypatch, spoiled):
    """It may use up the sizes that it gets."""

    def rule(sizes, settings):
        counts = np.tile(sizes // 7, (7, 1))  # 70 of each class are dealt
        sizes[:] = 0
        return counts

    dataset, config = dataset_of([80] * 4), config_of(partition='mine', num_labeled=40)
    monkeypatch.setitem(data.PARTITIONS, 'mine', rule)
    assert [len(rows) for rows in data.make_partition(dataset, config).client_index] == [40] * 7
    monkeypatch.setitem(data.PARTITIONS, 'mine', lambda sizes, settings: spoiled(rule(sizes, settings)))
    with pytest.raises(UserError, match=r"federation\.partition='mine': .*\[7, 5\]"):
        data.make_partition(dataset, config)


# --- what cannot be

LABELS = {'client_labels': 90, 'labeled_partition': 'classes'}
OF_LABELS = {**LABELS, 'labeled_partition': 'dirichlet_class'}
UNEVEN = {'partition': 'dirichlet_class', 'num_clients': 6}


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'num_labeled': 701}, 'num_labeled=701'),
        ({'num_labeled': 4, 'labeled_split': 'balanced'}, 'num_labeled=4'),
        ({'num_labeled': 300, 'labeled_split': 'balanced'}, 'num_labeled=300'),  # 60 of class 4, which has 49
        ({'num_clients': 601}, '600 unlabeled'),
        ({'num_unlabeled': 601}, 'num_unlabeled=601'),
        # Of 600 images, between so many for each of six clients
        ({**UNEVEN, 'max_images': 99}, 'to 99 '),
        ({**UNEVEN, 'min_images': 100, 'alpha': 0.5}, 'alpha above 0.5'),  # in no draw
        ({**OF_LABELS, 'min_labeled': 13}, 'min_labeled'),  # for 7 clients 91
        ({'partition': 'classes', 'classes_per_client': 6}, 'classes_per_client=6'),
        ({'partition': 'classes', 'classes_per_client': 1, 'num_clients': 4}, '=1: 4 clients .* use 2 to 5'),
        # 6 labels of class 4 (90 * 49 / 700), and of the others more than 7
        ({'client_labels': 90, 'mismatch': 0.2}, 'mismatch=0.2'),
        # One class for each of five clients, who take 120 images each of their own
        ({**LABELS, 'num_clients': 5, 'classes_per_client': 1, 'mismatch': 0.0}, r'mismatch=0.0: .*num_unlabeled'),
    ],
)
def test_what_cannot_be_is_named(changes, named, monkeypatch):
    monkeypatch.setattr('semisfl_jax.data.partitioners.DRAWS', 50)
    with pytest.raises(UserError, match=named):
        make(dataset_of(SKEWED), **changes)


@pytest.mark.parametrize('rule', ['dirichlet', 'dirichlet_class', 'classes'])
def test_uneven_rules_and_mismatch_need_known_labels(rule):
    dataset = dataset_of(SKEWED, unknown=10)
    for changes in ({'partition': rule}, {**LABELS, 'labeled_partition': rule, 'min_labeled': 0, 'mismatch': 0.5}):
        with pytest.raises(UserError, match='labels of 10 training images are unknown'):
            make(dataset, **changes)
    made = make(dataset, labeled_partition=rule, client_labels=80, min_labeled=0)
    assert sum(map(len, made.client_labeled_index)) == 80


# --- clients that the data have

OWNERS = np.random.default_rng(1).integers(0, 7, sum(SKEWED)).astype(np.int32)
NATURAL = dataclasses.replace(dataset_of(SKEWED), client_ids=OWNERS)


@pytest.mark.parametrize(
    'changes',
    [
        {},
        {'client_labels': 40, 'mu': 7},
        {'client_labels': 40, 'mu': 0},
        {'client_labels': -1, 'k_s': 0},
        {'num_validation': 50},
    ],
)
def test_clients_that_the_data_have_keep_their_images(changes):
    """Server, labels and validation are drawn as under any rule; the rest stays where it is, whole and in its order."""
    made, other = (make(NATURAL, partition=rule, **changes) for rule in ('natural', 'uniform'))
    assert made.server_index.tolist() == other.server_index.tolist()
    assert made.validation_index.tolist() == other.validation_index.tolist()
    for parts, others in (
        (made.client_index, other.client_index),
        (made.client_labeled_index, other.client_labeled_index),
    ):
        rows = np.sort(np.concatenate(others))
        assert [part.tolist() for part in parts] == [rows[OWNERS[rows] == n].tolist() for n in range(7)]
        assert all(part.dtype == np.int32 for part in parts)
    if changes.get('k_s') == 0:
        assert [part.tolist() for part in made.client_index] == [np.flatnonzero(n == OWNERS).tolist() for n in range(7)]


def test_fewer_images_are_a_share_of_each_class_and_stay_with_their_clients():
    """300 of the 600 left, of which classes have 6/7: half of each."""
    made = make(NATURAL, partition='natural', num_unlabeled=300)
    assert [{*OWNERS[rows]} for rows in made.client_index] == [{n} for n in range(7)]
    counts = np.sum([class_counts(NATURAL.train_labels, rows, 5) for rows in made.client_index], axis=0)
    np.testing.assert_allclose(counts, np.array(SKEWED) * 300 / 700, atol=1)


def test_clients_that_do_not_fit_are_named():
    alone = dataclasses.replace(NATURAL, client_ids=np.minimum(np.arange(700), 6).astype(np.int32))
    for dataset, changes, message in (
        (dataset_of(SKEWED), {}, "partition='natural' needs data that name their clients"),
        (NATURAL, {'num_clients': 8}, "num_clients=8, but data set 'toy' has 7"),
        (alone, {'num_labeled': 690}, r'client \d has no unlabeled image'),
    ):
        with pytest.raises(UserError, match=message):
            make(dataset, partition='natural', **changes)
    for changes in ({'mismatch': 0.5}, {'labeled_partition': 'uniform'}):
        with pytest.raises(UserError, match=f'{next(iter(changes))}=.* moves images, but clients have their own'):
            config_lib.check(config_of(partition='natural', client_labels=40, batch_size=64, **changes))
