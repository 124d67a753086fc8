"""The split between server and clients, held against arithmetic done here."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.default import get_config
from semisfl_jax import config as config_lib
from semisfl_jax import data, rng
from semisfl_jax.data.apportion import largest_remainder, level
from semisfl_jax.data.dataset import holdout
from semisfl_jax.errors import UserError

SVHN_TRAIN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]  # images per digit, 73,257 in all
SKEWED = [300, 170, 120, 61, 49]
IGNORED = ['unlabeled', 'dropped']


def dataset_of(sizes, unknown=0, seed=0, checksum='c0ffee'):
    """A data set with so many images per class, in random order, and `unknown` ones of unknown label after them."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.append(np.random.default_rng(seed).permutation(labels), np.full(unknown, -1)).astype(np.int32)
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    return data.Dataset(
        'toy', images, labels, images[:5], labels[:5], len(sizes), (0.5,), (0.5,), fake=False, checksum=checksum
    )


def config_of(**changes):
    """`num_clients=5` sets whatever key ends in num_clients."""
    config = get_config()
    config.data.num_labeled = 100
    config.federation.num_clients, config.federation.num_active = 7, 3
    for key, value in changes.items():
        for section in (config, config.data, config.federation):
            if key in section:
                section[key] = value
                break
        else:
            raise KeyError(key)
    return config


def class_counts(labels, rows, classes):
    return np.array([np.sum(labels[rows] == k) for k in range(classes)])


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


def test_largest_remainder_of_nothing_is_equal():
    assert largest_remainder(np.zeros(3), 7).tolist() == [3, 2, 2]


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


def test_dirichlet_is_more_skewed_for_smaller_alpha():
    dataset = dataset_of([1000] * 10)

    def spread(alpha):
        made = data.make_partition(dataset, config_of(partition='dirichlet', alpha=alpha, num_clients=20))
        held = data.describe(made, dataset.train_labels)
        return (held / held.sum(axis=1, keepdims=True)).max(axis=1).mean()

    assert spread(100.0) < 0.2 < spread(1.0) < spread(0.1) < spread(0.01)


def test_no_client_is_empty_however_many_there_are():
    dataset = dataset_of([60] * 5)
    made = data.make_partition(dataset, config_of(partition='dirichlet', alpha=0.01, num_clients=150))
    assert min(map(len, made.client_index)) >= 1
    assert sum(map(len, made.client_index)) == 200


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


def test_a_rule_from_outside_deals_labels(monkeypatch):
    monkeypatch.setitem(data.PARTITIONS, 'first', lambda sizes, chosen: np.eye(7, 1, dtype=int) * sizes)
    config = config_of(client_labels=48, labeled_partition='first')
    config_lib.check(config)
    made = data.make_partition(dataset_of([500] * 4), config)
    assert [len(rows) for rows in made.client_labeled_index] == [48, 0, 0, 0, 0, 0, 0]


