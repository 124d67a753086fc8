"""Mini-batches drawn inside the jitted graph, without replacement within an epoch, for clients of any size.

A client's data are read as an endless sequence: epoch after epoch, each in its own order. The index of element p of
that sequence is computed directly, by a keyed permutation that can be evaluated at single points. Nothing is sorted, a
client with 3 images costs the same as one with 30,000, and the only state is the client's read position, which follows
from the number of rounds it has participated in.

The permutation is the swap-or-not shuffle (Hoang, Morris, Rogaway: An Enciphering Scheme Based on a Card Shuffle,
CRYPTO 2012): in each pass, x is paired with (k - x) mod n, and a hash of the pair decides whether to swap.

The authors' loaders read differently (`read_replicated`): a batch may contain an image twice.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng
from semisfl_jax.core.types import Array, Cohort, Federation

READS = ('batches', 'sets')  # what the clients of a method read in a round: `client_rows` or `whole_sets`
STEPS = ('unlabeled', 'longest')  # which images a client's passes are counted over: `client_steps`

_PASSES = 48  # about 3 log2(n) for n = 65,536; the tests check the pair statistics of small n


class BatchPlan(NamedTuple):
    """The mini-batches of a client in a round, as configured (`HParams.batches`). Hashable."""

    k_u: int  # iterations, if `epochs` is 0
    batch_size: int  # B
    labeled_rows: int = 0  # B_l rows, at the start, are labeled (Fig. 10); all B: only labeled images are read
    epochs: int = 0  # passes over the client's images, instead of `k_u` iterations
    steps: str = 'unlabeled'  # one of STEPS
    order: str = 'epochs'  # `config.sampling`: `read`; 'replicated': `read_replicated`, without `epochs`


def _mix(x: Array) -> Array:
    """Hashes uint32 bijectively (the finalizer of MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def permute(seed_bits: Array, epoch: Array, position: Array, size: Array) -> Array:
    """Permutes range(size) and returns single elements. The arguments broadcast against each other.

    Args:
      seed_bits: uint32; with `epoch`, it selects the permutation.
      epoch: int32.
      position: int32, the elements to return.
      size: int32, at least 1.

    Returns:
      int32, the images at `position`.
    """
    n = size.astype(jnp.uint32)
    key = _mix(seed_bits ^ _mix(epoch.astype(jnp.uint32) + jnp.uint32(0x9E3779B9)))

    def swap(i: Array, x: Array) -> Array:
        pass_key = _mix(key + i.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
        partner = (pass_key % n + n - x) % n
        coin = _mix(_mix(jnp.maximum(x, partner) ^ pass_key) + key) & 1
        return jnp.where(coin == 1, partner, x)

    start = jnp.broadcast_to(position.astype(jnp.uint32), jnp.broadcast_shapes(key.shape, position.shape, n.shape))
    return jax.lax.fori_loop(0, _PASSES, swap, start, unroll=4).astype(jnp.int32)


def read(seed_bits: Array, offset: Array, size: Array) -> Array:
    """Reads an endless sequence over range(size): one random permutation after another. The arguments broadcast.

    Args:
      seed_bits: uint32, the key of the sequence.
      offset: int32, places in the sequence.
      size: int32; where it is 0, so is the result.

    Returns:
      int32, the elements at `offset`.
    """
    size = jnp.maximum(size, 1)
    return permute(seed_bits, offset // size, offset % size, size)


def read_replicated(seed_bits: Array, step: Array, slot: Array, batch_size: Array, size: Array, steps: int) -> Array:
    """Reads batches over range(size) as the loaders of the authors' code do.

    The list of images is repeated until it is long enough for `steps` batches, shuffled, and read batch by batch. A
    remainder too short for another batch is dropped, and the list is reshuffled. The arguments broadcast.

    Args:
      seed_bits: uint32, the key of the sequence.
      step: int32, the batch.
      slot: int32, the place in the batch.
      batch_size: int32, B.
      size: int32; where it is 0, so is the result.
      steps: the number of batches for which the list is repeated.

    Returns:
      int32, the images.
    """
    size, batch_size = jnp.maximum(size, 1), jnp.maximum(batch_size, 1)
    length = size * -(-steps * batch_size // size)
    batches = length // batch_size
    return permute(seed_bits, step // batches, step % batches * batch_size + slot, length) % size


def pass_offsets(step: Array, batch_size: int, size: Array | int) -> tuple[Array, Array]:
    """Locates a batch in the endless sequence over range(size), if the last batch of every pass may be short.

    Pass e consists of the ceil(size / B) batches from step e * ceil(size / B) on.

    Args:
      step: [], the batch, counted over all passes.
      batch_size: B.
      size: images of a pass.

    Returns:
      Offsets [B] for `read`, and valid [B] bool, True for at least the first.
    """
    size = jnp.maximum(size, 1)
    batches = -(-size // batch_size)
    positions = step % batches * batch_size + jnp.arange(batch_size)
    return step // batches * size + jnp.minimum(positions, size - 1), positions < size


def server_rows(key: Array, step: Array, batch_size: int, size: int, steps: int = 0) -> Array:
    """Draws the labeled images that a supervised step reads.

    Args:
      key: the root key.
      step: [], the step, counted over all rounds.
      batch_size: B_s.
      size: the number of labeled images.
      steps: if above 0, read in the order of `read_replicated`, for so many steps.

    Returns:
      Indices [B_s] of labeled images.
    """
    slot = jnp.arange(batch_size)
    if steps:
        return read_replicated(_server_seed_bits(key), step, slot, jnp.int32(batch_size), jnp.int32(size), steps)
    return read(_server_seed_bits(key), step * batch_size + slot, jnp.int32(size))


def server_pass_rows(key: Array, step: Array, batch_size: int, size: int) -> tuple[Array, Array]:
    """Draws like `server_rows`, but lets the last batch of every pass be short: rows [B_s] and valid [B_s] bool."""
    offset, valid = pass_offsets(step, batch_size, size)
    return read(_server_seed_bits(key), offset, jnp.int32(size)), valid


def _server_seed_bits(key: Array) -> Array:
    """Returns the seed bits of the server's sequence."""
    return jax.random.bits(rng.fold(key, 'server_batches'))


def rows(reads: str, key: Array, federation: Federation, cohort: Cohort, batches: BatchPlan) -> tuple[Array, Array]:
    """Draws the rows of `client_images` that the cohort reads in a round.

    Args:
      reads: one of READS.
      key: the root key.
      federation: the tables of images are read, not the images.
      cohort: the active clients.
      batches: the batches to read, for `reads` 'batches'.

    Returns:
      Rows [A, ...] int32, and [A, ...] bool: whether each carries a true label.
    """
    if reads == 'sets':
        return whole_sets(federation, cohort)
    return client_rows(key, federation, cohort, batches)


def select_task(
    key: Array, federation: Federation, cohort: Cohort, tasks: Sequence[str], name: str
) -> tuple[Array, Federation, Cohort]:
    """Selects the part of one dense task; client n works on task n mod T.

    A task's clients draw the same, whatever the remaining tasks are.

    Args:
      key: the root key.
      federation: the data of all N clients.
      cohort: A active clients.
      tasks: the T tasks.
      name: one of them.

    Returns:
      A key, the N / T clients of the task, numbered from 0, and the A / T of them that are in the cohort.
    """
    first, count = tasks.index(name), len(tasks)
    tables = ('index', 'size', 'labeled_index', 'labeled_size')
    fields = {field: getattr(federation, field)[first::count] for field in tables}
    if federation.streamed:
        for field in ('client_images', 'client_labels'):
            rows = getattr(federation, field)
            by_client = rows.reshape(len(cohort.ids), -1, *rows.shape[1:])[first::count]
            fields[field] = by_client.reshape(-1, *rows.shape[1:])
    members = Cohort(*(field[first::count] for field in cohort))
    return rng.fold(key, 'task', name), federation.replace(**fields), members._replace(ids=members.ids // count)


def whole_sets(federation: Federation, cohort: Cohort) -> tuple[Array, Array]:
    """Lists the rows of `client_images` of all images of the cohort.

    The first S places hold the unlabeled images, padded after the client's `size`; the remaining S_l hold the labeled
    ones, padded after its `labeled_size`. A streamed federation holds exactly these images, so the rows simply count
    up.

    Args:
      federation: the tables of images are read, not the images.
      cohort: A active clients.

    Returns:
      Rows [A, S + S_l] int32, and [A, S + S_l] bool: whether each carries a true label.
    """
    _check_streamed(federation, 'sets')
    row_indices = jnp.concatenate([federation.index[cohort.ids], federation.labeled_index[cohort.ids]], axis=1)
    labeled = jnp.broadcast_to(jnp.arange(row_indices.shape[1]) >= federation.index.shape[1], row_indices.shape)
    return _counted_up(row_indices) if federation.streamed else row_indices, labeled


def _counted_up(row_indices: Array) -> Array:
    """Numbers the entries in reading order."""
    return jnp.arange(row_indices.size, dtype=jnp.int32).reshape(row_indices.shape)


def _check_streamed(federation: Federation, reads: str) -> None:
    """Raises UserError if the federation was streamed for clients that read something else."""
    if federation.streamed not in ('', reads):
        raise UserError(f"the method has reads='{federation.streamed}', but its clients read '{reads}'; use that")


def images_held(unlabeled: Array, labeled: Array, batch_size: int, labeled_rows: int) -> Array:
    """Counts the images that each client can train on.

    The labeled ones if batches contain only labeled images; otherwise the unlabeled ones, plus the labeled ones if
    batches reserve rows for them.

    Args:
      unlabeled: [A], unlabeled images of each client.
      labeled: [A], labeled images of each client.
      batch_size: B.
      labeled_rows: B_l.

    Returns:
      [A].
    """
    if labeled_rows == batch_size:
        return labeled
    return unlabeled + labeled if labeled_rows else unlabeled


def row_of_all(federation: Federation, position: Array) -> Array:
    """Looks up the row of `client_images` at a place in the concatenation of all clients' unlabeled images.

    Args:
      federation: only `index` and `size` are read.
      position: int32, the place.

    Returns:
      int32, the row.
    """
    ends = jnp.cumsum(federation.size)
    client = jnp.searchsorted(ends, position, side='right')
    return federation.index[client, position - (ends - federation.size)[client]]


def client_steps(federation: Federation, cohort: Cohort, batches: BatchPlan) -> Array:
    """Counts the iterations of every client in a round.

    Without `batches.epochs`, `k_u` for every client. With E epochs, as many as a client needs to read its images E
    times. What that means for a client whose batches hold B_l labeled and B_u unlabeled images depends on
    `batches.steps`:

      'unlabeled': E n_u / B_u, rounded up; with labeled images alone, E n_l / B_l, rounded up.
      'longest': the larger of E n_u / B_u and E n_l / B_l, rounded down, but at least 1 for a client with images (step
        1 of Algorithm 1 of Fed-SHVR, Wang et al., 2021).

    A client without labels has batches of B unlabeled images; with 'longest' of B_u, like all clients.

    Args:
      federation: only the sizes are read.
      cohort: the active clients.
      batches: the batches to read.

    Returns:
      [A] int32.
    """
    batch_size, labeled_rows, epochs = batches.batch_size, batches.labeled_rows, batches.epochs
    if not epochs:
        return jnp.full(cohort.ids.shape, batches.k_u, jnp.int32)
    size, labeled_size = federation.size[cohort.ids], federation.labeled_size[cohort.ids]
    labels_in_batch = jnp.where(_reserves(batches, labeled_size), labeled_rows, 0)
    alone = labeled_rows == batch_size
    if batches.steps == 'unlabeled':
        return -(-epochs * labeled_size // batch_size) if alone else -(-epochs * size // (batch_size - labels_in_batch))
    labeled_steps = epochs * labeled_size // labeled_rows if labeled_rows else 0
    steps = labeled_steps if alone else jnp.maximum(epochs * size // (batch_size - labels_in_batch), labeled_steps)
    return jnp.maximum(steps, images_held(size, labeled_size, batch_size, labeled_rows) > 0)


def _reserves(batches: BatchPlan, labeled_size: Array) -> Array:
    """Tells whether the first rows of a client's batches are closed to unlabeled images."""
    return (labeled_size > 0) | (batches.steps == 'longest')


def most_steps(federation: Federation, batches: BatchPlan) -> int:
    """Bounds `client_steps` from above, for every cohort."""
    batch_size, labeled_rows, epochs = batches.batch_size, batches.labeled_rows, batches.epochs
    if not epochs:
        return batches.k_u
    most, most_labeled = federation.index.shape[1], federation.labeled_index.shape[1]
    if labeled_rows == batch_size:
        return -(-epochs * most_labeled // batch_size)
    steps = -(-epochs * most // (batch_size - labeled_rows))
    if batches.steps == 'longest' and labeled_rows:
        return max(steps, epochs * most_labeled // labeled_rows)
    return steps


def client_rows(key: Array, federation: Federation, cohort: Cohort, batches: BatchPlan) -> tuple[Array, Array]:
    """Draws the rows of `client_images` that the cohort reads in batches in a round.

    Each client's batch starts with `batches.labeled_rows` of its labeled images, if it has any; the rest is unlabeled.
    If a client has none, all rows are unlabeled; with `batches.steps` 'longest', the first ones then only repeat
    others, and do not count (`local.guessed_rows`).

    Args:
      key: the root key.
      federation: the tables of images are read, not the images.
      cohort: the active clients.
      batches: the batches to read.

    Returns:
      rows [A, K_u, B] int32, and labeled [A, K_u, B] bool: whether the row carries a true label. For a streamed
      federation the rows simply count up, because its images are already in this order. With epochs the second axis
      has length `most_steps`, of which a client reads the first `client_steps`.
    """
    _check_streamed(federation, 'batches')
    batch_size, labeled_rows = batches.batch_size, batches.labeled_rows
    iteration = jnp.arange(most_steps(federation, batches))[:, None]
    slot = jnp.arange(batch_size)[None, :]

    def one_client(client: Array, participations: Array, steps: Array) -> tuple[Array, Array]:
        stream = rng.fold(key, 'client_batches', client)
        step = participations * steps + iteration  # [K_u, 1]
        size, labeled_size = federation.size[client], federation.labeled_size[client]
        head = jnp.where(_reserves(batches, labeled_size), labeled_rows, 0)

        def images(seed_bits: Array, position: Array, batch: Array | int, count: Array) -> Array:
            """Returns indices of images, out of `count`, at `position` in each step's `batch` of them."""
            if batches.order == 'replicated':
                place = jnp.maximum(position, 0)
                return read_replicated(seed_bits, step, place, jnp.asarray(batch), count, batches.k_u)
            return read(seed_bits, jnp.maximum(step * batch + position, 0), count)

        rows = federation.index[client][images(jax.random.bits(stream), slot - head, batch_size - head, size)]
        labeled = jnp.broadcast_to((slot < head) & (labeled_size > 0), rows.shape)
        if labeled_rows:
            seed_bits = jax.random.bits(rng.fold(stream, 'labeled'))
            position = jnp.minimum(slot, labeled_rows - 1)
            labeled_indices = federation.labeled_index[client][images(seed_bits, position, labeled_rows, labeled_size)]
            rows = jnp.where(labeled, labeled_indices, rows)
        return rows, labeled

    steps = client_steps(federation, cohort, batches)
    row_indices, labeled = jax.vmap(one_client)(cohort.ids, cohort.participations, steps)
    return _counted_up(row_indices) if federation.streamed else row_indices, labeled
