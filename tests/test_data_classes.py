"""The rules 'dirichlet_class' and 'classes', and the data of Fed-SHVR's and SemiFL's experiments made by them."""

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from tests.binomial import near
from tests.partitions import SKEWED, config_of, dataset_of, held, loop

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # training images of each digit
# 600 labels, 60 of every digit, at the clients; a client's batch is half labeled, half unlabeled
SHVR = {'num_labeled': 600, 'client_labels': 600, 'labeled_split': 'balanced', 'num_clients': 10, 'k_s': 0, 'mu': 1}


@pytest.mark.parametrize(
    ('alpha', 'clients', 'least', 'most'), [(0.1, 9, 10, 0), (0.5, 12, 20, 0), (0.3, 6, 60, 140), (0.01, 5, 0, 0)]
)
def test_dirichlet_class_is_the_loop_of_the_authors(alpha, clients, least, most):
    dataset, draws = dataset_of(SKEWED), []
    for seed in range(3):
        changes = {'partition': 'dirichlet_class', 'alpha': alpha, 'num_clients': clients, 'min_images': least}
        config = config_of(**changes, max_images=most, seed=seed)
        made = data.make_partition(dataset, config)
        # 100 labels of 700 images by class frequency: 43, 24, 17, 9, 7
        sizes = np.array(SKEWED) - [np.sum(dataset.train_labels[made.server_index] == k) for k in range(5)]
        expected, tries = loop(rng.host(seed, 'partition', 'dirichlet_class'), sizes, clients, alpha, least, most)
        draws.append(tries)
        empty = np.sum(expected.sum(axis=1) == 0)
        ours = held(dataset, made)
        if not empty:
            np.testing.assert_array_equal(ours, expected)
        np.testing.assert_array_equal(ours.sum(axis=0), sizes)
        assert np.abs(ours - expected).sum() == 2 * empty  # who has nothing got one image of somebody else's
        assert ours.sum(axis=1).min() >= max(1, least)
        settings = {'min_images': least, 'max_images': most, 'alpha': alpha}
        assert made.settings.items() >= settings.items()
    assert least == 0 or max(draws) > 1, 'no case was drawn again'


