"""The server-side supervised phase (Section III, step 1)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from semisfl_jax import ema, losses, rng, sampling
from semisfl_jax.hparams import HParams, optimizer
from semisfl_jax.losses import References
from semisfl_jax.models import SplitModel
from semisfl_jax.phases.state import State, trainable, with_parameters
from semisfl_jax.queue import Memory
from semisfl_jax.types import (
    Array,
    Federation,
    Metrics,
    SplitParams,
    Variables,
    Views,
)

SUPERVISED_METRICS = ('loss_supervised', 'loss_supervised_ce', 'loss_supervised_contrastive', 'supervised_accuracy')


def build_supervised(
    model: SplitModel, views: Views, hparams: HParams, memory: Memory | None, label_weight: float = 1.0
) -> Callable[..., tuple[State, Metrics]]:
    """The server-side supervised phase (Section III, step 1).

    Each of the K_s steps draws a labeled batch and two views of it. The student sees view 1; its loss is the
    cross-entropy plus the supervised-contrastive loss against the teacher's keys of view 2 and the queue. Then the
    teacher is updated, and the keys enter the queue.

    If clients are spread over devices, every device runs this entire phase on the same batches: a step on B_s images
    is small compared with the cohort's A * B, and shards of it would have to synchronize in each of the K_s steps.

    Args:
      model: the split model.
      views: augmentations; `supervised` makes both views.
      hparams: settings.
      memory: queue policy, or None to train on cross-entropy alone.
      label_weight: weight of the cross-entropy.

    Returns:
      run(key, state, federation, k_s [] int32, lr []) -> state, metrics. `k_s` may be traced: one compilation
      serves every K_s. A state without a teacher stays without one; without `momentum` a fresh optimizer is used.
    """

    def teacher_features(state: State, x: Array, dropout_key: Array) -> tuple[Array, Variables]:
        """Features of normalized images, and the teacher's bottom, possibly with updated statistics."""
        bottom = state.teacher.bottom
        if hparams.server_teacher_bn == 'eval':
            return model.bottom(bottom, x, None, False)
        return jax.lax.cond(
            state.round == 0,
            lambda: model.bottom(bottom, x, dropout_key, True),
            lambda: model.bottom(bottom, x, None, False),
        )

    def teacher_keys(state: State, images: Array, labels: Array, dropout_key: Array) -> tuple[References, State]:
        features, bottom = teacher_features(state, views.normalize(images), dropout_key)
        keys, all_true = model.project(state.teacher.proj, features), jnp.ones_like(labels, bool)
        references = References(keys, labels, confident=all_true, mask=all_true)
        return references, state.replace(teacher=state.teacher._replace(bottom=bottom))

    def contrastive_loss(state: State, rows: Array, labels: Array, keys: References, weight: Array) -> Array:
        """`rows` are the student's projections [B_s, P]."""
        if hparams.supervised_references == 'teacher_keys':
            references = memory.supervised_references(state.memory, keys)
            return losses.contrastive(rows, labels, references, hparams.temperature, weight)
        # Eq. 3 taken literally: the batch's own student projections, except the anchor itself, and the queue
        references = memory.supervised_references(state.memory, keys._replace(keys=rows))
        batch = labels.shape[0]
        itself = jnp.eye(batch, references.labels.shape[0], dtype=bool)  # the batch comes first
        return losses.contrastive(rows, labels, references, hparams.temperature, weight, comparable=~itself)

    def loss(parameters, state, images, labels, valid, keys, dropout_key):
        student = with_parameters(state.student, parameters)
        weight = jnp.ones(labels.shape, jnp.float32) if valid is None else valid.astype(jnp.float32)
        dropout_keys = (rng.fold(dropout_key, piece) for piece in ('bottom', 'top'))
        x = views.normalize(images)
        features, bottom = model.bottom(student.bottom, x, next(dropout_keys), True, valid)
        logits, top = model.top(student.top, features, next(dropout_keys), True, valid)
        cross_entropy = losses.cross_entropy(logits, labels, weight)
        contrastive = jnp.zeros(())
        if keys is not None:
            rows = model.project(student.proj, features)
            contrastive = contrastive_loss(state, rows, labels, keys, weight)
        value = label_weight * cross_entropy + hparams.contrastive_weight * contrastive
        accuracy = losses.row_mean(jnp.argmax(logits, axis=-1) == labels, weight)
        metrics = dict(zip(SUPERVISED_METRICS, (value, cross_entropy, contrastive, accuracy), strict=True))
        return value, (SplitParams(bottom, top, student.proj), metrics)

    def step(key: Array, state: State, momentum, federation: Federation, lr: Array):
        server_rows = federation.server_index
        batch, valid = (hparams.server_batch_size, server_rows.shape[0]), None
        if hparams.short_batches:
            rows, valid = sampling.server_pass_rows(key, state.step, *batch)
        else:
            rows = sampling.server_rows(key, state.step, *batch, hparams.server_list_steps)
        rows = server_rows[rows]
        images, labels = federation.server_images[rows], federation.server_labels[rows]
        step_key = rng.fold(key, 'supervised', state.step)
        keys = None
        if memory is None:
            view = views.supervised(rng.fold(step_key, 'views'), images)
        else:  # two independent draws, in one call
            both = views.supervised(rng.fold(step_key, 'views'), jnp.concatenate([images, images]))
            view, other_view = jnp.split(both, 2)
            keys, state = teacher_keys(state, other_view, labels, rng.fold(step_key, 'teacher_dropout'))
        parameters = trainable(state.student)
        gradient, (student, metrics) = jax.grad(loss, has_aux=True)(
            parameters, state, view, labels, valid, keys, rng.fold(step_key, 'dropout')
        )
        updates, momentum = optimizer(hparams, lr).update(gradient, momentum, parameters)
        student = with_parameters(student, optax.apply_updates(parameters, updates))
        keep = ema.coefficient(state.step + 1, hparams.ema_decay, hparams.ema_warmup)
        state = state.replace(
            step=state.step + 1,
            student=student,
            teacher=ema.update(state.teacher, student, keep) if state.teacher else (),
            memory=state.memory if keys is None else memory.push_supervised(state.memory, keys),
        )
        return state, momentum, metrics

    def run(key: Array, state: State, federation: Federation, k_s: Array, lr: Array) -> tuple[State, Metrics]:
        def body(_, carry):
            state, momentum, sums = carry
            state, momentum, metrics = step(key, state, momentum, federation, lr)
            return state, momentum, jax.tree.map(jnp.add, sums, metrics)

        carried = bool(jax.tree.leaves(state.momentum))
        momentum = state.momentum if carried else optimizer(hparams, lr).init(trainable(state.student))
        sums = {name: jnp.zeros(()) for name in SUPERVISED_METRICS}
        state, momentum, sums = jax.lax.fori_loop(0, k_s, body, (state, momentum, sums))
        if carried:
            state = state.replace(momentum=momentum)
        return state, {name: value / k_s for name, value in sums.items()}

    return run
