"""The arrays of a round: the right images for the right clients, wherever they lie; and who takes part."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.default import get_config
from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng, sampling
from semisfl_jax.data.dataset import Targets


@pytest.fixture(scope='module')
def setting():
    """Fake CIFAR-10, some clients with labels, of very unequal size."""
    config = get_config()
    config.data.update(name='cifar10', fake=True, fake_size=400, num_labeled=80, client_labels=40)
    config.federation.update(num_clients=6, num_active=3, partition='dirichlet', alpha=0.3)
    dataset = data.load(config.data)
    return dataset, data.make_partition(dataset, config), config


def test_device_arrays_hold_each_clients_images_once(setting):
    dataset, partition, _ = setting
    federation = jax.tree.map(np.asarray, data.build_federations(dataset, [partition], 'device')[0])
    np.testing.assert_array_equal(federation.server_images, dataset.train_images[partition.server_index])
    np.testing.assert_array_equal(federation.server_labels, dataset.train_labels[partition.server_index])
    assert federation.client_images.shape == (400 - 40, 32, 32, 3)
    assert not federation.streamed
    for index, size, rows in (
        (federation.index, federation.size, partition.client_index),
        (federation.labeled_index, federation.labeled_size, partition.client_labeled_index),
    ):
        assert index.dtype == size.dtype == np.int32
        assert index.shape == (6, max(map(len, rows)))
        for client in range(6):
            held = index[client, : size[client]]
            np.testing.assert_array_equal(federation.client_images[held], dataset.train_images[rows[client]])
            np.testing.assert_array_equal(federation.client_labels[held], dataset.train_labels[rows[client]])


@pytest.mark.parametrize('residency', ['device', 'host'])
def test_trials_share_images_and_have_tables_of_their_own(setting, residency):
    dataset, first, config = setting
    config = config.copy_and_resolve_references()
    config.seed = 1
    partitions = [first, data.make_partition(dataset, config)]
    federations = data.build_federations(dataset, partitions, residency)
    all_tables = [federation.tables if residency == 'host' else federation for federation in federations]
    for name in ('server_images', 'server_labels', 'client_images', 'client_labels'):
        assert getattr(all_tables[0], name) is getattr(all_tables[1], name)
    assert (all_tables[0].server_images is all_tables[0].client_images) == (residency == 'device')
    rows = {'device': 400, 'host': len(set(first.server_index) | set(partitions[1].server_index))}
    assert len(all_tables[0].server_images) == rows[residency]
    for partition, tables in zip(partitions, jax.tree.map(np.asarray, all_tables), strict=True):
        server = partition.server_index
        np.testing.assert_array_equal(tables.server_images[tables.server_index], dataset.train_images[server])
        np.testing.assert_array_equal(tables.server_labels[tables.server_index], dataset.train_labels[server])
        images = dataset.train_images if residency == 'host' else tables.client_images
        for name, index, size in (
            ('client_index', tables.index, tables.size),
            ('client_labeled_index', tables.labeled_index, tables.labeled_size),
        ):
            assert index.shape == (6, max(len(held) for p in partitions for held in getattr(p, name)))
            for client, held in enumerate(getattr(partition, name)):
                np.testing.assert_array_equal(images[index[client, : size[client]]], dataset.train_images[held])


def test_host_and_device_give_a_round_the_same_images(setting):
    dataset, partition, _ = setting
    device = data.build_federations(dataset, [partition], 'device')[0]
    host = data.build_federations(dataset, [partition], 'host')[0]
    assert host.tables.client_images.shape == (0, 32, 32, 3)
    assert host.images is dataset.train_images
    key = rng.root(3)
    device_images, device_labels = np.asarray(device.client_images), np.asarray(device.client_labels)
    cohort = data.make_cohort(np.array([0, 2, 5]), np.array([4, 0, 1, 0, 0, 2]))

    def draw(federation):
        return sampling.client_rows(key, federation, cohort, sampling.BatchPlan(k_u=4, batch_size=8, labeled_rows=2))

    rows, labeled = draw(device)
    host_rows, _ = draw(host.tables)
    federation = host.streamed(host_rows)
    streamed_rows, streamed_labeled = draw(federation)
    assert federation.streamed
    assert federation.client_images.shape == (3 * 4 * 8, 32, 32, 3)
    np.testing.assert_array_equal(np.asarray(federation.client_images)[streamed_rows], device_images[rows])
    np.testing.assert_array_equal(np.asarray(federation.client_labels)[streamed_rows], device_labels[rows])
    np.testing.assert_array_equal(streamed_labeled, labeled)
    np.testing.assert_array_equal(federation.server_images, device.server_images)


@pytest.mark.parametrize('residency', ['device', 'host'])
def test_clients_that_know_all_labels_hold_what_they_hold_with_labels(setting, residency):
    dataset, partition, _ = setting
    dataset = dataclasses.replace(dataset, train_labels=dataset.train_labels.astype(np.uint8))  # as MNIST's files
    (federation,) = data.build_federations(dataset, [partition], residency, all_labels=True)
    tables = federation.tables if residency == 'host' else federation
    labels = federation.labels if residency == 'host' else tables.client_labels
    assert labels.dtype == tables.server_labels.dtype == np.int32
    assert tables.size.tolist() == tables.labeled_size.tolist() == list(map(len, partition.client_index))
    np.testing.assert_array_equal(tables.index, tables.labeled_index)
    cohort = data.make_cohort(np.array([2, 5]), np.zeros(6, np.int32))
    rows, labeled = sampling.client_rows(rng.root(0), tables, cohort, sampling.BatchPlan(2, 3, 3))
    assert labeled.all()
    if residency == 'host':
        assert np.isin(rows[1], partition.client_index[5]).all()


def test_labels_that_nobody_knows_cannot_be_held(setting):
    dataset, partition, _ = setting
    row = partition.client_index[0][0]
    unknown = dataclasses.replace(dataset, train_labels=np.where(np.arange(400) == row, -1, dataset.train_labels))
    with pytest.raises(UserError, match='those of 1 images of cifar10 are unknown'):
        data.build_federations(unknown, [partition], 'device', all_labels=True)
    without = (partition.client_index[0][1:], *partition.client_index[1:])
    without = dataclasses.replace(partition, client_index=without, client_labeled_index=())
    assert len(data.build_federations(unknown, [without], 'device', all_labels=True)) == 1
    maps = Targets(dataset.train_images[..., 0], dataset.test_images[..., 0], outputs=2)
    scenes = dataclasses.replace(unknown, targets={'parts': maps})  # learnt from: the labels only make the split
    assert len(data.build_federations(scenes, [partition], 'device', all_labels=True, tasks=('parts',))) == 1


# --- cohorts


def test_a_cohort_is_ascending_distinct_and_of_the_seed_and_round():
    drawn = [data.draw_cohort(0, h, 30, 10) for h in range(50)]
    for ids in drawn:
        assert ids.dtype == np.int32
        assert (np.diff(ids) > 0).all()
        assert ids.min() >= 0
        assert ids.max() < 30
    np.testing.assert_array_equal(drawn[7], data.draw_cohort(0, 7, 30, 10))
    assert len({ids.tobytes() for ids in drawn}) == 50
    assert not np.array_equal(drawn[7], data.draw_cohort(1, 7, 30, 10))


def test_clients_are_drawn_uniformly_and_in_pairs():
    rounds, clients, active = 3000, 12, 4
    member = np.zeros((rounds, clients))
    for h in range(rounds):
        member[h, data.draw_cohort(5, h, clients, active)] = 1
    share = active / clients
    deviation = np.sqrt(share * (1 - share) / rounds)
    assert np.abs(member.mean(axis=0) - share).max() < 5 * deviation
    together = (member.T @ member / rounds)[~np.eye(clients, dtype=bool)]
    pair = active * (active - 1) / clients / (clients - 1)
    assert np.abs(together - pair).max() <= 5 * np.sqrt(pair * (1 - pair) / rounds)


def test_neither_padding_nor_the_failed_weigh():
    visits = np.array([9, 8, 7, 6, 5, 4])
    cohort = data.make_cohort(np.array([2, 5]), visits, padded_size=4, failed=np.array([True, False]))
    assert [field.tolist() for field in cohort] == [[2, 5, 5, 5], [0, 1, 0, 0], [7, 4, 4, 4]]
    assert cohort.ids.dtype == cohort.participations.dtype == np.int32
