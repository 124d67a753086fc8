"""Which images have labels at the clients, by the rules of the package and by those of users."""

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from tests.partitions import SKEWED, class_counts, config_of, dataset_of


def test_client_labels_are_stratified_and_ignored_at_mu_zero():
    """The images then go unlabeled, or nowhere; that is in the settings, where it decides anything."""
    dataset = dataset_of([500] * 4)
    labels = dataset.train_labels
    used, ignored, dropped = (
        data.make_partition(dataset, config_of(client_labels=60, **changes))
        for changes in ({'mu': 7}, {'mu': 0, 'ignored_labeled': 'unlabeled'}, {'mu': 0})
    )
    np.testing.assert_array_equal(used.server_index, ignored.server_index)
    np.testing.assert_array_equal(used.server_index, dropped.server_index)
    for ours, theirs in zip(dropped.client_index, used.client_index, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert sum(map(len, dropped.client_labeled_index)) == 0
    assert [split.settings.get('ignored_labeled') for split in (used, ignored, dropped)] == [
        None,
        'unlabeled',
        'dropped',
    ]
    assert 'ignored_labeled' not in data.make_partition(dataset, config_of(mu=0)).settings
    assert class_counts(labels, used.server_index, 4).tolist() == [10] * 4
    assert class_counts(labels, np.concatenate(used.client_labeled_index), 4).tolist() == [15] * 4
    assert np.ptp([len(rows) for rows in used.client_labeled_index]) <= 1
    assert sum(map(len, ignored.client_labeled_index)) == 0
    assert sum(map(len, ignored.client_index)) == sum(map(len, used.client_index)) + 60


def test_labels_of_clients_are_dealt_equally_whatever_the_rest():
    """As the authors' code deals them (not on STL-10): to each client the share `client_labels` / N / n of every class,
    round(48 / 12 / 2000 * 500) = 1 image, and the same of all classes, beside unlabeled images by Dirichlet."""
    dataset = dataset_of([500] * 4)
    changes = {'partition': 'dirichlet', 'num_labeled': 100, 'client_labels': 48, 'num_clients': 12}
    same, equal = (data.make_partition(dataset, config_of(**changes, labeled_partition=x)) for x in ('same', 'uniform'))
    theirs = np.array([[round(48 / 12 / 2000 * 500)] * 4] * 12)
    dealt = [class_counts(dataset.train_labels, rows, 4) for rows in equal.client_labeled_index]
    np.testing.assert_array_equal(dealt, theirs)
    skewed = np.array([class_counts(dataset.train_labels, rows, 4) for rows in same.client_labeled_index])
    draws = rng.host(0, 'partition', 'dirichlet').dirichlet([0.1] * 4, 12)
    assert np.abs(skewed - draws / draws.sum(axis=0) * 12).max() <= 1 + 1e-6  # 48 labels are 12 of every class
    np.testing.assert_array_equal(same.server_index, equal.server_index)
    for ours, other in zip(same.client_index, equal.client_index, strict=True):
        np.testing.assert_array_equal(ours, other)
    held = [np.sort(np.concatenate(split.client_labeled_index)) for split in (same, equal)]
    np.testing.assert_array_equal(*held)
    assert [split.settings['labeled_partition'] for split in (same, equal)] == ['same', 'uniform']
    for none in ({}, {'client_labels': 40, 'mu': 0}, {'client_labels': -1}):
        assert 'labeled_partition' not in data.make_partition(dataset, config_of(**none)).settings


def test_labels_of_clients_by_dirichlet_beside_equal_shares():
    """The rest has no known class and goes equally, as on STL-10 in the authors' code; alpha is in the settings."""
    dataset = dataset_of([100] * 4, unknown=700)
    changes = {'num_labeled': 400, 'client_labels': 200, 'labeled_partition': 'dirichlet', 'alpha': 0.5}
    made = data.make_partition(dataset, config_of(**changes))
    assert [len(rows) for rows in made.client_index] == [100] * 7
    draws = rng.host(0, 'partition', 'labeled', 'dirichlet').dirichlet([0.5] * 4, 7)
    held = np.array([class_counts(dataset.train_labels, rows, 4) for rows in made.client_labeled_index])
    assert np.abs(held - draws / draws.sum(axis=0) * 50).max() <= 1 + 1e-6
    assert made.settings['alpha'] == 0.5


def spoiled(sizes, **cells):
    """Equal counts [7, 5] of five sizes that 7 divides, but for some cells, 'client_class'."""
    counts = np.tile(sizes // 7, (7, 1))
    for cell, value in cells.items():
        counts[tuple(map(int, cell[1:].split('_')))] = value
    return counts


@pytest.mark.parametrize(
    'rule',
    [
        lambda sizes: None,
        lambda sizes: spoiled(sizes).T,
        lambda sizes: spoiled(sizes)[:, :4],
        lambda sizes: spoiled(sizes) * 1.0,
        lambda sizes: spoiled(sizes, c2_1=-2, c3_1=22),
        lambda sizes: spoiled(sizes, c6_3=11),
        lambda sizes: spoiled(sizes, c0_4=1),
    ],
)
def test_a_rule_from_outside_that_returns_something_else_is_refused(monkeypatch, rule):
    dataset, config = dataset_of([80] * 4), config_of(partition='bad', num_labeled=40)  # 70 of each class are dealt
    monkeypatch.setitem(data.PARTITIONS, 'bad', lambda sizes, chosen: spoiled(sizes))
    assert [len(rows) for rows in data.make_partition(dataset, config).client_index] == [40] * 7
    monkeypatch.setitem(data.PARTITIONS, 'bad', lambda sizes, chosen: rule(sizes))
    with pytest.raises(UserError, match=r"federation\.partition='bad': .*return integers \[7, 5\]"):
        data.make_partition(dataset, config)


def test_a_rule_from_outside_may_use_up_the_sizes_that_it_gets(monkeypatch):
    def in_turn(sizes, settings):
        counts = np.zeros((settings.num_clients, len(sizes)), int)
        while sizes.any():
            counts[counts.sum(axis=1).argmin()] += sizes > 0
            sizes -= sizes > 0
        return counts

    monkeypatch.setitem(data.PARTITIONS, 'in_turn', in_turn)
    made = data.make_partition(dataset_of([80] * 4), config_of(partition='in_turn', num_labeled=40))
    assert [len(rows) for rows in made.client_index] == [40] * 7


@pytest.mark.parametrize('partition', ['uniform', 'dirichlet'])
def test_where_the_server_has_no_phase_all_images_with_labels_at_the_clients_are_theirs(partition):
    """700 images, none set aside; with K_s above 0 the server keeps its 100."""
    dataset = dataset_of(SKEWED)
    changes = {'client_labels': -1, 'partition': partition, 'labeled_split': 'balanced', 'num_labeled': 300}
    made = data.make_partition(dataset, config_of(**changes, k_s=0))
    assert (len(made.server_index), made.settings['num_labeled']) == (0, 0)
    assert sorted(np.concatenate(made.client_index).tolist()) == list(range(700))
    assert data.describe(made, dataset.train_labels).sum(axis=0).tolist() == SKEWED
    other = data.make_partition(dataset, config_of(**changes | {'num_labeled': 5}, k_s=0))
    assert other.content_hash == made.content_hash
    partition_with_server = data.make_partition(dataset, config_of(client_labels=-1, partition=partition))
    assert (len(partition_with_server.server_index), sum(map(len, partition_with_server.client_index))) == (100, 600)


def test_unknown_labels_are_dealt_equally_and_never_labeled():
    dataset = dataset_of([100] * 3, unknown=1000)
    made = data.make_partition(dataset, config_of(num_labeled=300))
    assert made.server_index.tolist() == list(range(300))
    assert sorted(len(rows) for rows in made.client_index) == [142, 143, 143, 143, 143, 143, 143]
    assert data.describe(made, dataset.train_labels).sum() == 0


def test_all_labels_at_the_clients(tmp_path):
    """The server may be left without, and a file of such a split can be read; with a server phase -1 splits as 0."""
    dataset, config = dataset_of(SKEWED), config_of(client_labels=100, k_s=0)
    made = data.make_partition(dataset, config)
    assert (len(made.server_index), sum(map(len, made.client_labeled_index))) == (0, 100)
    data.save(made, tmp_path / 'all.npz')
    assert data.load_for(tmp_path / 'all.npz', dataset, config).content_hash == made.content_hash
    none, every = (data.make_partition(dataset, config_of(client_labels=count)) for count in (0, -1))
    assert none.content_hash == every.content_hash
