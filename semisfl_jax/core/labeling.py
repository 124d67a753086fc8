"""Who labels the clients' images in an iteration of the cross-entity phase: the teacher or a client's own student."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax.core import switching
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.state import num_classes
from semisfl_jax.core.types import Array, ClientAxis, SplitParams, Variables
from semisfl_jax.models import SplitModel


class Labeler(NamedTuple):
    """The functions of a labeling choice, for A' local clients. `counts` is () if the choice is fixed."""

    start: Callable[..., Any]  # A', top -> counts [A', K] of a new round
    by_teacher: Callable[[Any], Array | bool]  # counts -> [A'] bool, or one for all
    # teacher, student (bottom: [A', ...]), by_teacher, weak views [A', B, H, W, C], keys [A']
    # -> features [A' * B, D], logits [A' * B, K]
    label: Callable[..., tuple[Array, Array]]
    tally: Callable[[Any, Array, Array], Any]  # counts, pseudo-labels [A' * B], counted [A' * B] bool -> counts


def build_labeler(model: SplitModel, hparams: HParams, axis: ClientAxis, labels_by: str) -> Labeler:
    """The labeler that `labels_by` names: 'teacher', 'student' or 'switch', FedSwitch's choice between the two.

    A client sends the server one set of features of the weak view, from the bottom that labels it.
    `client_teacher_bn` selects whether that bottom runs in evaluation mode ('eval') or in training mode ('train': batch
    statistics, and dropout if the bottom has any).

    Args:
      model: the split model.
      hparams: settings.
      axis: the clients of a round.
      labels_by: 'teacher', 'student', or 'switch': by the confident pseudo-labels that the client has been given so far
        in the round (`switching`), which needs no extra message. In the first iteration the teacher labels.
    """
    teacher_axis = 0 if hparams.client_teacher_ema else None
    batch_statistics = hparams.client_teacher_bn == 'train'

    def features(bottom: Variables, x: Array, key: Array) -> Array:
        return model.bottom(bottom, x, key, batch_statistics)[0]

    def features_by_either(by_teacher: Array, teacher: Variables, student: Variables, x: Array, key: Array) -> Array:
        return features(jax.tree.map(partial(jnp.where, by_teacher), teacher, student), x, key)

    def logits(top: Variables, rows: Array) -> Array:
        return model.top(top, rows, None, False)[0]

    def by_one(bottoms: Callable, bottom: Variables, top: Variables, x: Array, keys: Array) -> tuple[Array, Array]:
        rows = bottoms(bottom, x, keys).reshape(-1, model.feature_size)
        return rows, logits(top, rows)

    # If clients share the teacher's weights, the map over clients is one large batch instead of many small ones.
    teacher_bottoms = axis.map(features, in_axes=(teacher_axis, 0, 0))
    student_bottoms = axis.map(features)
    either_bottoms = axis.map(features_by_either, in_axes=(0, teacher_axis, 0, 0, 0))

    def by_either(
        teacher: SplitParams, student: SplitParams, by_teacher: Array, x: Array, keys: Array
    ) -> tuple[Array, Array]:
        rows = either_bottoms(by_teacher, teacher.bottom, student.bottom, x, keys).reshape(-1, model.feature_size)
        whose = jnp.repeat(by_teacher, x.shape[1])[:, None]
        return rows, jnp.where(whose, logits(teacher.top, rows), logits(student.top, rows))

    def start(clients: int, top: Variables) -> Array:
        return jnp.zeros((clients, num_classes(model, top)))

    def count(counts: Array, labels: Array, counted: Array) -> Array:
        of_client = counts.shape[0], -1
        return counts + switching.histogram(labels.reshape(of_client), counted.reshape(of_client), counts.shape[-1])

    if labels_by == 'switch':
        return Labeler(start, partial(switching.by_teacher, beta_iid=hparams.options.beta_iid), by_either, count)
    teaches = labels_by == 'teacher'

    def label(
        teacher: SplitParams, student: SplitParams, by_teacher: bool, x: Array, keys: Array
    ) -> tuple[Array, Array]:
        if by_teacher:
            return by_one(teacher_bottoms, teacher.bottom, teacher.top, x, keys)
        return by_one(student_bottoms, student.bottom, student.top, x, keys)

    return Labeler(lambda clients, top: (), lambda counts: teaches, label, lambda counts, *_: counts)
