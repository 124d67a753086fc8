"""Labeled and unlabeled images dealt apart: two rules, two draws, and classes of which a client has no label."""

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import partition
from tests.partitions import SKEWED, config_of, dataset_of, held, loop

# FedDure's split in small: 50 labels of every class at the clients, 450 images without
FEDDURE = {'num_labeled': 200, 'client_labels': 200, 'labeled_split': 'balanced', 'num_clients': 8, 'k_s': 0, 'mu': 1}
# Fed-SHVR's CIFAR-10: 100 labels of six classes for each of 40 clients
SHVR = {'num_labeled': 4000, 'client_labels': 4000, 'labeled_split': 'balanced', 'num_clients': 40, 'k_s': 0, 'mu': 1}
SHVR |= {'labeled_partition': 'classes', 'classes_per_client': 6}


def make(dataset, **changes):
    """A partition, and what clients hold: unlabeled and labeled [N, K]. Nothing is held twice."""
    made = data.make_partition(dataset, config_of(**changes))
    rows = np.concatenate([made.server_index, *made.client_index, *made.client_labeled_index])
    assert len(np.unique(rows)) == len(rows)
    return made, held(dataset, made), held(dataset, made, labeled=True)


# --- two rules


def test_equal_labels_beside_an_uneven_rest():
    """FedDure's (IID,DIR): 50 labels of a class are 6 or 7 for each of 8 clients; the rest as without labels."""
    dataset = dataset_of([500] * 4)
    changes = {**FEDDURE, 'partition': 'dirichlet_class', 'alpha': 0.5}
    made, unlabeled, labeled = make(dataset, **changes, labeled_partition='uniform')
    assert set(labeled.ravel()) == {6, 7}
    assert set(labeled.sum(axis=1)) == {25}
    expected, _ = loop(rng.host(0, 'partition', 'dirichlet_class'), [450] * 4, 8, 0.5, 10, 0)
    np.testing.assert_array_equal(unlabeled, expected)
    _, same, _ = make(dataset, **changes)
    np.testing.assert_array_equal(same, unlabeled)
    assert made.settings['labeled_partition'] == 'uniform'


@pytest.mark.parametrize('labeled_alpha', [0.0, 2.0])
def test_two_draws(labeled_alpha):
    """FedDure's (DIR,DIR): a stream of its own for the labels, 10 of them at least, with a concentration of its own."""
    dataset = dataset_of([500] * 4)
    changes = {**FEDDURE, 'partition': 'dirichlet_class', 'labeled_partition': 'dirichlet_class', 'alpha': 0.5}
    made, unlabeled, labeled = make(dataset, **changes, labeled_alpha=labeled_alpha)
    expected, _ = loop(rng.host(0, 'partition', 'dirichlet_class'), [450] * 4, 8, 0.5, 10, 0)
    np.testing.assert_array_equal(unlabeled, expected)
    stream = rng.host(0, 'partition', 'labeled', 'dirichlet_class')
    expected, _ = loop(stream, [50] * 4, 8, labeled_alpha or 0.5, 10, 0)
    np.testing.assert_array_equal(labeled, expected)
    assert labeled.sum(axis=1).min() >= 10
    assert made.settings['min_labeled'] == 10
    assert made.settings.get('labeled_alpha', 0.0) == labeled_alpha


def test_dirichlet_draws_for_the_labels_what_the_rest_does_not_see():
    """Shares of labels by 'same' are those of the rest; by the named rule they are another draw of the same law."""
    dataset, changes = dataset_of([500] * 4), {**FEDDURE, 'partition': 'dirichlet', 'alpha': 0.5}
    _, unlabeled, same = make(dataset, **changes)
    assert np.abs(same - unlabeled / 9).max() < 1.2  # 50 and 450 of each class in equal shares, each rounded
    made, rest, own = make(dataset, **changes, labeled_partition='dirichlet', labeled_alpha=0.1)
    np.testing.assert_array_equal(rest, unlabeled)
    draws = rng.host(0, 'partition', 'labeled', 'dirichlet').dirichlet([0.1] * 4, 8)
    assert np.abs(own - draws / draws.sum(axis=0) * 50).max() <= 1 + 1e-6
    assert (made.settings['alpha'], made.settings['labeled_alpha']) == (0.5, 0.1)
    made, _, _ = make(dataset, **changes | {'partition': 'uniform'}, labeled_partition='dirichlet', labeled_alpha=0.1)
    assert (made.settings['alpha'], made.settings['labeled_alpha']) == (None, 0.1)