def spoiled(sizes, **cells):
    """Equal counts [7, 5] of five sizes that 7 divides, but for some cells, 'client_class'."""
    counts = np.tile(sizes // 7, (7, 1))
    for cell, value in cells.items():
        counts[tuple(map(int, cell[1:].split('_')))] = value
    return counts


@pytest.mark.parametrize(
    ('rule', 'message'),
    [
        (
            lambda sizes: None,
            r'returns None; return an array of integers \[7, 5\]: how many images of 4 classes, and of',
        ),
        (lambda sizes: spoiled(sizes).tolist(), r'returns a list; return an array of integers \[7, 5\]'),
        (lambda sizes: 3, r'returns 3; return an array of integers \[7, 5\]'),
        (lambda sizes: spoiled(sizes).T, r'returns int64 \[5, 7\]; return an array of integers \[7, 5\]'),
        (lambda sizes: spoiled(sizes)[:, :4], r'returns int64 \[7, 4\]; return an array of integers \[7, 5\]'),
        (lambda sizes: spoiled(sizes) * 1.0, r'returns float64 \[7, 5\]; return an array of integers'),
        (lambda sizes: spoiled(sizes) * np.nan, r'returns float64 \[7, 5\]; return an array of integers'),
        (lambda sizes: spoiled(sizes, c2_1=-2, c3_1=22), 'gives client 2 -2 images of class 1; use 0 or more'),
        (lambda sizes: spoiled(sizes, c6_3=11), 'deals 71 images of class 3, but there are 70 to deal; let every'),
        (lambda sizes: spoiled(sizes, c0_4=1), 'deals 1 images of unknown class, but there are 0 to deal'),
        (lambda sizes: spoiled(sizes) * 0, 'deals 0 images of class 0, but there are 70 to deal'),
    ],
)
def test_a_rule_from_outside_that_returns_something_else_is_refused(monkeypatch, rule, message):
    dataset, config = dataset_of([80] * 4), config_of(partition='bad', num_labeled=40)  # 70 of each class are dealt
    monkeypatch.setitem(data.PARTITIONS, 'bad', lambda sizes, chosen: spoiled(sizes))
    assert [len(rows) for rows in data.make_partition(dataset, config).client_index] == [40] * 7
    monkeypatch.setitem(data.PARTITIONS, 'bad', lambda sizes, chosen: rule(sizes))
    with pytest.raises(
        UserError, match=rf"config\.federation\.partition='bad': the rule in data\.PARTITIONS {message}"
    ):
        data.make_partition(dataset, config)


def test_a_rule_from_outside_may_use_up_the_sizes_that_it_gets(monkeypatch):
    def in_turn(sizes, chosen):
        counts = np.zeros((chosen['num_clients'], len(sizes)), int)
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
        ({'num_labeled': 701}, 'num_labeled is 701'),
        ({'num_labeled': 0}, 'num_labeled is 0'),
        ({'num_labeled': 4, 'labeled_split': 'balanced'}, 'each of the 5 classes'),
        ({'num_labeled': 300, 'labeled_split': 'balanced'}, 'needs 60 images of class 4, which has 49'),
        ({'client_labels': 101}, 'client_labels is 101'),
        ({'client_labels': -2}, 'client_labels is -2'),
        ({'mu': -1}, 'mu is -1'),
        ({'partition': 'dirichlet', 'alpha': 0.0}, 'alpha is 0.0'),
        ({'partition': 'dirichlet', 'alpha': -1.0}, 'alpha is -1.0'),
        ({'partition': 'dirichlet', 'alpha': float('nan')}, 'alpha is nan'),
        ({'num_active': 8}, 'num_active is 8'),
        ({'num_active': 0}, 'num_active is 0'),
        ({'num_clients': 0}, 'num_clients is 0'),
        ({'num_clients': 601}, '600 unlabeled images are left'),
        ({'num_labeled': 700}, '0 unlabeled images are left'),
        ({'partition': 'dirichlett'}, "partition is 'dirichlett'"),
        ({'labeled_split': 'equal'}, "labeled_split is 'equal'"),
        ({'labeled_partition': 'equal'}, "labeled_partition is 'equal'"),
        ({'ignored_labeled': 'kept'}, "ignored_labeled is 'kept'"),
        ({'labeled_partition': 'dirichlet', 'client_labels': 9, 'alpha': 0.0}, 'alpha is 0.0'),
    ],
)
def test_impossible_settings_are_one_clear_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        data.make_partition(dataset_of(SKEWED), config_of(**changes))
    assert '\n' not in str(caught.value)


def test_all_labels_at_the_clients(tmp_path):
    """The server may be left without, and a file of such a split can be read; with a server phase -1 splits as 0."""
    dataset, config = dataset_of(SKEWED), config_of(client_labels=100, k_s=0)
    made = data.make_partition(dataset, config)
    assert (len(made.server_index), sum(map(len, made.client_labeled_index))) == (0, 100)
    data.save(made, tmp_path / 'all.npz')
    assert data.load_for(tmp_path / 'all.npz', dataset, config).content_hash == made.content_hash
    none, every = (data.make_partition(dataset, config_of(client_labels=count)) for count in (0, -1))
    assert none.content_hash == every.content_hash


def test_a_file_without_images_for_the_server_is_refused_where_it_needs_some(tmp_path):
    dataset, config = dataset_of(SKEWED), config_of(client_labels=-1, k_s=0)
    made = data.make_partition(dataset, config)
    data.save(made, tmp_path / 'all.npz')
    assert data.load_for(tmp_path / 'all.npz', dataset, config).content_hash == made.content_hash
    with pytest.raises(UserError, match=r'leaves the server without images, but config\.k_s=100 trains on some'):
        data.load_for(tmp_path / 'all.npz', dataset, config_of())


def test_dirichlet_needs_known_labels():
    with pytest.raises(UserError, match='labels of 10 training images are unknown'):
        data.make_partition(dataset_of(SKEWED, unknown=10), config_of(partition='dirichlet'))


