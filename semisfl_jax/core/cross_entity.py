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

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.core import ema, losses, pseudo_label, rng, sampling, supervised, switching, trees
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.losses import References
from semisfl_jax.core.queue import Memory
from semisfl_jax.core.state import CrossEntityPhase, State, nan_metrics, num_classes, trainable, with_parameters
from semisfl_jax.core.types import (
    LOCAL_CLIENTS,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    Metrics,
    Reported,
    SplitModel,
    SplitParams,
    Variables,
    Views,
)

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
    k_u, most = phase.hparams.k_u, supervised.steps_at_once(context.federation.client_images, 2 * batches.rows[0].size)
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


class Rows(NamedTuple):
    """What the server has of the R = A' * B rows of an iteration: the input of a loss of one's own (`RowLosses`).

    The gradient goes through what is the student's; the rest is constant.
    """

    logits: Array  # [R, K] of the student, of strong views
    features: Array  # [R, D] the same rows as its bottoms sent them
    projections: Array | None  # [R, P] the same, projected to unit length; None without a queue
    teacher_logits: Array  # [R, K] of weak views, by the model that labels
    labels: Array  # [R] int32, pseudo-labels, or the client's own
    confident: Array  # [R] bool, whether the label may be learned
    labeled: Array  # [R] bool, whether it is the client's own
    references: References | None  # the teacher's keys of queue and batch; None without a queue


# A loss of one's own: values [R] by the name of their metric, which begins with 'loss_'. Every one is averaged over the
# rows of all participating clients, and their sum is trained on. Rows are of this device's clients only.
RowLosses = Callable[[Rows], Mapping[str, Array]]


class CrossEntity(NamedTuple):
    """What the phase is built from: the first argument of the functions below."""

    model: SplitModel
    views: Views
    hparams: HParams
    memory: Memory | None  # queue policy, or None for consistency regularization alone: no clustering, keys or queue
    axis: ClientAxis
    labeler: Labeler
    switched: bool  # whether each client's labeler may change from iteration to iteration
    row_losses: RowLosses | None = None  # in place of consistency regularization


class RoundContext(NamedTuple):
    """What stays the same during the iterations of a round, for A' local clients."""

    key: Array  # `round_key`
    teacher: SplitParams
    federation: Federation
    ids: Array  # [A'] int32
    weight: Array  # [A'] float32, 1 for a participating client
    mask: Array  # [A' * B] bool, their rows
    global_mask: Array  # [A * B] bool, those of all clients
    num_participating: Array  # [] float32, of all clients
    num_rows: Array  # [] float32, their rows
    tx: optax.GradientTransformation


class Batch(NamedTuple):
    """What the clients read in an iteration."""

    t: Array  # [] int32, number of the iteration
    rows: Array  # [A', B] int32, of `client_images`
    labeled: Array  # [A', B] bool, whether their clients know the labels


class AugmentedBatch(NamedTuple):
    """The views of a batch."""

    weak: Array  # [A', B, H, W, C] uint8, for the labels
    strong: Array  # the same, for the student


class Targets(NamedTuple):
    """What the rows of the local clients are trained toward."""

    keys: Array | None  # [A' * B, P] the teacher's projections, None without a queue
    logits: Array  # [A' * B, K] of weak views, by the model that labels
    labels: Array  # [A' * B] int32
    confident: Array  # [A' * B] bool
    labeled: Array  # [A' * B] bool, whether the label is the client's own
    mask: Array  # [A' * B] bool, rows of participating clients


class Exchange(NamedTuple):
    """The state that changes from iteration to iteration."""

    student: SplitParams  # `bottom` is w_{c,i} of every client, leading [A']
    teacher_bottom: Variables  # at the clients; leading [A'] if clients update it (Eq. 8)
    opt_state: optax.OptState
    memory: Any
    counts: Any  # the labeler's counts


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


TAKEN = ('loss_unlabeled', 'loss_consistency', 'loss_clustering')  # not a name of a `RowLosses`


