"""The cross-entity semi-supervised phase (Section III, steps 2 to 6).

The exchange between server and clients is implicit here: client bottoms are stacked along a leading axis [A], one
map runs them all, and one gradient of the whole computation gives the server's gradient and every client's. The tests
contain an explicit counterpart that passes messages one by one and must agree.

A `ClientAxis` may give this code only a shard of the clients, A' of A, and R = A' * B rows. Every loss is then the
contribution of their rows to the mean. Four quantities span all clients: the server's gradient and BatchNorm's
statistics in its part are a `psum` in each iteration, the teacher's keys and labels, with which every anchor is
compared, are an `all_gather`, and the average of the bottoms is a `psum` at the end. Besides masks, scalar counts and
metrics, and what a labeler keeps of clients, nothing else leaves a client's device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.core import losses, rng, sampling, trees
from semisfl_jax.core.errors import UserError, found
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.losses import References
from semisfl_jax.core.state import CrossEntityPhase, State, after_pre_rounds, trainable, with_parameters
from semisfl_jax.core.supervised import steps_at_once
from semisfl_jax.core.teacher import assign_pseudo_labels, count_pseudo_labels, ema, histogram, pseudo_label_rates
from semisfl_jax.core.types import (
    LOCAL_CLIENTS,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    Metrics,
    SplitModel,
    SplitParams,
    Variables,
    Views,
)

UNLABELED_METRICS = ('loss_unlabeled', 'loss_consistency', 'loss_clustering', 'mask_rate', 'pseudo_label_accuracy')

# --- what a method may replace


class WeakViews(NamedTuple):
    """What labels are made of: the weak views of the local clients in an iteration."""

    ids: Array  # [A'] int32, the clients
    weight: Array  # [A'] float32, 1 for a participating client
    teacher_logits: Array  # [R, K]
    # True: the teacher, False: each client's student, or [A'] bool: which of the two -> logits [R, K]
    logits_by: Callable[[Array | bool], Array]
    truth: Array  # [R] int32, for `assign_pseudo_labels` alone
    unlabeled: Array  # [R] bool, rows of participating clients of which they do not know the label

    def label_counts(self, labels: Array, confident: Array, classes: int) -> Array:
        """How often each client is given each class: its confident pseudo-labels, of `labels` and `confident` [R], as
        counts [A', K] float32."""
        rows, counted = labels.reshape(len(self.ids), -1), confident & self.unlabeled
        return histogram(rows, counted.reshape(rows.shape), classes)


class Labels(NamedTuple):
    """The labels of weak views. A client's own labels take precedence over them."""

    logits: Array  # [R, K], from which they come
    labels: Array  # [R] int32; K is no class, and an anchor of it has no clustering regularization
    confident: Array  # [R] bool, whether they may be learned
    state: Any = ()  # of the labeler, for the next iteration
    metrics: Mapping[str, Array] = MappingProxyType({})  # [A'] each, of which the round reports the means


class Labeler(NamedTuple):
    """Who labels the clients' images, and what it remembers from iteration to iteration of a round."""

    label: Callable[[WeakViews, Any], Labels]  # weak views, its state -> labels
    start: Callable[[Array, State], Any] = lambda ids, state: ()  # clients [A'], state -> its state in a new round
    # Whether `State.clients` [N, ...] are its states, leaves [A', ...], at the end of each client's last round, from
    # which `start` may go on
    keeps: bool = False


def teacher_labels(hparams: HParams, weak: WeakViews, labeler_state: Any) -> Labels:
    """The teacher's pseudo-labels."""
    return Labels(weak.teacher_logits, *assign_pseudo_labels(hparams, weak.teacher_logits, weak.truth))


class Rows(NamedTuple):
    """What the server has of the rows of an iteration: the input of a `RowLosses`.

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


# Values [R] by the name of their metric, which begins with 'loss_'. Every one is averaged over the rows of all
# participating clients, and `consistency_weight` times their sum is trained on.
RowLosses: TypeAlias = Callable[[Rows], Mapping[str, Array]]


def consistency(rows: Rows) -> Mapping[str, Array]:
    """Consistency regularization, H (Eq. 1)."""
    return {'loss_consistency': losses.consistency_rows(rows.logits, rows.labels, rows.confident)}


# --- the phase


class CrossEntity(NamedTuple):
    """What the phase is built from: the first argument of the functions below."""

    model: SplitModel
    views: Views
    hparams: HParams
    axis: ClientAxis
    labeler: Labeler
    row_losses: RowLosses


class RoundContext(NamedTuple):
    """What stays the same during the iterations of a round, for A' local clients."""

    key: Array  # `round_key`
    teacher: SplitParams
    federation: Federation
    ids: Array  # [A'] int32
    weight: Array  # [A'] float32, 1 for a participating client
    mask: Array  # [R] bool, their rows
    global_mask: Array  # [A * B] bool, those of all clients
    num_participating: Array  # [] float32, of all clients
    num_rows: Array  # [] float32, their rows
    tx: optax.GradientTransformation


class BatchRows(NamedTuple):
    """What the clients read in an iteration."""

    t: Array  # [] int32, number of the iteration
    rows: Array  # [A', B] int32, of `client_images`
    labeled: Array  # [A', B] bool, whether their clients know the labels


class Exchange(NamedTuple):
    """The state that changes from iteration to iteration."""

    student: SplitParams  # `bottom` is w_{c,i} of every client, leading [A']
    teacher_bottom: Variables  # at the clients; leading [A'] if clients update it (Eq. 8)
    opt_state: Any  # of `RoundContext.tx`
    queue: Any
    labeler_state: Any


# Means, counts and metrics of the labeler of the local clients in an iteration
Measured: TypeAlias = tuple[dict[str, Array], dict[str, Array], dict[str, Array]]


def build_cross_entity(
    model: SplitModel,
    views: Views,
    hparams: HParams,
    axis: ClientAxis = LOCAL_CLIENTS,
    labeler: Labeler | None = None,
    row_losses: RowLosses = consistency,
) -> CrossEntityPhase:
    """Builds the phase, from the broadcast of the bottoms to their average.

    In each of K_u iterations each of the A active clients sends student features of a strong view and teacher
    features of a weak view, the server updates top and projection head once on all A * B rows, and each
    client receives the gradient of its own rows. The phase is skipped in the first `pre_rounds` rounds.

    The `labeler` is the source of the pseudo-labels, by default the teacher; `row_losses` are what the rows are trained
    on, besides clustering regularization in a state with a queue.

    Returns:
      run(key, state, federation, cohort, lr []) -> state, metrics. The cohort contains the local clients.
    """
    labeler = labeler or Labeler(partial(teacher_labels, hparams))
    phase = CrossEntity(model, views, hparams, axis, labeler, row_losses)

    def skipped(state: State) -> tuple[State]:
        return (state.replace(queue=state.queue.after_pre_round()) if state.queue else state,)

    return after_pre_rounds(hparams.pre_rounds, partial(run, phase), skipped)


def no_cross_entity() -> Metrics:
    """The metrics of a round without a cross-entity phase: NaN."""
    return {name: jnp.full((), jnp.nan) for name in UNLABELED_METRICS}


def run(
    phase: CrossEntity, key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array
) -> tuple[State, Metrics]:
    """K_u iterations and the average of the bottoms: `build_cross_entity` returns it. The cohort is the A' local
    clients.

    Returns:
      The state with the student after the phase and (if there is one) an empty queue, and the metrics, scalars.
    """
    hparams, axis, clients = phase.hparams, phase.axis, cohort.ids.shape[0]
    weight = cohort.weight * (federation.size[cohort.ids] > 0)  # a client without data does not participate
    mask = jnp.repeat(weight > 0, hparams.batch_size)
    num_participating, num_rows = axis.psum((jnp.sum(weight), jnp.sum(mask.astype(jnp.float32))))
    context = RoundContext(
        key=round_key(key, state.round),
        teacher=state.teacher,
        federation=federation,
        ids=cohort.ids,
        weight=weight,
        mask=mask,
        global_mask=axis.all_gather(mask),
        num_participating=num_participating,
        num_rows=num_rows,
        tx=optimizer(hparams, lr),
    )
    # The clients receive the bottoms of student and teacher; the optimizer starts afresh.
    student = state.student._replace(bottom=trees.replicate(state.student.bottom, clients))
    teacher_bottom = state.teacher.bottom
    start = Exchange(
        student=student,
        teacher_bottom=trees.replicate(teacher_bottom, clients) if hparams.client_teacher_ema else teacher_bottom,
        opt_state=context.tx.init(trainable(student)),
        queue=state.queue,
        labeler_state=phase.labeler.start(cohort.ids, state),
    )
    rows, labeled = sampling.client_rows(key, federation, cohort, hparams.batches)
    batches = BatchRows(jnp.arange(hparams.k_u), jnp.swapaxes(rows, 0, 1), jnp.swapaxes(labeled, 0, 1))
    end, (means, *sums) = iterations(phase, context, start, batches)

    bottom = trees.weighted_mean(end.student.bottom, weight, otherwise=state.student.bottom, psum=axis.psum)
    means, (counts, by_labeler) = axis.psum((means, jax.tree.map(jnp.sum, sums)))
    of_labeler = {name: total / (num_participating * hparams.k_u) for name, total in by_labeler.items()}
    metrics = trees.joined(jax.tree.map(jnp.mean, means), pseudo_label_rates(counts), of_labeler)
    # Without participating clients the server's pieces get no gradient, but weight decay would still change them.
    student = jax.tree.map(
        lambda new, old: jnp.where(num_participating > 0, new, old), end.student._replace(bottom=bottom), state.student
    )
    kept = state.clients
    if phase.labeler.keeps:
        has, keeps = (jax.tree.map(lambda x: list(x.shape[1:]), tree) for tree in (kept, end.labeler_state))
        if has != keeps:
            what = f'State.clients is {has or "empty"}'
            raise UserError(f'the labeler keeps {keeps} of clients, but {what}; let init set it, with a leading [N]')
        kept = trees.scatter(kept, cohort.ids, end.labeler_state, weight, axis.all_gather)
    return state.replace(student=student, queue=state.queue.emptied() if state.queue else (), clients=kept), metrics


def iterations(
    phase: CrossEntity, context: RoundContext, start: Exchange, batches: BatchRows
) -> tuple[Exchange, Measured]:
    """All K_u iterations, of batches with a leading [K_u]; what they report has it, too."""
    k_u, at_once = phase.hparams.k_u, iterations_at_once(phase, context, batches)

    def one(exchange: Exchange, inputs: tuple[BatchRows, tuple[Array, Array] | None]) -> tuple[Exchange, Array]:
        batch, views = inputs
        exchange, reported = iteration(phase, context, exchange, batch, views or augment(phase, context, batch))
        return exchange, trees.pack(reported)

    def block(exchange: Exchange, batches: BatchRows) -> tuple[Exchange, Array]:
        with jax.named_scope('views_of_iterations'):
            views = jax.vmap(partial(augment, phase, context))(batches)
        return jax.lax.scan(one, exchange, (batches, views))

    def first(exchange: Exchange, batches: BatchRows) -> Measured:
        """For shapes alone: the views have those of the images."""
        batch = jax.tree.map(lambda x: x[0], batches)
        images = context.federation.client_images[batch.rows]
        return iteration(phase, context, exchange, batch, (images, images))[1]

    if at_once == 1:
        end, packed = jax.lax.scan(one, start, (batches, None))
    else:
        blocks = jax.tree.map(lambda x: x.reshape(k_u // at_once, at_once, *x.shape[1:]), batches)
        end, packed = jax.lax.scan(block, start, blocks)
    return end, trees.unpack(packed.reshape(k_u, -1), jax.eval_shape(first, start, batches))


def iterations_at_once(phase: CrossEntity, context: RoundContext, batches: BatchRows) -> int:
    """The number of iterations whose views are computed together: a divisor of K_u."""
    k_u, most = phase.hparams.k_u, steps_at_once(context.federation.client_images, 2 * batches.rows[0].size)
    return max(divisor for divisor in range(1, k_u + 1) if k_u % divisor == 0 and divisor <= most)


def augment(phase: CrossEntity, context: RoundContext, batch: BatchRows) -> tuple[Array, Array]:
    """The weak and the strong views of a batch, [A', B, H, W, C] uint8 each."""
    images = context.federation.client_images[batch.rows]
    keys = iteration_keys(context.key, context.ids, batch.t)
    views, over_clients = phase.views, phase.axis.map
    return over_clients(views.weak)(keys['weak'], images), over_clients(views.strong)(keys['strong'], images)


@jax.named_scope('cross_entity_iteration')
def iteration(
    phase: CrossEntity, context: RoundContext, exchange: Exchange, batch: BatchRows, views: tuple[Array, Array]
) -> tuple[Exchange, Measured]:
    """One iteration: labels, losses, one step of the server's pieces and of every client's bottom.

    `views` are the weak and the strong ones, from `augment`. Returns the exchange after the iteration, and what it
    reports of the local clients.
    """
    model, hparams, axis, queue = phase.model, phase.hparams, phase.axis, exchange.queue
    keys = iteration_keys(context.key, context.ids, batch.t)
    x_weak, x_strong = map(phase.views.normalize, views)
    truth, labeled = context.federation.client_labels[batch.rows].reshape(-1), batch.labeled.reshape(-1)

    # Labels and keys. What nobody uses of the logits and features, the compiler leaves out.
    teacher = context.teacher._replace(bottom=exchange.teacher_bottom)
    forward = partial(weak_rows, model, hparams, axis, teacher, exchange.student, x_weak, keys['teacher_dropout'])
    teacher_features, teacher_logits = forward(True)
    unlabeled = context.mask & ~labeled

    def logits_by(by_teacher: Array | bool) -> Array:
        return teacher_logits if by_teacher is True else forward(by_teacher)[1]

    weak = WeakViews(context.ids, context.weight, teacher_logits, logits_by, truth, unlabeled)
    made = check_labels(phase.labeler.label(weak, exchange.labeler_state), weak, exchange.labeler_state)
    labels, confident = jnp.where(labeled, truth, made.labels), made.confident | labeled
    references = None
    if queue:
        local = model.project(teacher.proj, teacher_features), labels, confident
        all_keys, all_labels, all_confident = axis.all_gather(local)
        of_all = References(all_keys, all_labels, all_confident, context.global_mask)
        references = queue.cross_entity_references(of_all)
        queue = queue.push_unlabeled(of_all, batch.t)

    parameters = trainable(exchange.student)
    targets = made.logits, labels, confident, labeled, references
    gradient, (student, means) = jax.grad(partial(loss, phase, context), has_aux=True)(
        parameters, exchange.student, x_strong, targets, keys
    )
    top, proj = axis.psum((gradient.top, gradient.proj))
    # A client follows the mean loss of its own rows, not its share of the mean over all (Eq. 8).
    bottom = jax.tree.map(lambda g: g * context.num_participating, gradient.bottom)
    # The optimizer is element-wise: one call steps the server's pieces and, along [A'], every client's.
    updates, opt_state = context.tx.update(SplitParams(bottom, top, proj), exchange.opt_state, parameters)
    student = with_parameters(student, optax.apply_updates(parameters, updates))
    teacher_bottom = exchange.teacher_bottom
    if hparams.client_teacher_ema:
        teacher_bottom = ema(teacher_bottom, student.bottom, hparams.ema_decay)
    counts = count_pseudo_labels(made.labels, made.confident, truth, unlabeled)
    by_labeler = {name: jnp.sum(values * context.weight) for name, values in made.metrics.items()}
    return Exchange(student, teacher_bottom, opt_state, queue, made.state), (means, counts, by_labeler)


def weak_rows(
    model: SplitModel,
    hparams: HParams,
    axis: ClientAxis,
    teacher: SplitParams,
    student: SplitParams,
    x: Array,
    keys: Array,
    by_teacher: Array | bool,
) -> tuple[Array, Array]:
    """Features [R, D] and logits [R, K] of weak views, by the model that labels.

    A client sends the server one set of features, from the bottom that labels. `client_teacher_bn` selects whether that
    bottom runs in evaluation mode ('eval') or in training mode ('train': batch statistics, and dropout if it has any).

    The bottom of the student and, with `client_teacher_ema`, that of the teacher have a leading [A']; `x` is normalized
    [A', B, H, W, C], `keys` [A'] are of dropout, `by_teacher` is as in `WeakViews.logits_by`.
    """
    # If clients share the teacher's weights, the map over clients is one large batch instead of many small ones.
    teacher_axis = 0 if hparams.client_teacher_ema else None

    def features(bottom: Variables, bottom_axis: int | None) -> Array:
        def one(bottom: Variables, x: Array, key: Array) -> Array:
            return model.bottom(bottom, x, key, hparams.client_teacher_bn == 'train')[0]

        return axis.map(one, (bottom_axis, 0, 0))(bottom, x, keys).reshape(-1, model.feature_size)

    def logits(top: Variables, rows: Array) -> Array:
        return model.top(top, rows, None, False)[0]

    if isinstance(by_teacher, bool):
        labeler, labeler_axis = (teacher, teacher_axis) if by_teacher else (student, 0)
        rows = features(labeler.bottom, labeler_axis)
        return rows, logits(labeler.top, rows)
    choose = axis.map(
        lambda *of_client: jax.tree.map(partial(jnp.where, of_client[0]), *of_client[1:]), (0, teacher_axis, 0)
    )
    rows = features(choose(by_teacher, teacher.bottom, student.bottom), 0)
    teaches = jnp.repeat(by_teacher, x.shape[1])[:, None]
    return rows, jnp.where(teaches, logits(teacher.top, rows), logits(student.top, rows))


def loss(
    phase: CrossEntity,
    context: RoundContext,
    parameters: SplitParams,
    student: SplitParams,
    x: Array,
    targets: tuple[Array, Array, Array, Array, References | None],
    keys: dict[str, Array],
) -> tuple[Array, tuple[SplitParams, dict[str, Array]]]:
    """The local clients' share of H + C (Eq. 6).

    `parameters` replace those of the student, whose bottoms are [A', ...]; `x` are normalized strong views
    [A', B, H, W, C], `targets` the fields of `Rows` that are not the student's. Without references there is no C.

    Returns:
      The loss, the student with updated BatchNorm statistics, and metrics.
    """
    model, hparams = phase.model, phase.hparams
    student = with_parameters(student, parameters)
    train_bottoms = phase.axis.map(lambda variables, x, key: model.bottom(variables, x, key, True))
    features, bottom = train_bottoms(student.bottom, x, keys['student_dropout'])  # sent to the server: [A', B, D]
    logits, top = model.tops(student.top, features, keys['top_dropout'])
    logits, features = logits.reshape(-1, logits.shape[-1]), features.reshape(-1, model.feature_size)
    _, labels, *_, references = targets
    projections = None if references is None else model.project(student.proj, features)
    weight = context.mask.astype(jnp.float32)
    of_rows = check_row_losses(phase.row_losses(Rows(logits, features, projections, *targets)), weight.size)
    metrics = {name: losses.row_mean(values, weight, context.num_rows) for name, values in of_rows.items()}
    value = hparams.consistency_weight * reduce(operator.add, metrics.values())
    if references is not None and projections is not None:  # one with the other
        clustering = clustering_rows(phase, projections, labels, references)
        metrics['loss_clustering'] = losses.row_mean(clustering, weight, context.num_rows)
        value = value + hparams.clustering_weight * metrics['loss_clustering']
    metrics['loss_unlabeled'] = value
    return value, (SplitParams(bottom, top, student.proj), metrics)


def check_labels(given: Any, weak: WeakViews, labeler_state: Any) -> Labels:
    """What a `Labeler` gave for weak views and its state.

    Raises:
      UserError: it is no `Labels`, or something in it has another shape.
    """
    if not isinstance(given, Labels):
        raise UserError(f'the labeler returned {found(given)}; return Labels(logits, labels, confident)')
    wanted: dict[str, Any] = {'logits': weak.teacher_logits, 'labels': weak.unlabeled, 'confident': weak.unlabeled}
    wanted |= {'state': labeler_state, 'metrics': dict.fromkeys(given.metrics, weak.ids)}
    for name, like in wanted.items():
        value = dict(given.metrics) if name == 'metrics' else getattr(given, name)
        has, right = (jax.tree.map(lambda x: list(jnp.shape(x)), tree) for tree in (value, like))
        if has != right:
            raise UserError(f'the labeler returned {name} of shape {has}; return {right}')
    if jnp.result_type(given.confident) != jnp.bool_:
        raise UserError(f'the labeler returned confident as {found(given.confident)}; return bool')
    return given


def check_row_losses(given: Mapping[str, Array], rows: int) -> Mapping[str, Array]:
    """What a `RowLosses` returned for so many rows.

    Raises:
      UserError: it is not a dict of values [rows] by names of metrics that the phase does not write itself.
    """
    names = set(given) if isinstance(given, Mapping) else set()
    wrong = not names or names & {'loss_unlabeled', 'loss_clustering'} or not all(n.startswith('loss_') for n in names)
    if wrong or any(jnp.shape(values) != (rows,) for values in given.values()):
        raise UserError(
            f'row_losses returned {jax.tree.map(jnp.shape, given)}; return a dict of values [{rows}] by names that '
            'begin with loss_ and are not loss_unlabeled or loss_clustering, which the phase writes'
        )
    return given


def clustering_rows(phase: CrossEntity, projections: Array, labels: Array, references: References) -> Array:
    """C [R] of the student's projections [R, P] with labels [R] (Eq. 5)."""
    # Anchors are mapped per client, so that a chunked map never holds all similarities [R, T].
    clustering_of_client = phase.axis.map(
        lambda rows, labels: losses.contrastive_rows(rows, labels, references, phase.hparams.temperature)
    )
    rows = projections.reshape(-1, phase.hparams.batch_size, projections.shape[-1])
    return clustering_of_client(rows, labels.reshape(rows.shape[:2])).reshape(-1)


def round_key(key: Array, index: Array) -> Array:
    """The key of the phase in round `index` [] (0-based); `key` is the root key."""
    return rng.fold(key, 'cross_entity', index)


def iteration_keys(key: Array, ids: Array, t: Array) -> dict[str, Array]:
    """The keys [A'] of the clients `ids` in iteration `t` [], by what they are for; `key` is a `round_key`."""
    return {
        name: jax.vmap(lambda client, name=name: rng.fold(key, name, client, t))(ids)
        for name in ('weak', 'strong', 'student_dropout', 'teacher_dropout', 'top_dropout')
    }
