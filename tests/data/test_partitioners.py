"""The rules 'dirichlet_class' and 'classes', labeled and unlabeled images dealt apart, and images of other classes than
the labels: the data of Fed-SHVR's, FedDure's and SemiFL's experiments."""

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core import rng
from tests.helpers.binomial import near
from tests.helpers.partitions import SKEWED, config_of, dataset_of, held, loop

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # training images of each digit
AT_CLIENTS = {'labeled_split': 'balanced', 'k_s': 0, 'mu': 1}
# 600 labels, 60 of every digit, at the clients; a client's batch is half labeled, half unlabeled
SHVR_MNIST = {**AT_CLIENTS, 'num_labeled': 600, 'client_labels': 600, 'num_clients': 10}
# 100 labels of six classes for each of 40 clients
SHVR_CIFAR = {**AT_CLIENTS, 'num_labeled': 4000, 'client_labels': 4000, 'num_clients': 40}
SHVR_CIFAR |= {'labeled_partition': 'classes', 'classes_per_client': 6}
# FedDure's split in small: 50 labels of every class at the clients, 450 images without
FEDDURE = {**AT_CLIENTS, 'num_labeled': 200, 'client_labels': 200, 'num_clients': 8}


def make(dataset, **changes):
    """A partition, and what clients hold: unlabeled and labeled [N, K]. Nothing is held twice."""
    made = data.make_partition(dataset, config_of(**changes))
    rows = np.concatenate([made.server_index, *made.client_index, *made.client_labeled_index])
    assert len(np.unique(rows)) == len(rows)
    return made, held(dataset, made), held(dataset, made, labeled=True)


# --- dirichlet_class


@pytest.mark.parametrize(('alpha', 'clients', 'least', 'most'), [(0.1, 9, 10, 0), (0.3, 6, 60, 140), (0.01, 5, 0, 0)])
def test_dirichlet_class_is_the_loop_of_the_authors(alpha, clients, least, most):
    dataset, draws = dataset_of(SKEWED), []
    for seed in range(3):
        changes = {'partition': 'dirichlet_class', 'alpha': alpha, 'num_clients': clients, 'min_images': least}
        made, ours, _ = make(dataset, **changes, max_images=most, seed=seed)
        # 100 labels of 700 images by class frequency: 43, 24, 17, 9, 7
        sizes = np.array(SKEWED) - [np.sum(dataset.train_labels[made.server_index] == k) for k in range(5)]
        expected, tries = loop(rng.host(seed, 'partition', 'dirichlet_class'), sizes, clients, alpha, least, most)
        draws.append(tries)
        empty = np.sum(expected.sum(axis=1) == 0)
        if not empty:
            np.testing.assert_array_equal(ours, expected)
        np.testing.assert_array_equal(ours.sum(axis=0), sizes)
        assert np.abs(ours - expected).sum() == 2 * empty  # who has nothing got one image of somebody else's
        assert ours.sum(axis=1).min() >= max(1, least)
        settings = {'min_images': least, 'max_images': most, 'alpha': alpha}
        assert made.settings.items() >= settings.items()
    assert least == 0 or max(draws) > 1, 'no case was drawn again'


# --- classes