def make_targets(
    phase: CrossEntity,
    teacher: SplitParams,
    features: Array,
    logits: Array,
    truth: Array,
    labeled: Array,
    mask: Array,
) -> tuple[Targets, Array, dict[str, Array]]:
    """Targets and keys of weak features [A' * B, D], a mask of the confident pseudo-labels, and counts.

    A client's own labels take precedence over pseudo-labels. Without a queue there are no keys.
    """
    labels, confident = pseudo_label.assign(phase.hparams, logits, truth)
    unlabeled = mask & ~labeled
    counts = pseudo_label.count(labels, confident, truth, unlabeled)
    keys = None if phase.memory is None else phase.model.project(teacher.proj, features)
    targets = Targets(keys, logits, jnp.where(labeled, truth, labels), confident | labeled, labeled, mask)
    return targets, unlabeled & confident, counts


def loss(
    phase: CrossEntity,
    parameters: SplitParams,
    student: SplitParams,
    x: Array,
    targets: Targets,
    references: References | None,
    count: Array,
    keys: dict[str, Array],
) -> tuple[Array, tuple[SplitParams, dict[str, Array]]]:
    """The local clients' share of H + C (Eq. 6).

    Args:
      phase: settings.
      parameters: of the student.
      student: bottoms [A', ...], top and projection head, whose parameters are replaced.
      x: normalized strong views [A', B, H, W, C].
      targets: of these rows [A' * B].
      references: keys that each anchor is compared with; None without a queue, and then there is no C.
      count: rows of all participating clients.
      keys: of dropout.

    Returns:
      The loss, the student with updated BatchNorm statistics, and metrics.
    """
    model, hparams = phase.model, phase.hparams
    student = with_parameters(student, parameters)
    weight = targets.mask.astype(jnp.float32)
    train_bottoms = phase.axis.map(lambda variables, x, key: model.bottom(variables, x, key, True))
    features, bottom = train_bottoms(student.bottom, x, keys['student_dropout'])  # sent to the server: [A', B, D]
    logits, top = model.tops(student.top, features, keys['top_dropout'])
    logits, features = logits.reshape(-1, logits.shape[-1]), features.reshape(-1, model.feature_size)
    projections = None if references is None else model.project(student.proj, features)
    if phase.row_losses is None:
        consistency = losses.consistency(logits, targets.labels, targets.confident, weight, count)
        value, metrics = hparams.consistency_weight * consistency, {'loss_consistency': consistency}
    else:
        teacher = targets.logits, targets.labels, targets.confident, targets.labeled
        found = check(phase.row_losses(Rows(logits, features, projections, *teacher, references)), weight.size)
        metrics = {name: losses.row_mean(row, weight, count) for name, row in found.items()}
        value = jnp.sum(jnp.stack(list(metrics.values())))
    if references is not None and projections is not None:  # one with the other
        clustering = losses.row_mean(clustering_rows(phase, projections, targets.labels, references), weight, count)
        value = value + hparams.clustering_weight * clustering
        metrics['loss_clustering'] = clustering
    metrics['loss_unlabeled'] = value
    return value, (SplitParams(bottom, top, student.proj), metrics)


def check(found: Mapping[str, Array], rows: int) -> Mapping[str, Array]:
    """What a `RowLosses` returned for so many rows R.

    Raises:
      UserError: it is not a dict of values [R], or a name is not one of a metric, or one that the phase writes itself.
    """
    if not isinstance(found, Mapping) or not found:
        what = 'an array' if hasattr(found, 'shape') else repr(found)
        raise UserError(f'row_losses returned {what}; return a dict of values [{rows}] by the names of their metrics')
    for name, values in found.items():
        if not str(name).startswith('loss_') or name in TAKEN:
            raise UserError(
                f'row_losses returned {name!r}; a name begins with loss_ and is not one of {", ".join(TAKEN)}, '
                'which the phase writes'
            )
        if (shape := jnp.shape(values)) != (rows,):
            raise UserError(
                f'row_losses returned {name!r} of shape {list(shape)}; return a value for each of the {rows} rows, '
                'whose mean the phase takes'
            )
    return found


def clustering_rows(phase: CrossEntity, projections: Array, labels: Array, references: References) -> Array:
    """C [A' * B] of the student's projections [A' * B, P] with labels [A' * B] (Eq. 5)."""
    # Anchors are mapped per client, so that a chunked map never holds all similarities [A * B, T].
    clustering_of_client = phase.axis.map(
        lambda rows, labels: losses.contrastive_rows(rows, labels, references, phase.hparams.temperature)
    )
    rows = projections.reshape(-1, phase.hparams.batch_size, projections.shape[-1])
    return clustering_of_client(rows, labels.reshape(rows.shape[:2])).reshape(-1)
