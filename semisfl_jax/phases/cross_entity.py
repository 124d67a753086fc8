"""The cross-entity semi-supervised phase (Section III, steps 2 to 6).

The exchange between server and clients is implicit here: client bottoms are stacked along a leading axis [A], one
map runs them all, and one gradient of the whole computation gives the server's gradient and every client's. The tests
contain an explicit counterpart that passes messages one by one and must agree.

A `ClientAxis` may give this code only a shard of the clients, A' of A. Every loss is then the contribution of their
rows to the mean. Three quantities span all clients: the server's gradient is a `psum` in each iteration, the
teacher's keys and labels, with which every anchor is compared, are an `all_gather`, and the average of the bottoms is a
`psum` at the end. Besides scalar counts and metrics, nothing else leaves a client's device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from semisfl_jax import ema, losses, rng, sampling, trees
from semisfl_jax.hparams import HParams, optimizer
from semisfl_jax.losses import References
from semisfl_jax.models import SplitModel
from semisfl_jax.phases import pseudo_label
from semisfl_jax.phases.labeling import build_labeler
from semisfl_jax.phases.state import State, nan_metrics, trainable, with_parameters
from semisfl_jax.queue import Memory
from semisfl_jax.types import (
    LOCAL_CLIENTS,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    Metrics,
    SplitParams,
    Variables,
    Views,
)

UNLABELED_METRICS = ('loss_unlabeled', 'loss_consistency', 'loss_clustering', 'mask_rate', 'pseudo_label_accuracy')


def no_cross_entity() -> Metrics:
    """The metrics of a round without a cross-entity phase: NaN."""
    return {name: jnp.full((), jnp.nan) for name in UNLABELED_METRICS}


class Exchange(NamedTuple):
    """The state that changes from iteration to iteration."""

    student: SplitParams  # `bottom` is w_{c,i} of every client, leading [A]
    teacher_bottom: Variables  # at the clients; leading [A] if clients update it (Eq. 8)
    momentum: optax.OptState
    memory: Any
    counts: Any  # the labeler's counts


def build_cross_entity(
    model: SplitModel,
    views: Views,
    hparams: HParams,
    memory: Memory | None,
    axis: ClientAxis = LOCAL_CLIENTS,
    labels_by: str = 'teacher',
) -> Callable[..., tuple[State, Metrics]]:
    """Builds the phase, from the broadcast of the bottoms to their average.

    In each of K_u iterations each of the A active clients sends student features of a strong view and teacher
    features of a weak view, the server updates top and projection head once on all A * B rows, and each
    client receives the gradient of its own rows. The phase is skipped in the first `pre_rounds` rounds.

    Args:
      model: the split model.
      views: augmentations.
      hparams: settings.
      memory: queue policy, or None for consistency regularization alone: no clustering, no keys, no queue.
      axis: the clients of a round.
      labels_by: source of the pseudo-labels: 'teacher', 'student' or 'switch' (`labeling`).

    Returns:
      run(key, state, federation, cohort, lr []) -> state, metrics. The cohort contains the local clients.
    """
    switched = labels_by == 'switch'
    weak, strong = axis.map(views.weak), axis.map(views.strong)
    train_bottoms = axis.map(lambda variables, x, key: model.bottom(variables, x, key, True))
    teacher_axis = 0 if hparams.client_teacher_ema else None
    labeler = build_labeler(model, hparams, axis, labels_by)

    def label(
        teacher: SplitParams, features: Array, logits: Array, truth: Array, labeled: Array, mask: Array
    ) -> tuple[References, Array, dict[str, Array]]:
        """Targets and keys of weak features [A' * B, D], a mask of the confident pseudo-labels, and counts.

        A client's own labels take precedence over pseudo-labels. Without a queue there are no keys.
        """
        labels, confident = pseudo_label.guess(logits, hparams.threshold)
        unlabeled = mask & ~labeled
        counts = pseudo_label.count(labels, confident, truth, unlabeled)
        keys = None if memory is None else model.project(teacher.proj, features)
        targets = References(keys, jnp.where(labeled, truth, labels), confident | labeled, mask)
        return targets, unlabeled & confident, counts

    def clustering_rows(proj: Variables, features: Array, targets: References, references: References) -> Array:
        """C [A' * B] of the student's features [A', B, D]."""
        # Anchors are mapped per client, so that a chunked map never holds all similarities [A * B, T].
        clustering_of_client = axis.map(
            lambda rows, labels: losses.contrastive_rows(rows, labels, references, hparams.temperature)
        )
        clients, features = features.shape[0], features.reshape(-1, model.feature_size)
        rows = model.project(proj, features).reshape(clients, hparams.batch_size, -1)
        return clustering_of_client(rows, targets.labels.reshape(rows.shape[:2])).reshape(-1)

    def loss(
        parameters: SplitParams,
        exchange: Exchange,
        x: Array,
        targets: References,
        references: References | None,
        count: Array,
        keys: dict[str, Array],
    ):
        """`x`: normalized strong views [A', B, H, W, C]. `count`: rows of all participating clients."""
        student = with_parameters(exchange.student, parameters)
        weight = targets.mask.astype(jnp.float32)
        features, bottom = train_bottoms(student.bottom, x, keys['student_dropout'])  # sent to the server: [A', B, D]
        logits, top = model.tops(student.top, features, keys['top_dropout'])
        logits = logits.reshape(-1, logits.shape[-1])
        consistency = losses.consistency(logits, targets.labels, targets.confident, weight, count)
        value, metrics = hparams.consistency_weight * consistency, {'loss_consistency': consistency}
        if references is not None:
            clustering = losses.row_mean(clustering_rows(student.proj, features, targets, references), weight, count)
            value = value + hparams.clustering_weight * clustering
            metrics['loss_clustering'] = clustering
        metrics['loss_unlabeled'] = value
        return value, (SplitParams(bottom, top, student.proj), metrics)

    def run(key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array) -> tuple[State, Metrics]:
        clients = cohort.ids.shape[0]
        weight = cohort.weight * (federation.size[cohort.ids] > 0)  # a client without data does not participate
        mask = jnp.repeat(weight > 0, hparams.batch_size)
        global_mask = axis.all_gather(mask)
        num_participating, count = axis.psum((jnp.sum(weight), jnp.sum(mask.astype(jnp.float32))))
        sgd = optimizer(hparams, lr)
        round_key = rng.fold(key, 'cross_entity', state.round)

        def iteration(exchange: Exchange, inputs):
            t, rows, labeled = inputs  # [], [A', B], [A', B]
            images, truth = federation.client_images[rows], federation.client_labels[rows].reshape(-1)
            keys = {
                name: jax.vmap(lambda client, name=name: rng.fold(round_key, name, client, t))(cohort.ids)
                for name in ('weak', 'strong', 'student_dropout', 'teacher_dropout', 'top_dropout')
            }
            x_weak = views.normalize(weak(keys['weak'], images))
            x_strong = views.normalize(strong(keys['strong'], images))
            teacher = state.teacher._replace(bottom=exchange.teacher_bottom)
            by_teacher = labeler.by_teacher(exchange.counts)
            weak_rows = labeler.label(teacher, exchange.student, by_teacher, x_weak, keys['teacher_dropout'])
            targets, guesses, counts = label(teacher, *weak_rows, truth, labeled.reshape(-1), mask)
            references = None
            if memory is not None:
                all_targets = References(
                    *axis.all_gather((targets.keys, targets.labels, targets.confident)), mask=global_mask
                )
                references = memory.cross_entity_references(exchange.memory, all_targets)
            if switched:
                counts['by_student'] = jnp.sum(~by_teacher * weight)

            parameters = trainable(exchange.student)
            gradient, (student, metrics) = jax.grad(loss, has_aux=True)(
                parameters, exchange, x_strong, targets, references, count, keys
            )
            top, proj = axis.psum((gradient.top, gradient.proj))
            # A client follows the mean loss of its own rows, not its share of the mean over all (Eq. 7).
            gradient = SplitParams(jax.tree.map(lambda g: g * num_participating, gradient.bottom), top, proj)
            # The optimizer is element-wise: one call steps the server's pieces and, along [A], every client's.
            updates, momentum = sgd.update(gradient, exchange.momentum, parameters)
            student = with_parameters(student, optax.apply_updates(parameters, updates))
            teacher_bottom = exchange.teacher_bottom
            if hparams.client_teacher_ema:
                teacher_bottom = ema.update(teacher_bottom, student.bottom, hparams.ema_decay)
            queued = exchange.memory if memory is None else memory.push_unlabeled(exchange.memory, all_targets, t)
            labeled_so_far = labeler.count(exchange.counts, targets.labels, guesses)
            return Exchange(student, teacher_bottom, momentum, queued, labeled_so_far), (metrics, counts)

        student = state.student._replace(bottom=trees.replicate(state.student.bottom, clients))
        start = Exchange(
            student=student,
            teacher_bottom=trees.replicate(state.teacher.bottom, clients)
            if teacher_axis == 0
            else state.teacher.bottom,
            momentum=sgd.init(trainable(student)),
            memory=state.memory,
            counts=labeler.start(clients, state.student.top),
        )
        rows, labeled = sampling.client_rows(
            key, federation, cohort, hparams.k_u, hparams.batch_size, hparams.labeled_rows, order=hparams.sampling
        )
        per_iteration = (jnp.arange(hparams.k_u), jnp.swapaxes(rows, 0, 1), jnp.swapaxes(labeled, 0, 1))
        end, (metrics, counts) = jax.lax.scan(iteration, start, per_iteration)

        bottom = trees.weighted_mean(end.student.bottom, weight, otherwise=state.student.bottom, psum=axis.psum)
        metrics, counts = axis.psum((metrics, jax.tree.map(jnp.sum, counts)))
        metrics = {
            **jax.tree.map(jnp.mean, metrics),
            **pseudo_label.rates(counts),
        }
        if switched:
            metrics['student_labels'] = counts['by_student'] / (num_participating * hparams.k_u)
        # Without participating clients the server's pieces get no gradient, but weight decay would still change them.
        student = jax.tree.map(
            lambda new, old: jnp.where(num_participating > 0, new, old),
            end.student._replace(bottom=bottom),
            state.student,
        )
        reset_queue = state.memory if memory is None else memory.init()
        return state.replace(student=student, memory=reset_queue), metrics

    def pre_round(state: State) -> State:
        return state if memory is None else state.replace(memory=memory.after_pre_round(state.memory))

    def run_after_pre_rounds(key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array):
        nothing = nan_metrics(run, key, state, federation, cohort, lr)
        return jax.lax.cond(
            state.round < hparams.pre_rounds,
            lambda: (pre_round(state), nothing),
            lambda: run(key, state, federation, cohort, lr),
        )

    return run_after_pre_rounds if hparams.pre_rounds else run
