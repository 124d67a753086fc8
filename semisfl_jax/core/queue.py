"""The memory queue of teacher keys (Section III; paper and code differ, so the policy is an option: docs/ledger.md).

`Queue` is one ring. A `Memory` bundles the pure functions of a policy over one or two rings:

- `two_level`, the paper's: a level for supervised keys (S) and one for unlabeled keys (U). Unlabeled keys enter U
  at every iteration and S at every `stride`-th, so supervised keys are evicted from S more slowly.
- `single_ring`, the authors' published code: both phases share one ring. Its supervised phase writes keys and
  labels but not the confidence flags, so these keys act only as negatives in the cross-entity phase.
- `off`: the current batch only.

All are emptied after the cross-entity phase. After a round without one, `two_level` is emptied too, while the single
ring is left unchanged, because nothing else clears it in that code. Empty slots are either ignored (`ignore`) or
counted in the denominator as zero vectors, each adding exp(0), as in the authors' code (`count`). Before the first key,
the authors' ring is not zero but filled with random unit vectors, which are then counted instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from semisfl_jax.core import rng
from semisfl_jax.core.losses import References, concatenate
from semisfl_jax.core.types import Array, Queue


def init(size: int, width: int) -> Queue:
    """An empty ring of `size` slots for keys of `width` numbers."""
    return Queue(
        keys=jnp.zeros((size, width), jnp.float32),
        labels=jnp.full((size,), -1, jnp.int32),
        confident=jnp.zeros((size,), bool),
        head=jnp.zeros((), jnp.int32),
    )


def push(
    queue: Queue,
    keys: Array,
    labels: Array,
    confident: Array | None,
    enabled: Array | bool = True,
    mask: Array | None = None,
) -> Queue:
    """Writes a batch at the head of the ring, over the oldest slots.

    Args:
      queue: Q slots.
      keys: [R, P]. If R exceeds Q, only the last Q rows remain, as if they were pushed one by one.
      labels: [R] int32.
      confident: [R] bool; None leaves the flags of the overwritten slots unchanged.
      enabled: [] bool; False leaves the queue unchanged (a traced condition without a branch).
      mask: [R] bool, the rows to push; the others are skipped. None: all.
    """
    size, rows = queue.labels.shape[0], labels.shape[0]
    chex.assert_shape(keys, (rows, queue.keys.shape[1]))
    chex.assert_type([keys, labels], [jnp.float32, jnp.int32])
    chex.assert_shape([flags for flags in (confident, mask) if flags is not None], (rows,))
    pushed = jnp.asarray(rows) if mask is None else jnp.sum(mask)
    # Every slot looks for the last row that lands in it: where writes meet, accelerators would sort them first.
    offset = (jnp.arange(size) - queue.head) % size  # 0 at the head
    place = offset + (pushed - 1 - offset) // size * size  # among the pushed rows, negative for none
    written = enabled & (place >= 0)
    row = place if mask is None else jnp.sum(jnp.cumsum(mask) <= place[:, None], axis=1)
    row = jnp.where(written, row, 0)

    def fill(old: Array, new: Array) -> Array:
        return jnp.where(written.reshape(-1, *[1] * (old.ndim - 1)), new[row], old)

    return Queue(
        keys=fill(queue.keys, keys),
        labels=fill(queue.labels, labels),
        confident=queue.confident if confident is None else fill(queue.confident, confident),
        head=(queue.head + jnp.where(enabled, pushed, 0)) % size,
    )


def as_references(queue: Queue, count_empty: bool, all_confident: bool = False) -> References:
    """The ring as references of a contrastive loss. An empty slot contributes its stored vector, usually zeros."""
    filled = queue.labels >= 0
    return References(
        keys=queue.keys,
        labels=queue.labels,
        confident=filled if all_confident else queue.confident,
        mask=jnp.ones_like(filled) if count_empty else filled,
    )


class Memory(NamedTuple):
    """A queue policy. `state` is a pytree of Queues; batches come as References of teacher keys."""

    init: Callable[[], Any]  # () -> empty state, as after the cross-entity phase
    start: Callable[[Array], Any]  # key -> state before the first round
    after_pre_round: Callable[[Any], Any]  # state -> state, after a round without a cross-entity phase
    supervised_references: Callable[[Any, References], References]  # state, batch -> references of the loss
    cross_entity_references: Callable[[Any, References], References]
    push_supervised: Callable[[Any, References], Any]  # state, batch -> state, after the loss
    push_unlabeled: Callable[[Any, References, Array], Any]  # state, batch, iteration t [] -> state


_Levels = tuple[Queue, Queue]  # supervised, unlabeled


def two_level(size: int, width: int, stride: int, count_empty: bool) -> Memory:
    """The paper's queue. `size` slots per level; the state is (supervised level, unlabeled level)."""

    def supervised_references(state: _Levels, batch: References) -> References:
        return concatenate(batch, as_references(state[0], count_empty))

    def cross_entity_references(state: _Levels, batch: References) -> References:
        supervised, unlabeled = state
        return concatenate(batch, as_references(unlabeled, count_empty), as_references(supervised, count_empty))

    def push_supervised(state: _Levels, batch: References) -> _Levels:
        supervised, unlabeled = state
        return push(supervised, batch.keys, batch.labels, batch.confident), unlabeled

    def push_unlabeled(state: _Levels, batch: References, t: Array) -> _Levels:
        supervised, unlabeled = state
        rows = (batch.keys, batch.labels, batch.confident)
        mask = {'mask': batch.mask}
        return push(supervised, *rows, enabled=(t + 1) % stride == 0, **mask), push(unlabeled, *rows, **mask)

    def empty() -> _Levels:
        return init(size, width), init(size, width)

    return Memory(
        init=empty,
        start=lambda key: empty(),
        after_pre_round=lambda state: empty(),
        supervised_references=supervised_references,
        cross_entity_references=cross_entity_references,
        push_supervised=push_supervised,
        push_unlabeled=push_unlabeled,
    )