def test_holdout_is_a_stratified_fifth():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [100, 50, 26]))
    train, test = holdout(labels)
    assert sorted([*train, *test]) == list(range(176))
    # 36 = ceil(176 / 5), in shares 20.45, 10.23, 5.32: one more goes to the largest remainder.
    assert class_counts(labels, test, 3).tolist() == [21, 10, 5]
    np.testing.assert_array_equal(test, holdout(labels)[1])


# --- files


@pytest.mark.parametrize('changes', [{'ignored_labeled': 'dropped'}, {'ignored_labeled': 'unlabeled'}])
def test_a_file_says_what_became_of_ignored_labels(tmp_path, changes, caplog):
    dataset, config = dataset_of(SKEWED), config_of(client_labels=40, mu=0, **changes)
    made = data.make_partition(dataset, config)
    data.save(made, tmp_path / 'p.npz')
    read = data.load_for(tmp_path / 'p.npz', dataset, config)
    assert (read.content_hash, read.settings['ignored_labeled']) == (made.content_hash, changes['ignored_labeled'])
    assert not caplog.records
    other = {'unlabeled': 'dropped', 'dropped': 'unlabeled'}[changes['ignored_labeled']]
    data.load_for(tmp_path / 'p.npz', dataset, config_of(client_labels=40, mu=0, ignored_labeled=other))
    assert [record.getMessage().split('=')[0] for record in caplog.records] == ['ignored_labeled']


@pytest.fixture
def saved(tmp_path):
    """A data set, its configuration, its partition and the file."""
    dataset, config = dataset_of(SKEWED), config_of(partition='dirichlet', client_labels=40)
    made = data.make_partition(dataset, config)
    data.save(made, tmp_path / 'partition.npz')
    return dataset, config, made, tmp_path / 'partition.npz'


def test_a_file_gives_back_the_partition(saved, tmp_path):
    dataset, config, made, path = saved
    read = data.load_for(path, dataset, config)
    assert read.content_hash == made.content_hash
    assert read.settings == made.settings
    for mine, yours in zip(
        (made.server_index, *made.client_index, *made.client_labeled_index),
        (read.server_index, *read.client_index, *read.client_labeled_index),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, yours)
    data.save(read, tmp_path / 'again.npz')
    assert (tmp_path / 'again.npz').read_bytes() == path.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ['again.npz', 'partition.npz']


def rewrite(path, **arrays):
    with np.load(path) as file:
        content = dict(file)
    np.savez(path, **(content | arrays))


def test_an_altered_file_is_refused(saved):
    dataset, config, made, path = saved
    rewrite(path, server_index=np.roll(made.server_index, 1))
    with pytest.raises(UserError, match='damaged'):
        data.load_for(path, dataset, config)


@pytest.mark.parametrize('keep', [0, 100, 0.5, 0.99])
def test_a_file_cut_short_is_refused(saved, keep):
    dataset, config, _, path = saved
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(
        UserError, match=r"partition\.npz' is damaged or cut short; export it again \(data\.save\), or "
    ):
        data.load_for(path, dataset, config)


@pytest.mark.parametrize(
    ('write', 'message'),
    [
        (lambda path: path.write_text('0 1 2'), 'is not a partition file: it is no .npz archive; export it again'),
        (lambda path: np.savez(path, rows=np.arange(3)), "is not a partition file: it has no entry 'meta'; export"),
        (lambda path: np.savez(path, rows=np.array([{}], object)), 'is damaged or cut short; export it again'),
    ],
)
def test_another_kind_of_file_is_refused(saved, write, message):
    dataset, config, _, path = saved
    write(path)
    with pytest.raises(UserError, match=message):
        data.load_for(path, dataset, config)