def test_a_rule_from_outside_gets_a_stream_for_each_kind(monkeypatch):
    seen = []

    def rule(sizes, settings):
        seen.append((int(sizes.sum()), settings.stream, settings.alpha))
        return data.PARTITIONS['uniform'](sizes, settings)

    monkeypatch.setitem(data.PARTITIONS, 'mine', rule)
    make(dataset_of([500] * 4), **FEDDURE, partition='mine', labeled_partition='mine', labeled_alpha=3.0)
    assert seen == [(1800, ('partition',), 0.1), (200, ('partition', 'labeled'), 3.0)]


def test_without_labels_at_clients_their_settings_change_nothing():
    plain = data.make_partition(dataset_of(SKEWED), config_of())
    apart = {'labeled_partition': 'classes', 'labeled_alpha': 2.0, 'min_labeled': 3, 'classes_per_client': 1}
    for changes in ({}, {'client_labels': -1}):
        made = data.make_partition(dataset_of(SKEWED), config_of(**changes, **apart))
        assert made.content_hash == plain.content_hash


@pytest.mark.parametrize('rule', ['uniform', 'classes', 'dirichlet_class'])
def test_clients_who_know_all_labels_hold_what_they_would_with_some(rule):
    """Upper bounds (FedDure's FedAvg-SL, Fed-SHVR's FedAvg on all labels) share the images of the other methods."""
    dataset, changes = dataset_of([500] * 4), {**FEDDURE, 'partition': 'dirichlet', 'labeled_partition': rule}
    some, _, _ = make(dataset, **changes)
    every, _, _ = make(dataset, **changes | {'client_labels': -1, 'k_s': 0})
    for known, rest, labeled in zip(every.client_index, some.client_index, some.client_labeled_index, strict=True):
        assert known.tolist() == sorted([*rest.tolist(), *labeled.tolist()])
    assert sum(map(len, every.client_labeled_index)) == len(every.server_index) == 0
    same, _, _ = make(dataset, **changes | {'client_labels': -1, 'k_s': 0, 'labeled_partition': 'same'})
    assert same.settings['num_labeled'] == 0
    assert 'all_labels' not in same.settings


# --- how many


def test_some_of_the_unlabeled_images():
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


# --- mismatch


