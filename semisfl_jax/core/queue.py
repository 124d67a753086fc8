"""The memory queue of teacher keys (Section III; paper and code differ, so the policy is an option: docs/ledger.md).

A `Queue` is one or two rings and the policy by which keys enter them and are compared with:

- 'two_level', the paper's: a ring for supervised keys (S) and one for unlabeled keys (U). Unlabeled keys enter U at
  every iteration and S at every `stride`-th, so supervised keys are evicted from S more slowly.
- 'single_ring', the authors' published code: both phases share one ring. Its supervised phase writes keys and labels
  but not the confidence flags, so these keys act only as negatives in the cross-entity phase.
- 'off': no ring, keys of the current batch only.

All are emptied after the cross-entity phase. After a round without one, 'two_level' is emptied too, while the single
ring is left unchanged, because nothing else clears it in that code. Empty slots are either ignored or counted in the
denominator as zero vectors, each adding exp(0), as in the authors' code. Before the first key, the authors' ring is
not zero but filled with random unit vectors, which are then counted instead.
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

LEVELS = {'two_level': ('supervised', 'unlabeled'), 'single_ring': ('ring',), 'off': ()}  # policy: its rings


class Ring(struct.PyTreeNode):
    """Teacher keys, the newest over the oldest."""

    keys: Array  # [Q, P] unit rows
    labels: Array  # [Q] int32, -1 marks an empty slot
    confident: Array  # [Q] bool, may serve as a positive
    head: Array  # [] int32, next slot to write


class Queue(struct.PyTreeNode):
    """The queue, `State.queue`. Batches come as References of teacher keys."""

    rings: tuple[Ring, ...]  # of 'two_level': supervised, unlabeled
    policy: str = struct.field(pytree_node=False)
    stride: int = struct.field(pytree_node=False)  # of 'two_level'
    count_empty: bool = struct.field(pytree_node=False)  # whether an empty slot counts in the denominator

    def supervised_references(self, batch: References) -> References:
        """What the anchors of the supervised phase are compared with: the batch, and S or the single ring."""
        every = self.policy == 'single_ring'
        return concatenate(batch, *(as_references(ring, self.count_empty, every) for ring in self.rings[:1]))

    def cross_entity_references(self, batch: References) -> References:
        """What the anchors of the cross-entity phase are compared with: the batch, U and S, or the single ring."""
        return concatenate(batch, *(as_references(ring, self.count_empty) for ring in reversed(self.rings)))

    def push_supervised(self, batch: References) -> Queue:
        """The queue after a supervised step."""
        confident = None if self.policy == 'single_ring' else batch.confident
        first = [push(ring, batch.keys, batch.labels, confident) for ring in self.rings[:1]]
        return self.replace(rings=(*first, *self.rings[1:]))

    def push_unlabeled(self, batch: References, t: Array) -> Queue:
        """The queue after iteration `t` [] (0-based) of the cross-entity phase."""
        masks = [batch.mask] * len(self.rings)
        if self.policy == 'two_level':
            masks[0] = batch.mask & ((t + 1) % self.stride == 0)
        rows = batch.keys, batch.labels, batch.confident
        return self.replace(rings=tuple(push(ring, *rows, mask) for ring, mask in zip(self.rings, masks, strict=True)))

    def emptied(self) -> Queue:
        """The queue after the cross-entity phase."""
        return self.replace(rings=tuple(empty(*ring.keys.shape) for ring in self.rings))

    def after_pre_round(self) -> Queue:
        """The queue after a round without a cross-entity phase."""
        return self.emptied() if self.policy == 'two_level' else self


def build(hparams: HParams, width: int, key: Array | None = None) -> Queue:
    """The queue before the first round, of keys of `width` numbers. `key` is the root key; None: empty."""
    rings = tuple(empty(hparams.queue_size, width) for _ in LEVELS[hparams.queue])
    if hparams.queue == 'single_ring' and key is not None:
        rows = jax.random.normal(rng.fold(key, 'queue'), rings[0].keys.shape)
        rings = (rings[0].replace(keys=rows / jnp.linalg.norm(rows, axis=1, keepdims=True)),)
    counts_empty = {'ignore': False, 'count': True, 'auto': hparams.queue == 'single_ring'}[hparams.queue_empty_slots]
    return Queue(rings, hparams.queue, hparams.queue_stride, counts_empty)


def empty(size: int, width: int) -> Ring:
    """A ring of `size` empty slots for keys of `width` numbers."""
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
      mask: [R] bool, the rows to push; the others are skipped. None: all.
    """
    size, rows = ring.labels.shape[0], labels.shape[0]
    chex.assert_shape(keys, (rows, ring.keys.shape[1]))
    chex.assert_type([keys, labels], [jnp.float32, jnp.int32])
    chex.assert_shape([flags for flags in (confident, mask) if flags is not None], (rows,))
    pushed = jnp.asarray(rows) if mask is None else jnp.sum(mask)
    # Every slot looks for the last row that lands in it: where writes meet, accelerators would sort them first.
    offset = jnp.arange(size) - ring.head
    place = offset + (pushed - 1 - offset) // size * size  # among the pushed rows, negative for none
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
    """The ring as references of a contrastive loss. An empty slot contributes its stored vector, usually zeros."""
    filled = ring.labels >= 0
    return References(
        keys=ring.keys,
        labels=ring.labels,
        confident=filled if all_confident else ring.confident,
        mask=jnp.ones_like(filled) if count_empty else filled,
    )