@pytest.mark.parametrize('entry', ['server_index', 'client_index', 'client_size'])
@pytest.mark.parametrize(
    ('change', 'shown'), [(lambda x: x + 0.0, r'\[\d+\]'), (lambda x: x[None] + 0.0, r'\[1, \d+\]')]
)
def test_rows_in_a_file_are_integers(saved, entry, change, shown):
    dataset, config, _, path = saved
    with np.load(path) as file:
        content = dict(file)
    rewrite(path, **{entry: change(content[entry])})
    with pytest.raises(UserError, match=rf"npz': {entry} is float64 {shown}; use an array of integers"):
        data.load_for(path, dataset, config)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'server_index': np.arange(3.0)}, r'server_index is float64 \[3\]; use an array of integers'),
        ({'client_index': (np.arange(3, 9), np.arange(9.0, 12.0))}, r'client_index\[1\] is float64 \[3\]; use'),
        ({'client_index': ([3, 4], [5])}, r'client_index\[0\] is a list; use an array of integers'),
    ],
)
def test_rows_that_are_no_integers_are_not_saved(tmp_path, changes, message):
    none = np.array([])  # float64, and accepted: there is nothing in it
    made = data.Partition('toy', 'c0ffee', {}, np.arange(3), (np.arange(3, 9), np.arange(9, 12)), (none, none))
    data.save(made, tmp_path / 'good.npz')
    assert data.load_partition(tmp_path / 'good.npz').server_index.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match=message):
        data.save(dataclasses.replace(made, **changes), tmp_path / 'p.npz')
    assert not (tmp_path / 'p.npz').exists()


def test_every_flipped_byte_is_noticed_or_harmless(saved):
    dataset, config, made, path = saved
    content = path.read_bytes()
    refused = 0
    for position in range(0, len(content), len(content) // 150):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        try:
            assert data.load_for(path, dataset, config).content_hash == made.content_hash  # in the zip's padding
        except UserError:
            refused += 1
    assert refused > 75


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda d, c: (dataset_of(SKEWED, checksum='0ther'), c), 'another copy of data set'),
        (lambda d, c: (d, config_of(num_clients=8)), 'for 7 clients'),
        (lambda d, c: (d, config_of(num_active=9)), 'num_active is 9'),
    ],
)
def test_a_file_for_something_else_is_refused(saved, change, message):
    dataset, config, _, path = saved
    with pytest.raises(UserError, match=message):
        data.load_for(path, *change(dataset, config))


def test_a_file_for_another_data_set_is_refused(saved):
    dataset, config, _, path = saved
    with pytest.raises(UserError, match="for data set 'toy', not 'other'"):
        data.load_for(path, dataclasses.replace(dataset, name='other'), config)


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ({'server_index': [0, 1, 700]}, 'rows that the data set does not have'),
        ({'server_index': [-1, 1, 2]}, 'rows that the data set does not have'),
        ({'server_index': [0, 1, 3]}, 'lists a row twice'),
        ({'server_index': [0, 705]}, 'labels are unknown'),
        ({'server_index': []}, 'without images'),
        ({'client_index': [[3, 4], []]}, 'without images'),
        ({'client_labeled_index': [[], [], []]}, 'different numbers of clients'),
    ],
)
def test_a_file_made_elsewhere_is_checked(tmp_path, part, message):
    dataset = dataset_of(SKEWED, unknown=10 if part.get('server_index') == [0, 705] else 0)
    fields = {'server_index': [0, 1, 2], 'client_index': [[3, 4], [5]], 'client_labeled_index': [[], []]} | part
    arrays = {
        key: tuple(np.array(rows, np.int32) for rows in value) if key != 'server_index' else np.array(value, np.int32)
        for key, value in fields.items()
    }
    made = data.Partition(dataset=dataset.name, checksum=dataset.checksum, settings={}, **arrays)
    data.save(made, tmp_path / 'p.npz')
    with pytest.raises(UserError, match=message):
        data.load_for(tmp_path / 'p.npz', dataset, config_of(num_clients=2, num_active=1))


def test_no_file_and_no_permission_are_user_errors(saved, tmp_path):
    dataset, config, made, _ = saved
    with pytest.raises(UserError, match=r"partition file '.*none\.npz' cannot be read \(No such file"):
        data.load_for(tmp_path / 'none.npz', dataset, config)
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match='cannot be written'):
        data.save(made, tmp_path / 'file' / 'p.npz')


def test_the_file_holds_no_pickle(saved):
    *_, path = saved
    with np.load(path, allow_pickle=False) as file:
        meta = json.loads(str(file['meta']))
        assert all(file[key].dtype == np.int32 for key in file.files if key != 'meta')
    assert meta['dataset'] == 'toy'
    assert meta['settings']['num_labeled'] == 100


def test_other_settings_than_the_files_are_named(saved, caplog):
    dataset, _, made, path = saved
    with caplog.at_level('WARNING', logger='semisfl_jax'):
        read = data.load_for(path, dataset, config_of(num_labeled=50, client_labels=40, partition='dirichlet'))
    assert read.content_hash == made.content_hash
    assert [r.getMessage() for r in caplog.records if 'num_labeled' in r.getMessage()]
    assert len(caplog.records) == 1