def test_the_limits_are_part_of_the_split():
    """Of its hash, even where they change no image; and only of splits by this rule."""
    dataset = dataset_of(SKEWED)
    made = [
        data.make_partition(dataset, config_of(partition='dirichlet_class', alpha=5.0, min_images=least))
        for least in (1, 2)
    ]
    for ours, theirs in zip(*(split.client_index for split in made), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert made[0].content_hash != made[1].content_hash
    for rule in ('uniform', 'dirichlet'):
        same = [data.make_partition(dataset, config_of(partition=rule, min_images=least)) for least in (1, 2)]
        assert same[0].content_hash == same[1].content_hash
        assert not {'min_images', 'max_images', 'min_labeled', 'classes_per_client'} & set(same[0].settings)


def test_splits_of_the_older_rules_are_as_they_were():
    """Hashes from before the rules of this file, which must not change for who keeps a partition file."""
    assert {
        data.make_partition(dataset_of(SKEWED), config_of(**changes)).content_hash[:16]
        for changes in (
            {},
            {'partition': 'dirichlet'},
            {'partition': 'dirichlet', 'client_labels': 48},
            {'partition': 'dirichlet', 'client_labels': 48, 'labeled_partition': 'uniform'},
            {'client_labels': 40, 'mu': 0},
            {'partition': 'dirichlet', 'client_labels': -1, 'k_s': 0},
        )
    } == {
        'a689888a04aab86c',
        'ae7e5d4fb5cca5a5',
        '381bad689cacc4a3',
        '8ce08816bf7ed36a',
        '07eb25aad7614854',
        '6c3453789f057cdf',
    }


# --- classes


@pytest.mark.parametrize('seed', [0, 1, 2])
@pytest.mark.parametrize(
    ('labels', 'clients', 'each', 'holders', 'entries', 'sums'),
    [
        (600, 10, 2, {2}, {30}, {60}),  # two digits for each client, each digit at two clients
        (4000, 40, 6, {24}, {16, 17}, {100}),  # 400 / 24
        (1000, 7, 3, {2, 3}, {33, 34, 50}, None),  # 21 places for 10 classes of 100
        (100, 5, 10, {5}, {2}, {20}),
        (100, 10, 1, {1}, {10}, {10}),
    ],
)
def test_every_client_has_so_many_classes_and_every_class_its_clients(
    labels, clients, each, holders, entries, sums, seed
):
    dataset = dataset_of([500] * 10)
    changes = {'labeled_partition': 'classes', 'classes_per_client': each, 'num_clients': clients, 'seed': seed}
    changes |= {'num_labeled': labels, 'client_labels': labels, 'labeled_split': 'balanced', 'mu': 1, 'k_s': 0}
    made = data.make_partition(dataset, config_of(**changes))
    counts = held(dataset, made, labeled=True)
    assert ((counts > 0).sum(axis=1) == each).all()
    assert set((counts > 0).sum(axis=0)) == holders
    assert set(counts[counts > 0]) <= entries
    assert (counts.sum(axis=0) == labels // 10).all()
    assert sums is None or set(counts.sum(axis=1)) == sums
    assert made.settings['classes_per_client'] == each
    assert set(held(dataset, made).sum(axis=1)) <= {(5000 - labels) // clients, -(-(5000 - labels) // clients)}


def test_the_order_of_clients_means_nothing():
    """Seven clients with one of five classes: two classes have two clients, and each client one of these equally often,
    in four splits of seven."""
    dataset, changes = dataset_of([50] * 5), {'partition': 'classes', 'classes_per_client': 1, 'num_clients': 7}
    shared = np.zeros(7, int)
    for seed in range(300):
        holds = held(dataset, data.make_partition(dataset, config_of(**changes, seed=seed))) > 0
        shared += (holds & (holds.sum(axis=0) == 2)).any(axis=1)
    assert all(near(count, 4 / 7, 300) for count in shared), shared


def test_labels_of_the_same_classes_as_the_rest():
    """With 'same', the labels of a client are of the classes of its unlabeled images."""
    dataset, labels = dataset_of([500] * 10), {'num_labeled': 200, 'client_labels': 100, 'labeled_split': 'balanced'}
    changes = {'partition': 'classes', 'classes_per_client': 3, 'num_clients': 10, **labels}
    made = data.make_partition(dataset, config_of(**changes))
    unlabeled, labeled = held(dataset, made), held(dataset, made, labeled=True)
    np.testing.assert_array_equal(unlabeled > 0, labeled > 0)
    assert set(unlabeled[unlabeled > 0]) == {160}  # 480 at three clients
    assert set(labeled.sum(axis=1)) == {10}
    other = data.make_partition(dataset, config_of(**changes, labeled_partition='classes'))
    np.testing.assert_array_equal(held(dataset, other), unlabeled)
    assert ((held(dataset, other, labeled=True) > 0) != (labeled > 0)).any()  # a draw of its own


def test_labels_in_the_shares_of_dirichlet_class():
    """Every class of labels in proportion to the unlabeled images, up to rounding; a client may have none."""
    dataset, changes = dataset_of([500] * 4), {'partition': 'dirichlet_class', 'num_clients': 8, 'client_labels': 80}
    made = data.make_partition(dataset, config_of(**changes))
    unlabeled = held(dataset, made)
    shares = unlabeled / unlabeled.sum(axis=0) * 20
    assert np.abs(held(dataset, made, labeled=True) - shares).max() < 1
    assert 'min_labeled' not in made.settings


# --- Fed-SHVR's MNIST: tau_k = floor(E M_k / B_u) with E = 2 and B_u = 32 is given as 371, and in [270, 500]


def steps(made):
    return [2 * len(rows) // 32 for rows in made.client_index]


def test_the_equal_split_of_fed_shvr():
    dataset = dataset_of(MNIST)
    made = data.make_partition(dataset, config_of(**SHVR))
    assert [len(rows) for rows in made.client_index] == [5940] * 10
    assert steps(made) == [371] * 10
    labeled = held(dataset, made, labeled=True)
    assert (labeled == 6).all()


@pytest.mark.parametrize('seed', range(3))
def test_the_unequal_split_of_fed_shvr(seed):
    """Two digits of labels for every client; the rest by Dir_10(0.1), between 270 and 500 steps."""
    dataset = dataset_of(MNIST)
    limits = {'min_images': 270 * 16, 'max_images': 500 * 16 + 15}
    changes = {**SHVR, 'partition': 'dirichlet_class', 'alpha': 0.1, **limits, 'labeled_partition': 'classes'}
    made = data.make_partition(dataset, config_of(**changes, seed=seed))
    assert sum(map(len, made.client_index)) == 59_400
    assert min(steps(made)) >= 270
    assert max(steps(made)) <= 500
    assert (np.sort(held(dataset, made, labeled=True), axis=1) == [0] * 8 + [30] * 2).all()
    everyone = np.concatenate([made.server_index, *made.client_index, *made.client_labeled_index])
    assert np.array_equal(np.sort(everyone), np.arange(60_000))


# --- what cannot be

UNEVEN = {'partition': 'dirichlet_class', 'num_clients': 6}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({**UNEVEN, 'min_images': 101}, r'6 clients with 101 to 600 of 600 images each cannot be; .*min_images'),
        ({**UNEVEN, 'max_images': 99}, r'clients with \d+ to 99 of 600 images each cannot be'),
        (
            {**UNEVEN, 'min_images': 100, 'alpha': 0.5},
            'partition=.dirichlet_class.: .* with 100 to 600 .*: not in 50 draws; .* alpha above 0.5',
        ),
        ({**UNEVEN, 'min_images': 0, 'max_images': 100}, 'with 0 to 100 of 600 images each: not in 50 draws'),
        ({'partition': 'classes', 'classes_per_client': 6}, r'classes_per_client=6: .*5 classes; use 1 to 5'),
        ({'partition': 'classes', 'classes_per_client': 1, 'num_clients': 4}, r'=1: 4 clients .* use 2 to 5'),
    ],
)
def test_a_split_that_cannot_be_is_one_clear_line(changes, message, monkeypatch):
    monkeypatch.setattr('semisfl_jax.data.partitioners.DRAWS', 50)
    with pytest.raises(UserError, match=message) as caught:
        data.make_partition(dataset_of(SKEWED), config_of(**changes))
    assert str(caught.value).startswith('config.')
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('rule', ['dirichlet', 'dirichlet_class', 'classes'])
def test_uneven_rules_need_known_labels(rule):
    with pytest.raises(UserError, match=f"partition is '{rule}', but the labels of 10 training images are unknown"):
        data.make_partition(dataset_of(SKEWED, unknown=10), config_of(partition=rule))
    labels = {'labeled_partition': rule, 'client_labels': 80, 'min_labeled': 0}
    made = data.make_partition(dataset_of(SKEWED, unknown=10), config_of(**labels))
    assert sum(map(len, made.client_labeled_index)) == 80