def single_ring(size: int, width: int, count_empty: bool) -> Memory:
    """The queue of the authors' published code. The state is one ring."""

    def start(key: Array) -> Queue:
        rows = jax.random.normal(rng.fold(key, 'queue'), (size, width))
        return init(size, width).replace(keys=rows / jnp.linalg.norm(rows, axis=1, keepdims=True))

    return Memory(
        init=lambda: init(size, width),
        start=start,
        after_pre_round=lambda state: state,
        supervised_references=lambda state, batch: concatenate(
            batch, as_references(state, count_empty, all_confident=True)
        ),
        cross_entity_references=lambda state, batch: concatenate(batch, as_references(state, count_empty)),
        push_supervised=lambda state, batch: push(state, batch.keys, batch.labels, None),
        push_unlabeled=lambda state, batch, t: push(state, batch.keys, batch.labels, batch.confident, mask=batch.mask),
    )


def off() -> Memory:
    """No queue: references are the teacher keys of the current batch."""
    return Memory(
        init=lambda: (),
        start=lambda key: (),
        after_pre_round=lambda state: state,
        supervised_references=lambda state, batch: batch,
        cross_entity_references=lambda state, batch: batch,
        push_supervised=lambda state, batch: state,
        push_unlabeled=lambda state, batch, t: state,
    )


def build(name: str, size: int, width: int, stride: int, empty_slots: str) -> Memory:
    """The queue policy of a configuration.

    Args:
      name: 'two_level', 'single_ring' or 'off'.
      size: Q, slots per level.
      width: P, numbers of a key.
      stride: of 'two_level': iterations after which unlabeled keys also enter the supervised level.
      empty_slots: 'ignore', 'count' or 'auto' ('count' for the single ring only).

    Raises:
      ValueError: an unknown name.
    """
    count_empty = empty_slots == 'count' or (empty_slots == 'auto' and name == 'single_ring')
    if name == 'two_level':
        return two_level(size, width, stride, count_empty)
    if name == 'single_ring':
        return single_ring(size, width, count_empty)
    if name == 'off':
        return off()
    raise ValueError(f'unknown queue {name!r}')