@pytest.mark.parametrize('seed', [0, 1])
@pytest.mark.parametrize(
    ('labels', 'clients', 'each', 'holders', 'entries', 'sums'),
    [
        (4000, 40, 6, {24}, {16, 17}, {100}),  # 400 / 24
        (1000, 7, 3, {2, 3}, {33, 34, 50}, None),  # 21 places for 10 classes of 100
        (100, 10, 1, {1}, {10}, {10}),
    ],
)
def test_every_client_has_so_many_classes_and_every_class_its_clients(
    labels, clients, each, holders, entries, sums, seed
):
    changes = {'labeled_partition': 'classes', 'classes_per_client': each, 'num_clients': clients, 'seed': seed}
    changes |= {**AT_CLIENTS, 'num_labeled': labels, 'client_labels': labels}
    made, unlabeled, counts = make(dataset_of([500] * 10), **changes)
    assert ((counts > 0).sum(axis=1) == each).all()
    assert set((counts > 0).sum(axis=0)) == holders
    assert set(counts[counts > 0]) <= entries
    assert (counts.sum(axis=0) == labels // 10).all()
    assert sums is None or set(counts.sum(axis=1)) == sums
    assert made.settings['classes_per_client'] == each
    assert set(unlabeled.sum(axis=1)) <= {(5000 - labels) // clients, -(-(5000 - labels) // clients)}


def test_the_order_of_clients_means_nothing():
    """Seven clients with one of five classes: two classes have two clients, and each client one of these equally often,
    in four splits of seven."""
    dataset, changes = dataset_of([50] * 5), {'partition': 'classes', 'classes_per_client': 1, 'num_clients': 7}
    shared = np.zeros(7, int)
    for seed in range(300):
        holds = held(dataset, data.make_partition(dataset, config_of(**changes, seed=seed))) > 0
        shared += (holds & (holds.sum(axis=0) == 2)).any(axis=1)
    assert all(near(count, 4 / 7, 300) for count in shared), shared


# --- two rules


def test_labels_of_the_same_classes_as_the_rest():
    """With 'same', the labels of a client are of the classes of its unlabeled images."""
    dataset, labels = dataset_of([500] * 10), {'num_labeled': 200, 'client_labels': 100, 'labeled_split': 'balanced'}
    changes = {'partition': 'classes', 'classes_per_client': 3, 'num_clients': 10, **labels}
    _, unlabeled, labeled = make(dataset, **changes)
    np.testing.assert_array_equal(unlabeled > 0, labeled > 0)
    assert set(unlabeled[unlabeled > 0]) == {160}  # 480 at three clients
    assert set(labeled.sum(axis=1)) == {10}
    _, rest, own = make(dataset, **changes, labeled_partition='classes')
    np.testing.assert_array_equal(rest, unlabeled)
    assert ((own > 0) != (labeled > 0)).any()  # a draw of its own


@pytest.mark.parametrize('labeled_alpha', [0.0, 2.0])
def test_labels_and_images_are_drawn_apart(labeled_alpha):
    """FedDure's (DIR,DIR): a stream of its own for the labels, 10 of them at least, with a concentration of its own."""
    changes = {**FEDDURE, 'partition': 'dirichlet_class', 'labeled_partition': 'dirichlet_class', 'alpha': 0.5}
    made, unlabeled, labeled = make(dataset_of([500] * 4), **changes, labeled_alpha=labeled_alpha)
    expected, _ = loop(rng.host(0, 'partition', 'dirichlet_class'), [450] * 4, 8, 0.5, 10, 0)
    np.testing.assert_array_equal(unlabeled, expected)
    stream = rng.host(0, 'partition', 'labeled', 'dirichlet_class')
    expected, _ = loop(stream, [50] * 4, 8, labeled_alpha or 0.5, 10, 0)
    np.testing.assert_array_equal(labeled, expected)
    assert made.settings['min_labeled'] == 10
    assert made.settings.get('labeled_alpha', 0.0) == labeled_alpha


def test_dirichlet_draws_for_the_labels_what_the_rest_does_not_see():
    """Shares of labels by 'same' are those of the rest; by the named rule they are another draw of the same law."""
    dataset, changes = dataset_of([500] * 4), {**FEDDURE, 'partition': 'dirichlet', 'alpha': 0.5}
    own_rule = {'labeled_partition': 'dirichlet', 'labeled_alpha': 0.1}
    _, unlabeled, same = make(dataset, **changes)
    assert np.abs(same - unlabeled / 9).max() < 1.2  # 50 and 450 of each class in equal shares, each rounded
    made, rest, own = make(dataset, **changes, **own_rule)
    np.testing.assert_array_equal(rest, unlabeled)
    draws = rng.host(0, 'partition', 'labeled', 'dirichlet').dirichlet([0.1] * 4, 8)
    assert np.abs(own - draws / draws.sum(axis=0) * 50).max() <= 1 + 1e-6
    assert (made.settings['alpha'], made.settings['labeled_alpha']) == (0.5, 0.1)
    made, _, _ = make(dataset, **changes | {'partition': 'uniform'}, **own_rule)
    assert (made.settings['alpha'], made.settings['labeled_alpha']) == (None, 0.1)


@pytest.mark.parametrize('rule', ['uniform', 'classes', 'dirichlet_class'])
def test_clients_who_know_all_labels_hold_what_they_would_with_some(rule):
    """Upper bounds (FedDure's FedAvg-SL, Fed-SHVR's FedAvg on all labels) share the images of the other methods."""
    dataset, changes = dataset_of([500] * 4), {**FEDDURE, 'partition': 'dirichlet', 'labeled_partition': rule}
    some, _, _ = make(dataset, **changes)
    every, _, _ = make(dataset, **changes | {'client_labels': -1})
    for known, rest, labeled in zip(every.client_index, some.client_index, some.client_labeled_index, strict=True):
        assert known.tolist() == sorted([*rest.tolist(), *labeled.tolist()])
    assert sum(map(len, every.client_labeled_index)) == len(every.server_index) == 0


# --- Fed-SHVR's MNIST: tau_k = floor(E M_k / B_u) with E = 2 and B_u = 32 is given as 371, and in [270, 500]


def test_the_unequal_split_of_fed_shvr():
    """Two digits of labels for every client; the rest by Dir_10(0.1), between 270 and 500 steps."""
    limits = {'min_images': 270 * 16, 'max_images': 500 * 16 + 15}
    changes = {**SHVR_MNIST, 'partition': 'dirichlet_class', 'alpha': 0.1, **limits, 'labeled_partition': 'classes'}
    _, unlabeled, labeled = make(dataset_of(MNIST), **changes)
    steps = 2 * unlabeled.sum(axis=1) // 32
    assert unlabeled.sum() == 59_400
    assert 270 <= steps.min() <= steps.max() <= 500
    assert (np.sort(labeled, axis=1) == [0] * 8 + [30] * 2).all()


# --- how many unlabeled images, and of which classes


def test_a_part_of_the_unlabeled_images_keeps_the_frequencies():
    """600 left of 700, of them 257 146 103 52 42; 300 by frequency are 128.5 73 51.5 26 21: two halves, one goes up."""
    dataset = dataset_of(SKEWED)
    made, unlabeled, _ = make(dataset, num_unlabeled=300)
    assert unlabeled.sum(axis=0).tolist() == [129, 73, 51, 26, 21]
    everything, _, _ = make(dataset)
    np.testing.assert_array_equal(made.server_index, everything.server_index)
    assert set(np.concatenate(made.client_index)) < set(np.concatenate(everything.client_index))
    assert made.settings['num_unlabeled'] == 300
    assert 'num_unlabeled' not in everything.settings
    _, unlabeled, _ = make(dataset_of(SKEWED, unknown=600), num_unlabeled=600)
    assert unlabeled.sum() == 300  # the others are of unknown class
    _, unlabeled, _ = make(dataset, num_unlabeled=7, partition='dirichlet', alpha=0.01)
    assert unlabeled.sum(axis=1).tolist() == [1] * 7  # as many images as clients


@pytest.mark.parametrize('share', [0.0, 0.3, 1.0])
@pytest.mark.parametrize('rule', ['uniform', 'dirichlet_class'])
def test_a_share_of_the_images_is_of_classes_without_labels(rule, share):
    """Fed-SHVR's r: sizes are those of the rule, and round(r n) of n images are of the other four classes."""
    dataset, changes = dataset_of([5000] * 10), {**SHVR_CIFAR, 'partition': rule, 'alpha': 0.5, 'num_unlabeled': 20_000}
    made, unlabeled, labeled = make(dataset, **changes, mismatch=share)
    _, without, same_labels = make(dataset, **changes)
    np.testing.assert_array_equal(labeled, same_labels)
    totals = unlabeled.sum(axis=1)
    np.testing.assert_array_equal(totals, without.sum(axis=1))
    assert rule != 'uniform' or set(totals) == {500}
    own = labeled > 0
    others = np.array([sum(row[~has]) for row, has in zip(unlabeled, own, strict=True)])
    assert others.tolist() == [round(share * total) for total in totals]
    for parts, size, classes in ((own, totals - others, 6), (~own, others, 4)):  # even: no class is short of images
        assert np.where(parts, np.abs(unlabeled - size[:, None] / classes), 0).max() < 1
    assert made.settings['mismatch'] == share


def test_all_images_are_used_even_where_parts_cannot_be_even():
    """All 4,600 of each class; what a client takes is proportional in rows and columns, not equal."""
    dataset = dataset_of([5000] * 10)
    _, unlabeled, labeled = make(dataset, **SHVR_CIFAR, partition='dirichlet_class', alpha=0.5, mismatch=0.5)
    assert (unlabeled.sum(axis=0) == 4600).all()
    totals = unlabeled.sum(axis=1)
    assert np.where(labeled > 0, 0, unlabeled).sum(axis=1).tolist() == [round(0.5 * total) for total in totals]
    assert totals.max() > 2 * totals.min()


def test_labels_in_the_shares_of_the_rest_keep_the_rule():
    """With 'same', labels go where the rule would have put the rest, and the rest then follows them."""
    changes = {'num_labeled': 300, 'client_labels': 240, 'num_clients': 9, 'partition': 'classes', 'num_unlabeled': 900}
    _, unlabeled, labeled = make(dataset_of([500] * 6), **changes, mismatch=1.0)
    assert ((labeled > 0).sum(axis=1) == 2).all()
    assert not unlabeled[labeled > 0].any()
    assert set(unlabeled.sum(axis=1)) == {100}
    assert set(unlabeled[labeled == 0]) == {25}


def test_nobody_is_empty_however_small_a_share():
    """As without: sizes are those of the rule, after whoever has nothing got an image."""
    changes = {'num_labeled': 300, 'client_labels': 300, 'k_s': 0, 'labeled_partition': 'classes', 'num_clients': 30}
    changes |= {'partition': 'dirichlet', 'alpha': 0.01, 'num_unlabeled': 60, 'mismatch': 0.0}
    _, unlabeled, labeled = make(dataset_of([500] * 6), **changes)
    assert unlabeled.sum(axis=1).min() == 1
    assert unlabeled.sum() == 60
    assert not unlabeled[labeled == 0].any()


def test_labels_follow_the_counts_of_a_draw_over_clients():
    """50 labels and 450 other images of each of four classes: 'same' deals a client a ninth of its images as labels."""
    changes = {**FEDDURE, 'partition': 'dirichlet_class', 'alpha': 0.5}
    _, unlabeled, labeled = make(dataset_of([500] * 4), **changes)
    assert np.abs(labeled - unlabeled / 9).max() < 1
