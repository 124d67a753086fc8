"""Batches without replacement for clients of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.core import rng, sampling
from semisfl_jax.core.sampling import BatchPlan
from semisfl_jax.core.types import Cohort, Federation


def order(word, epoch, size):
    return np.asarray(sampling.permute(jnp.uint32(word), jnp.int32(epoch), jnp.arange(size), jnp.int32(size)))


@pytest.mark.parametrize('size', [1, 2, 7, 100, 73_257])
def test_every_epoch_is_a_permutation(size):
    for epoch in range(3):
        assert sorted(order(12345, epoch, size).tolist()) == list(range(size))


@pytest.mark.parametrize(('size', 'batch'), [(1, 4), (4, 4), (9, 4)])
def test_a_pass_ends_with_a_short_batch(size, batch):
    """As a PyTorch DataLoader without drop_last: every pass reads each image once, in ceil(n / B) batches."""
    word, per = jnp.uint32(7), -(-size // batch)
    orders = []
    for number in range(3):
        read = []
        for step in range(per):
            offset, there = sampling.pass_offsets(jnp.int32(number * per + step), batch, jnp.int32(size))
            assert there.shape == (batch,)
            assert int(there.sum()) == min(batch, size - step * batch)
            assert not np.any(np.diff(there.astype(int)) > 0)  # the rows that are there come first
            places = np.asarray(sampling.read(word, offset, jnp.int32(size)))
            assert set(places) <= set(range(size))
            read += places[np.asarray(there)].tolist()
        assert sorted(read) == list(range(size))
        orders.append(read)
    if size > 5:
        assert orders[0] != orders[1] != orders[2]


def test_pairs_of_positions_are_uniform():
    """Chi-squared over where the first two positions go: size * (size - 1) equally likely cells."""
    size, trials = 10, 20_000
    words = jax.random.bits(jax.random.key(0), (trials,))
    table = jax.vmap(lambda word: sampling.permute(word, jnp.int32(0), jnp.arange(2), jnp.int32(size)))(words)
    cells = np.bincount(np.asarray(table[:, 0] * size + table[:, 1]), minlength=size * size).reshape(size, size)
    assert np.all(np.diag(cells) == 0)
    expected = trials / (size * (size - 1))
    statistic = np.sum((cells[~np.eye(size, dtype=bool)] - expected) ** 2 / expected)
    degrees = size * (size - 1) - 1
    assert statistic < degrees + 4 * np.sqrt(2 * degrees)


def federation(sizes, labeled_sizes=None):
    """Client n holds rows 1000 n, 1000 n + 1, … unlabeled and rows 1000 n + 500, … labeled."""
    labeled_sizes = labeled_sizes or [0] * len(sizes)
    index = np.zeros((len(sizes), max(sizes)), np.int32)
    labeled = np.zeros((len(sizes), max(labeled_sizes)), np.int32)
    for n, (size, labeled_size) in enumerate(zip(sizes, labeled_sizes, strict=True)):
        index[n, :size] = 1000 * n + np.arange(size)
        labeled[n, :labeled_size] = 1000 * n + 500 + np.arange(labeled_size)
    empty = jnp.zeros((0,), jnp.int32)
    return Federation(*[empty] * 5, *map(jnp.asarray, (index, sizes, labeled, labeled_sizes)))


def read_rounds(data, client, rounds, k_u=3, batch=4, labeled_rows=0):
    read, client_rows = [], jax.jit(sampling.client_rows, static_argnums=3)
    for visit in range(rounds):
        cohort = Cohort(jnp.array([client]), jnp.ones(1), jnp.array([visit]))
        rows, labeled = client_rows(rng.root(0), data, cohort, BatchPlan(k_u, batch, labeled_rows))
        read.append((np.asarray(rows)[0], np.asarray(labeled)[0]))
    return read


def test_epochs_go_on_across_rounds_for_every_size():
    """12 images are read a round; from any epoch's start, the next `size` images are all of the client's."""
    sizes = [1, 5, 12, 37]
    for client, size in enumerate(sizes):
        read = np.concatenate([rows.ravel() for rows, _ in read_rounds(federation(sizes), client, 10)])
        for epoch in range(len(read) // size):
            expected = [1000 * client + i for i in range(size)]
            assert sorted(read[epoch * size : (epoch + 1) * size].tolist()) == expected


def test_labeled_rows_lead_each_batch_and_both_streams_are_complete():
    data = federation([7, 6], labeled_sizes=[3, 0])
    read = read_rounds(data, 0, 7, k_u=2, batch=4, labeled_rows=1)
    for rows, labeled in read:
        np.testing.assert_array_equal(labeled, [[True, False, False, False]] * 2)
        assert np.all(rows[labeled] >= 500)
        assert np.all(rows[~labeled] < 7)
    streams = np.concatenate([rows for rows, _ in read])  # [14, 4]
    for stream, values in ((streams[:, 0], [500, 501, 502]), (streams[:, 1:].ravel(), list(range(7)))):
        for epoch in range(len(stream) // len(values)):
            assert sorted(stream[epoch * len(values) : (epoch + 1) * len(values)].tolist()) == values
    rows, labeled = read_rounds(data, 1, 1, k_u=3, batch=2, labeled_rows=1)[0]  # no labels here: all unlabeled
    assert not labeled.any()
    assert sorted(rows.ravel().tolist()) == [1000, 1001, 1002, 1003, 1004, 1005]
    # With 'longest' the first row of a batch stays that of a label, and one pass over 6 images takes two batches of 3.
    cohort, plan = Cohort(jnp.array([1]), jnp.ones(1), jnp.array([0])), BatchPlan(0, 4, 1, 1, 'longest')
    rows, labeled = (np.asarray(x)[0, :2] for x in sampling.client_rows(rng.root(0), data, cohort, plan))
    assert not labeled.any()
    assert sorted(rows[:, 1:].ravel().tolist()) == [1000, 1001, 1002, 1003, 1004, 1005]


def test_rows_depend_on_the_client_and_not_on_its_place_in_the_cohort():
    data = federation([50, 60, 70])
    rows = []
    for ids in ([0, 1, 2], [2, 0, 1]):
        cohort = Cohort(jnp.array(ids), jnp.ones(3), jnp.array(ids) + 4)
        rows.append(np.asarray(sampling.client_rows(rng.root(3), data, cohort, BatchPlan(2, 8))[0]))
    np.testing.assert_array_equal(rows[0], rows[1][[1, 2, 0]])


def test_clients_of_one_size_read_in_different_orders():
    cohort = Cohort(jnp.array([0, 1]), jnp.ones(2), jnp.array([0, 0]))
    rows, _ = sampling.client_rows(rng.root(0), federation([40, 40]), cohort, BatchPlan(2, 10))
    first, second = np.asarray(rows).reshape(2, 20) - [[0], [1000]]
    assert not np.array_equal(first, second)


def test_whole_sets_and_places_among_all_images():
    """Clients of 2 and 3 images, 1 and 2 of them labeled: unlabeled ones first, each kind padded to the longest."""
    data = federation([2, 3], labeled_sizes=[1, 2])
    rows, labeled = sampling.whole_sets(data, Cohort(jnp.array([1, 0]), jnp.ones(2), jnp.zeros(2, int)))
    np.testing.assert_array_equal(rows[0], [1000, 1001, 1002, 1500, 1501])
    np.testing.assert_array_equal(rows[1, np.array([0, 1, 3])], [0, 1, 500])
    np.testing.assert_array_equal(labeled, [[False, False, False, True, True]] * 2)
    np.testing.assert_array_equal(sampling.row_of_all(data, jnp.arange(5)), [0, 1, 1000, 1001, 1002])


def test_images_that_a_client_can_train_on():
    """Of 8 without and 3 with labels: all where a batch has rows for both."""
    held = [int(sampling.images_held(jnp.int32(8), jnp.int32(3), 4, labeled_rows)) for labeled_rows in (0, 1, 4)]
    assert held == [8, 11, 3]


def test_server_batches_are_epochs_over_steps():
    read = np.concatenate([np.asarray(sampling.server_rows(rng.root(0), jnp.int32(t), 16, 40)) for t in range(10)])
    for epoch in range(4):
        assert sorted(read[epoch * 40 : (epoch + 1) * 40].tolist()) == list(range(40))


def lists_of_the_authors(size, batch, steps, batches):
    """Sizes of whole shuffled lists, and how their images are counted, in the authors' code: the list is stacked
    ceil(batch * steps / size) times, PyTorch's loader shuffles it for every pass and drops its last, short batch.

    Returns copies of each image in a list, and the number of the pass of each of `batches` batches."""
    copies = -(-batch * steps // size)
    per_pass = copies * size // batch
    return copies, np.arange(batches) // per_pass


@pytest.mark.parametrize(('size', 'batch', 'steps'), [(3, 4, 6), (7, 3, 4), (1, 4, 2)])
def test_replicated_lists_are_read_whole(size, batch, steps):
    """Per pass no image comes more often than it stands in the list; where nothing is dropped, exactly so often."""
    t = jnp.arange(60)[:, None]
    read = np.asarray(
        sampling.read_replicated(jnp.uint32(7), t, jnp.arange(batch)[None], jnp.int32(batch), jnp.int32(size), steps)
    )
    copies, passes = lists_of_the_authors(size, batch, steps, 60)
    for number in range(passes[-1]):  # whole passes
        counts = np.bincount(read[passes == number].ravel(), minlength=size)
        assert counts.sum() == copies * size // batch * batch
        assert counts.max() <= copies
        if copies * size % batch == 0:
            assert set(counts) == {copies}
    assert size == 1 or not np.array_equal(read[passes == 0], read[passes == 1])


def test_replicated_lists_go_on_across_rounds():
    """Labeled and unlabeled images have lists of their own, and a client goes on where it stopped."""
    data, read = federation([7, 6], labeled_sizes=[3, 0]), []
    for visit in range(9):
        cohort = Cohort(jnp.array([0, 1]), jnp.ones(2), jnp.array([visit, visit]))
        rows, labeled = sampling.client_rows(rng.root(0), data, cohort, BatchPlan(2, 4, 1, order='replicated'))
        np.testing.assert_array_equal(labeled[0], [[True, False, False, False]] * 2)
        assert not labeled[1].any()
        read.append(np.asarray(rows))
    streams = np.concatenate(read, axis=1)  # [2, 18, 4]
    cases = (
        (streams[0, :, 0] - 500, 3, 1),  # a list of 3 lasts for 3 steps of one
        (streams[0, :, 1:], 7, 3),  # 7: two steps of 3, one image dropped
        (streams[1] - 1000, 6, 4),  # 12: three steps of 4
    )
    for stream, size, batch in cases:
        copies, passes = lists_of_the_authors(size, batch, 2, 18)
        for number in range(passes[-1]):
            counts = np.bincount(stream[passes == number].ravel(), minlength=size)
            assert counts.max() <= copies
            assert counts.sum() == copies * size // batch * batch


def test_the_server_replicates_for_its_first_round():
    """40 images, batches of 16, K_s of 5: the list stands twice, and lasts for five steps."""
    steps = [sampling.server_rows(rng.root(0), jnp.int32(t), 16, 40, 5) for t in range(15)]
    read = np.asarray(steps).reshape(3, 80)
    for one_pass in read:
        assert set(np.bincount(one_pass, minlength=40)) == {2}