@pytest.mark.parametrize('share', [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize('rule', ['uniform', 'dirichlet_class'])
def test_a_share_of_the_images_is_of_classes_without_labels(rule, share):
    """Fed-SHVR's r: sizes are those of the rule, and round(r n) of n images are of the other four classes."""
    dataset, changes = dataset_of([5000] * 10), {**SHVR, 'partition': rule, 'alpha': 0.5, 'num_unlabeled': 20_000}
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
        spread = np.where(parts, np.abs(unlabeled - size[:, None] / classes), 0)
        assert spread.max() < 1
    assert made.settings['mismatch'] == share


def test_all_images_are_used_even_where_parts_cannot_be_even():
    """All 4,600 of each class; what a client takes is proportional in rows and columns, not equal."""
    dataset = dataset_of([5000] * 10)
    _, unlabeled, labeled = make(dataset, **SHVR, partition='dirichlet_class', alpha=0.5, mismatch=0.5)
    assert (unlabeled.sum(axis=0) == 4600).all()
    totals, own = unlabeled.sum(axis=1), labeled > 0
    assert np.where(own, 0, unlabeled).sum(axis=1).tolist() == [round(0.5 * total) for total in totals]
    assert totals.max() > 2 * totals.min()


def test_labels_in_the_shares_of_the_rest_keep_the_rule():
    """With 'same', labels go where the rule would have put the rest, and the rest then follows them."""
    dataset = dataset_of([500] * 6)
    changes = {'num_labeled': 300, 'client_labels': 240, 'num_clients': 9, 'partition': 'classes', 'num_unlabeled': 900}
    _, unlabeled, labeled = make(dataset, **changes, mismatch=1.0)
    assert ((labeled > 0).sum(axis=1) == 2).all()
    assert not unlabeled[labeled > 0].any()
    assert set(unlabeled.sum(axis=1)) == {100}
    assert set(unlabeled[labeled == 0]) == {25}


def test_nobody_is_empty_however_small_a_share():
    """As without: sizes are those of the rule, after whoever has nothing got an image."""
    dataset = dataset_of([500] * 6)
    changes = {'num_labeled': 300, 'client_labels': 300, 'k_s': 0, 'labeled_partition': 'classes', 'num_clients': 30}
    _, unlabeled, labeled = make(dataset, **changes, partition='dirichlet', alpha=0.01, num_unlabeled=60, mismatch=0.0)
    assert unlabeled.sum(axis=1).min() == 1
    assert unlabeled.sum() == 60
    assert not unlabeled[labeled == 0].any()


LABELS = {'client_labels': 90, 'labeled_partition': 'classes'}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        # 6 labels of class 4 (90 * 49 / 700), and of the others more than 7
        ({'client_labels': 90, 'mismatch': 0.2}, 'mismatch=0.2: there are too few images of the classes'),
        (
            {**LABELS, 'client_labels': 2, 'num_clients': 3, 'mismatch': 0.5},
            'mismatch=0.5: there are too few',
        ),
        # One class for each of five clients, who take 120 images each of their own
        (
            {**LABELS, 'num_clients': 5, 'classes_per_client': 1, 'mismatch': 0.0},
            r'mismatch=0.0: there are too few .* \(data.num_unlabeled\)',
        ),
        (
            {**LABELS, 'labeled_partition': 'dirichlet_class', 'min_labeled': 13},  # for 7 clients 91
            'labeled_partition=.dirichlet_class.: 7 clients with 13 to 90 of 90 images each cannot be; .*min_labeled',
        ),
        (
            {**LABELS, 'labeled_partition': 'dirichlet_class', 'min_labeled': 12, 'labeled_alpha': 0.3},
            'labeled_partition=.* with 12 to 90 of 90 .*: not in 50 draws; .* alpha above 0.3',
        ),
        ({'num_unlabeled': 601}, 'num_unlabeled=601: only 600 unlabeled images are left'),
    ],
)
def test_what_cannot_be_is_one_clear_line(changes, message, monkeypatch):
    monkeypatch.setattr('semisfl_jax.data.partitioners.DRAWS', 50)
    with pytest.raises(UserError, match=message) as caught:
        data.make_partition(dataset_of(SKEWED), config_of(**changes))
    assert str(caught.value).startswith('config.')
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({**LABELS, 'mismatch': -0.5}, 'federation.mismatch=-0.5: use a share'),
        ({'mismatch': 0.5}, 'federation.mismatch=0.5 needs labels'),
        ({**LABELS, 'mu': 0, 'mismatch': 0.0}, 'federation.mismatch=0.0 needs labels'),
        ({'client_labels': -1, 'mismatch': 0.0}, 'federation.mismatch=0.0 needs labels'),
        ({'num_unlabeled': 6}, 'data.num_unlabeled=6 is less than federation.num_clients=7'),
        ({'min_images': 20, 'max_images': 19}, 'federation.min_images=20 is above federation.max_images=19'),
    ],
)
def test_keys_that_conflict_are_known_without_data(changes, message):
    (fault,) = partition.faults(config_of(**changes))
    assert fault.startswith(message)


def test_fewer_unlabeled_images_help():
    """Of 42 images of class 4, the client that holds it can take no more: five times as many are all that can be."""
    changes = {**LABELS, 'num_clients': 5, 'classes_per_client': 1, 'mismatch': 0.0}
    _, unlabeled, labeled = make(dataset_of(SKEWED), **changes, num_unlabeled=5 * 42)
    assert unlabeled[labeled > 0].tolist() == [42] * 5
    with pytest.raises(UserError, match='too few'):
        make(dataset_of(SKEWED), **changes, num_unlabeled=5 * 43)


def test_mismatch_needs_known_labels():
    with pytest.raises(UserError, match='labels of 10 training images are unknown'):
        make(dataset_of(SKEWED, unknown=10), **LABELS, mismatch=0.5)


# --- files


def test_a_file_with_other_settings_says_which(tmp_path, caplog):
    dataset = dataset_of([500] * 4)
    changes = {**FEDDURE, 'partition': 'dirichlet_class', 'labeled_partition': 'classes', 'alpha': 0.5}
    changes |= {'mismatch': 0.5, 'num_unlabeled': 800}
    made = data.make_partition(dataset, config_of(**changes))
    data.save(made, tmp_path / 'p.npz')
    for other, named in (
        ({}, []),
        ({'mismatch': -1.0}, ['mismatch']),
        ({'mismatch': 0.0, 'min_images': 5}, ['min_images', 'mismatch']),
        ({'num_unlabeled': 0}, ['num_unlabeled']),
        ({'classes_per_client': 3}, ['classes_per_client']),
        ({'labeled_partition': 'dirichlet', 'labeled_alpha': 1.0}, ['labeled_alpha', 'labeled_partition']),
    ):
        caplog.clear()
        read = data.load_for(tmp_path / 'p.npz', dataset, config_of(**changes | other))
        assert read.content_hash == made.content_hash
        assert [record.getMessage().split('=')[0] for record in caplog.records] == named
