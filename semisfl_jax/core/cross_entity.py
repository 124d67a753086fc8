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

from functools import partial

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.core import ahead, ema, pseudo_label, rng, sampling, trees
from semisfl_jax.core.cross_entity_loss import loss, make_targets
from semisfl_jax.core.cross_entity_types import AugmentedBatch, Batch, CrossEntity, Exchange, RoundContext, RowLosses
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.labeling import build_labeler
from semisfl_jax.core.losses import References
from semisfl_jax.core.queue import Memory
from semisfl_jax.core.state import CrossEntityPhase, State, nan_metrics, trainable, with_parameters
from semisfl_jax.core.types import (
    LOCAL_CLIENTS,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    Metrics,
    Reported,
    SplitParams,
    Views,
)
from semisfl_jax.models import SplitModel

UNLABELED_METRICS = ('loss_unlabeled', 'loss_consistency', 'loss_clustering', 'mask_rate', 'pseudo_label_accuracy')


def no_cross_entity() -> Metrics:
    """The metrics of a round without a cross-entity phase: NaN."""
    return {name: jnp.full((), jnp.nan) for name in UNLABELED_METRICS}


def build_cross_entity(
    model: SplitModel,
    views: Views,
    hparams: HParams,
    memory: Memory | None,
    axis: ClientAxis = LOCAL_CLIENTS,
    labels_by: str = 'teacher',
    row_losses: RowLosses | None = None,
) -> CrossEntityPhase:
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
      row_losses: losses of one's own in place of consistency regularization (`RowLosses`); clustering regularization,
        if there is a queue, is added to them.

    Returns:
      run(key, state, federation, cohort, lr []) -> state, metrics. The cohort contains the local clients.
    """
    labeler = build_labeler(model, hparams, axis, labels_by)
    phase = CrossEntity(model, views, hparams, memory, axis, labeler, labels_by == 'switch', row_losses)
    return partial(run_after_pre_rounds if hparams.pre_rounds else run, phase)


def run_after_pre_rounds(
    phase: CrossEntity, key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array
) -> tuple[State, Metrics]:
    """`run`, or in the first `pre_rounds` rounds only what the queue does at the end of such a round."""
    arguments = key, state, federation, cohort, lr
    nothing = nan_metrics(partial(run, phase), *arguments)

    def skip() -> tuple[State, Metrics]:
        if phase.memory is None:
            return state, nothing
        return state.replace(memory=phase.memory.after_pre_round(state.memory)), nothing

    return jax.lax.cond(state.round < phase.hparams.pre_rounds, skip, lambda: run(phase, *arguments))


def run(
    phase: CrossEntity, key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array
) -> tuple[State, Metrics]:
    """K_u iterations and the average of the bottoms.

    Args:
      phase: as `build_cross_entity` makes it.
      key: root key of the run.
      state: before the phase.
      federation: the images, and who holds which.
      cohort: the A local clients.
      lr: learning rate [].

    Returns:
      The state with the student after the phase and (if there is one) an empty queue, and the metrics, scalars.
    """
    hparams, axis = phase.hparams, phase.axis
    weight = cohort.weight * (federation.size[cohort.ids] > 0)  # a client without data does not participate
    mask = jnp.repeat(weight > 0, hparams.batch_size)
    global_mask = axis.all_gather(mask)
    num_participating, num_rows = axis.psum((jnp.sum(weight), jnp.sum(mask.astype(jnp.float32))))
    context = RoundContext(
        key=round_key(key, state.round),
        teacher=state.teacher,
        federation=federation,
        ids=cohort.ids,
        weight=weight,
        mask=mask,
        global_mask=global_mask,
        num_participating=num_participating,
        num_rows=num_rows,
        tx=optimizer(hparams, lr),
    )
    start = broadcast(phase, context, state)
    rows, labeled = sampling.client_rows(key, federation, cohort, hparams.batches, hparams.sampling)
    batches = Batch(jnp.arange(hparams.k_u), jnp.swapaxes(rows, 0, 1), jnp.swapaxes(labeled, 0, 1))
    end, (metrics, counts) = iterations(phase, context, start, batches)

    bottom = trees.weighted_mean(end.student.bottom, weight, otherwise=state.student.bottom, psum=axis.psum)
    metrics, counts = axis.psum((metrics, jax.tree.map(jnp.sum, counts)))
    metrics = {**jax.tree.map(jnp.mean, metrics), **pseudo_label.rates(counts)}
    if phase.switched:
        metrics['student_labels'] = counts['by_student'] / (num_participating * hparams.k_u)
    # Without participating clients the server's pieces get no gradient, but weight decay would still change them.
    student = jax.tree.map(
        lambda new, old: jnp.where(num_participating > 0, new, old), end.student._replace(bottom=bottom), state.student
    )
    reset_queue = state.memory if phase.memory is None else phase.memory.init()
    return state.replace(student=student, memory=reset_queue), metrics


def broadcast(phase: CrossEntity, context: RoundContext, state: State) -> Exchange:
    """The clients receive the bottoms of student and teacher; the optimizer starts afresh."""
    clients = context.ids.shape[0]
    student = state.student._replace(bottom=trees.replicate(state.student.bottom, clients))
    clients_keep_teacher = phase.hparams.client_teacher_ema
    return Exchange(
        student=student,
        teacher_bottom=trees.replicate(state.teacher.bottom, clients) if clients_keep_teacher else state.teacher.bottom,
        opt_state=context.tx.init(trainable(student)),
        memory=state.memory,
        counts=phase.labeler.start(clients, state.student.top),
    )


def iterations(phase: CrossEntity, context: RoundContext, start: Exchange, batches: Batch) -> tuple[Exchange, Reported]:
    """All K_u iterations, of batches with a leading [K_u]; metrics and counts have it, too."""
    k_u, at_once = phase.hparams.k_u, iterations_at_once(phase, context, batches)

    def reporting(exchange: Exchange, inputs: tuple[Batch, AugmentedBatch]) -> tuple[Exchange, Array]:
        exchange, reported = iteration(phase, context, exchange, *inputs)
        return exchange, trees.pack(reported)

    def first(exchange: Exchange, batches: Batch) -> Reported:
        """For shapes alone: the views have those of the images."""
        batch = jax.tree.map(lambda x: x[0], batches)
        images = context.federation.client_images[batch.rows]
        return iteration(phase, context, exchange, batch, AugmentedBatch(images, images))[1]

    def alone(exchange: Exchange, batch: Batch) -> tuple[Exchange, Array]:
        return reporting(exchange, (batch, augment(phase, context, batch)))

    def block(exchange: Exchange, batches: Batch) -> tuple[Exchange, Array]:
        with jax.named_scope('views_of_iterations'):
            seen = jax.vmap(partial(augment, phase, context))(batches)
        return jax.lax.scan(reporting, exchange, (batches, seen))

    if at_once == 1:
        end, packed = jax.lax.scan(alone, start, batches)
    else:
        blocks = jax.tree.map(lambda x: x.reshape(k_u // at_once, at_once, *x.shape[1:]), batches)
        end, packed = jax.lax.scan(block, start, blocks)
    return end, trees.unpack(packed.reshape(k_u, -1), jax.eval_shape(first, start, batches))


def iterations_at_once(phase: CrossEntity, context: RoundContext, batches: Batch) -> int:
    """The number of iterations whose views are computed together: a divisor of K_u."""
    k_u, most = phase.hparams.k_u, ahead.most_steps(context.federation.client_images, 2 * batches.rows[0].size)
    return max(divisor for divisor in range(1, k_u + 1) if k_u % divisor == 0 and divisor <= most)


def augment(phase: CrossEntity, context: RoundContext, batch: Batch) -> AugmentedBatch:
    """The views of a batch."""
    images = context.federation.client_images[batch.rows]
    keys = iteration_keys(context.key, context.ids, batch.t)
    return AugmentedBatch(
        weak_views(phase.views, phase.axis, keys, images), phase.axis.map(phase.views.strong)(keys['strong'], images)
    )


@jax.named_scope('cross_entity_iteration')
def iteration(
    phase: CrossEntity, context: RoundContext, exchange: Exchange, batch: Batch, seen: AugmentedBatch
) -> tuple[Exchange, Reported]:
    """One iteration: labels, losses, one step of the server's pieces and of every client's bottom.

    Args:
      phase, context: what does not change.
      exchange: before the iteration.
      batch: what the clients read.
      seen: its views.

    Returns:
      The exchange after the iteration, and metrics and counts of the local clients.
    """
    t, rows, labeled = batch
    views, labeler, memory, axis = phase.views, phase.labeler, phase.memory, phase.axis
    truth = context.federation.client_labels[rows].reshape(-1)
    keys = iteration_keys(context.key, context.ids, t)
    x_weak, x_strong = views.normalize(seen.weak), views.normalize(seen.strong)
    teacher = context.teacher._replace(bottom=exchange.teacher_bottom)
    by_teacher = labeler.by_teacher(exchange.counts)
    weak_rows = labeler.label(teacher, exchange.student, by_teacher, x_weak, keys['teacher_dropout'])
    targets, guesses, counts = make_targets(phase, teacher, *weak_rows, truth, labeled.reshape(-1), context.mask)
    references = None
    if memory is not None:
        all_keys, all_labels, all_confident = axis.all_gather((targets.keys, targets.labels, targets.confident))
        all_targets = References(all_keys, all_labels, all_confident, context.global_mask)
        references = memory.cross_entity_references(exchange.memory, all_targets)
    if phase.switched:
        counts['by_student'] = jnp.sum(~by_teacher * context.weight)

    parameters = trainable(exchange.student)
    gradient, (student, metrics) = jax.grad(partial(loss, phase), has_aux=True)(
        parameters, exchange.student, x_strong, targets, references, context.num_rows, keys
    )
    top, proj = axis.psum((gradient.top, gradient.proj))
    # A client follows the mean loss of its own rows, not its share of the mean over all (Eq. 8).
    bottom = jax.tree.map(lambda g: g * context.num_participating, gradient.bottom)
    # The optimizer is element-wise: one call steps the server's pieces and, along [A'], every client's.
    updates, opt_state = context.tx.update(SplitParams(bottom, top, proj), exchange.opt_state, parameters)
    student = with_parameters(student, optax.apply_updates(parameters, updates))
    teacher_bottom = exchange.teacher_bottom
    if phase.hparams.client_teacher_ema:
        teacher_bottom = ema.update(teacher_bottom, student.bottom, phase.hparams.ema_decay)
    queued = exchange.memory if memory is None else memory.push_unlabeled(exchange.memory, all_targets, t)
    labeled_so_far = labeler.tally(exchange.counts, targets.labels, guesses)
    return Exchange(student, teacher_bottom, opt_state, queued, labeled_so_far), (metrics, counts)


def round_key(key: Array, index: Array) -> Array:
    """The key of the phase in round `index` [] (0-based); `key` is the root key."""
    return rng.fold(key, 'cross_entity', index)


def iteration_keys(key: Array, ids: Array, t: Array) -> dict[str, Array]:
    """The keys [A'] of the clients `ids` in iteration `t` [], by what they are for; `key` is a `round_key`."""
    return {
        name: jax.vmap(lambda client, name=name: rng.fold(key, name, client, t))(ids)
        for name in ('weak', 'strong', 'student_dropout', 'teacher_dropout', 'top_dropout')
    }


def weak_views(views: Views, axis: ClientAxis, keys: dict[str, Array], images: Array) -> Array:
    """The weak views that are labeled, of images [A', B, H, W, C] uint8."""
    return axis.map(views.weak)(keys['weak'], images)
