"""The memory queue of teacher keys (Section III; paper and code differ, so the policy is an option: docs/ledger.md).

A `Queue` has one or two rings, and a policy for which keys enter them and what anchors are compared with:

- 'two_level', the paper's: a ring for supervised keys (S) and one for unlabeled keys (U). Unlabeled keys enter U at
  every iteration and S at every `stride`-th, so S loses its supervised keys more slowly.
- 'single_ring', the authors' published code: both phases share one ring. Its supervised phase writes keys and labels
  but not the confidence flags, so these keys act only as negatives in the cross-entity phase.
- 'off': no ring, only the keys of the current batch.

The cross-entity phase empties every ring at its end. After a round without that phase, 'two_level' is emptied too; the
single ring stays as it is, because nothing else clears it in that code. Empty slots are either ignored or counted in
the denominator as zero vectors, each adding exp(0), as in the authors' code. The authors' ring starts out filled with
random unit vectors instead of zeros; until keys replace them, those are counted.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from flax import struct

from semisfl_jax.core import rng
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.losses import References, concatenate
from semisfl_jax.core.types import Array

LEVELS = {'two_level': ('supervised', 'unlabeled'), 'single_ring': ('ring',), 'off': ()}  # rings by policy


class Ring(struct.PyTreeNode):
    """A ring buffer of teacher keys: new keys overwrite the oldest."""

    keys: Array  # [Q, P] unit rows
    labels: Array  # [Q] int32, -1 marks an empty slot
    confident: Array  # [Q] bool, may serve as a positive
    head: Array  # [] int32, next slot to write


class Queue(struct.PyTreeNode):
    """The queue in `State.queue`. Batches of teacher keys come as References."""

    rings: tuple[Ring, ...]  # 'two_level': supervised, unlabeled
    policy: str = struct.field(pytree_node=False)
    stride: int = struct.field(pytree_node=False)  # only 'two_level' reads it
    count_empty: bool = struct.field(pytree_node=False)  # empty slots count in the denominator

    def supervised_references(self, batch: References) -> References:
        """Returns the references of the supervised phase: the batch, then S or the single ring."""
        all_confident = self.policy == 'single_ring'
        return concatenate(batch, *(as_references(ring, self.count_empty, all_confident) for ring in self.rings[:1]))

    def cross_entity_references(self, batch: References) -> References:
        """Returns the references of the cross-entity phase: the batch, then U and S, or the single ring."""
        return concatenate(batch, *(as_references(ring, self.count_empty) for ring in reversed(self.rings)))

    def push_supervised(self, batch: References) -> Queue:
        """Returns the queue after a supervised step."""
        confident = None if self.policy == 'single_ring' else batch.confident
        first = [push(ring, batch.keys, batch.labels, confident) for ring in self.rings[:1]]
        return self.replace(rings=(*first, *self.rings[1:]))

    def push_unlabeled(self, batch: References, t: Array) -> Queue:
        """Returns the queue after an iteration of the cross-entity phase.

        Args:
          batch: the keys of all clients; those outside `mask` are not pushed.
          t: [], the iteration, from 0.

        Returns:
          The new queue.
        """
        masks = [batch.mask] * len(self.rings)
        if self.policy == 'two_level':
            masks[0] = batch.mask & ((t + 1) % self.stride == 0)
        rows = batch.keys, batch.labels, batch.confident
        return self.replace(rings=tuple(push(ring, *rows, mask) for ring, mask in zip(self.rings, masks, strict=True)))

    def emptied(self) -> Queue:
        """Returns the queue after the cross-entity phase, with every slot empty."""
        return self.replace(rings=tuple(empty(*ring.keys.shape) for ring in self.rings))

    def after_pre_round(self) -> Queue:
        """Returns the queue after a round without a cross-entity phase."""
        return self.emptied() if self.policy == 'two_level' else self


def build(hparams: HParams, width: int, key: Array | None = None) -> Queue:
    """Builds the queue before the first round.

    Args:
      hparams: `queue`, `queue_size`, `queue_stride` and `queue_empty_slots` are read.
      width: P, numbers per key.
      key: the root key, which draws the vectors that the single ring starts with; None starts it with zeros.

    Returns:
      A queue whose slots are all empty.
    """
    rings = tuple(empty(hparams.queue_size, width) for _ in LEVELS[hparams.queue])
    if hparams.queue == 'single_ring' and key is not None:
        rows = jax.random.normal(rng.fold(key, 'queue'), rings[0].keys.shape)
        rings = (rings[0].replace(keys=rows / jnp.linalg.norm(rows, axis=1, keepdims=True)),)
    counts_empty = {'ignore': False, 'count': True, 'auto': hparams.queue == 'single_ring'}[hparams.queue_empty_slots]
    return Queue(rings, hparams.queue, hparams.queue_stride, counts_empty)


def empty(size: int, width: int) -> Ring:
    """Builds a ring of `size` empty slots for keys of `width` numbers."""
    return Ring(
        keys=jnp.zeros((size, width), jnp.float32),
        labels=jnp.full((size,), -1, jnp.int32),
        confident=jnp.zeros((size,), bool),
        head=jnp.zeros((), jnp.int32),
    )


def push(ring: Ring, keys: Array, labels: Array, confident: Array | None, mask: Array | None = None) -> Ring:
    """Writes a batch at the head of the ring, over the oldest slots.

    Args:
      ring: Q slots.
      keys: [R, P]. If R exceeds Q, only the last Q rows remain, as if they were pushed one by one.
      labels: [R] int32.
      confident: [R] bool; None leaves the flags of the overwritten slots unchanged.
      mask: [R] bool, the rows to push; None pushes all.

    Returns:
      The ring with the rows written and its head moved past them.
    """
    size, rows = ring.labels.shape[0], labels.shape[0]
    chex.assert_shape(keys, (rows, ring.keys.shape[1]))
    chex.assert_type([keys, labels], [jnp.float32, jnp.int32])
    chex.assert_shape([flags for flags in (confident, mask) if flags is not None], (rows,))
    pushed = jnp.asarray(rows) if mask is None else jnp.sum(mask)
    # Each slot looks up the last row that lands in it: accelerators sort the writes of a scatter that may collide.
    offset = jnp.arange(size) - ring.head
    place = offset + (pushed - 1 - offset) // size * size  # index among the pushed rows, negative if none lands here
    written = place >= 0
    row = place if mask is None else jnp.sum(jnp.cumsum(mask) <= place[:, None], axis=1)
    row = jnp.where(written, row, 0)

    def fill(old: Array, new: Array) -> Array:
        return jnp.where(written.reshape(-1, *[1] * (old.ndim - 1)), new[row], old)

    return Ring(
        keys=fill(ring.keys, keys),
        labels=fill(ring.labels, labels),
        confident=ring.confident if confident is None else fill(ring.confident, confident),
        head=(ring.head + pushed) % size,
    )


def as_references(ring: Ring, count_empty: bool, all_confident: bool = False) -> References:
    """Returns the ring as references of a contrastive loss.

    Args:
      ring: Q slots.
      count_empty: let empty slots count in the denominator, with the vectors stored there, usually zeros.
      all_confident: let every filled slot serve as a positive, whatever its flag says.

    Returns:
      Q references.
    """
    filled = ring.labels >= 0
    return References(
        keys=ring.keys,
        labels=ring.labels,
        confident=filled if all_confident else ring.confident,
        mask=jnp.ones_like(filled) if count_empty else filled,
    )
