"""The cross-entity semi-supervised phase (Section III, steps 2 to 6).

No message is passed here: client bottoms are stacked along a leading axis [A], one map runs them all, and one gradient
of the whole computation gives the server's gradient and every client's. The tests contain a counterpart that passes
messages one by one and must agree.

A `ClientAxis` may hand this code only a shard of the clients, A' of A, and R = A' * B rows. Every loss is then the
share that these rows contribute to the mean. Four quantities span all clients. The server's gradient and its
BatchNorm's statistics are a `psum` in each iteration; the teacher's keys and labels, with which every anchor is
compared, are an `all_gather`; the average of the bottoms is a `psum` at the end. Nothing else leaves a client's device,
except masks, scalar counts, metrics, and what a labeler keeps of clients.
"""

import operator
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.base.errors import UserError, describe
from semisfl_jax.core import losses, rng, sampling, trees
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.losses import References
from semisfl_jax.core.state import CrossEntityPhase, State, after_pre_rounds, trainable, with_parameters
from semisfl_jax.core.supervised import steps_at_once
from semisfl_jax.core.teacher import (
    assign_pseudo_labels,
    count_pseudo_labels,
    ema,
    hard_labels,
    histogram,
    pseudo_label_rates,
)
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
    """The input of a labeler: the weak views of the local clients in an iteration."""

    ids: Array  # [A'] int32, the clients
    weight: Array  # [A'] float32, 1 for a participating client
    teacher_logits: Array  # [R, K]
    # Logits [R, K] by the teacher (True), each client's student (False), or per client ([A'] bool)
    logits_by: Callable[[Array | bool], Array]
    unlabeled: Array  # [R] bool, rows of participating clients, except where the client knows the label


class Labeler(NamedTuple):
    """Two functions to combine freely: which of the clients' images are confident, and what their targets are.

    They may read a state, any pytree, that lives from iteration to iteration of a round. Labels that a client knows
    take precedence, and `pseudo_labels` 'true' and 'none' replace both answers, so no labeler sees the truth.
    """

    # Weak views, the target's logits, state -> [R] bool: the label may be learned
    confident: Callable[[WeakViews, Array, Any], Array]
    # Weak views, state -> logits [R, K]; the label is their most probable class. By default, the teacher's
    target: Callable[[WeakViews, Any], Array] = lambda weak, labeler_state: weak.teacher_logits
    start: Callable[[Array, State], Any] = lambda ids, state: ()  # clients [A'], state -> its first state in a round
    # Weak views, labels [R] int32, confident [R] bool, state -> the state in the next iteration
    update: Callable[[WeakViews, Array, Array, Any], Any] = lambda weak, labels, confident, labeler_state: labeler_state
    metrics: Callable[[Any], Mapping[str, Array]] = lambda labeler_state: {}  # [A'] each; the round reports their means
    # True: at the end of a round the labeler's state, leaves [A', ...], goes to the clients' rows of `State.clients`
    # [N, ...], from which `start` may resume
    keeps: bool = False
    unsure_anchors: bool = True  # False: an image without a confident label has no clustering regularization


def reaches(threshold: float) -> Callable[[WeakViews, Array, Any], Array]:
    """Builds the usual `confident`: the target gives its class at least the probability `threshold`."""
    return lambda weak, logits, labeler_state: hard_labels(logits, threshold)[1]


def count_confident(weak: WeakViews, labels: Array, confident: Array, counts: Array) -> Array:
    """Counts the confident labels of each client by class, of images whose label it does not know: an `update`.

    Args:
      weak: the weak views.
      labels: [R] int32.
      confident: [R] bool.
      counts: [A', K] float32, of earlier iterations.

    Returns:
      `counts` with those of this iteration.
    """
    rows, counted = labels.reshape(len(weak.ids), -1), confident & weak.unlabeled
    return counts + histogram(rows, counted.reshape(rows.shape), counts.shape[-1])


class Rows(NamedTuple):
    """The input of a `RowLosses`: what the server has of the rows of an iteration.

    Only the student's fields carry a gradient; the rest is constant.
    """

    logits: Array  # [R, K], the student's, of strong views
    features: Array  # [R, D], what the student's bottoms sent for these rows
    projections: Array | None  # [R, P], the features projected to unit length; None without a queue
    teacher_logits: Array  # [R, K], of weak views, by the model that labels
    labels: Array  # [R] int32, pseudo-labels, or labels that the client knows
    confident: Array  # [R] bool, the label may be learned
    labeled: Array  # [R] bool, the client knows the label
    references: References | None  # the teacher's keys of queue and batch; None without a queue


# Returns values [R] by metric name, which begins with 'loss_'. Each is averaged over the rows of all participating
# clients; training minimizes `consistency_weight` times the sum of the averages.
RowLosses: TypeAlias = Callable[[Rows], Mapping[str, Array]]


def consistency(rows: Rows) -> Mapping[str, Array]:
    """Computes the consistency regularization H (Eq. 1), the default `RowLosses`."""
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
    """The constants of a round's iterations, for A' local clients."""

    key: Array  # `round_key`
    teacher: SplitParams
    federation: Federation
    ids: Array  # [A'] int32
    weight: Array  # [A'] float32, 1 for a participating client
    mask: Array  # [R] bool, rows of participating clients
    global_mask: Array  # [A * B] bool, the same for all clients
    num_participating: Array  # [] float32, participating clients on all devices
    num_rows: Array  # [] float32, rows of participating clients on all devices
    tx: optax.GradientTransformation


class BatchRows(NamedTuple):
    """The images that the clients read in an iteration."""

    t: Array  # [] int32, the iteration, from 0
    rows: Array  # [A', B] int32, rows of `client_images`
    labeled: Array  # [A', B] bool, the client knows the label


class Exchange(NamedTuple):
    """The state that changes from iteration to iteration."""

    student: SplitParams  # `bottom` is w_{c,i} of every client, leading [A']
    teacher_bottom: Variables  # at the clients; leading [A'] if clients update it (Eq. 8)
    opt_state: Any  # state of `RoundContext.tx`
    queue: Any
    labeler_state: Any


# An iteration's report on the local clients: means, counts, metrics of the labeler
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

    In each of K_u iterations each of the A active clients sends student features of a strong view and teacher features
    of a weak view, the server updates top and projection head once on all A * B rows, and each client receives the
    gradient of its own rows. The first `pre_rounds` rounds skip the phase.

    Args:
      model: the split model.
      views: `weak`, `strong` and `normalize` are read.
      hparams: the hyper-parameters.
      axis: the clients.
      labeler: the source of the pseudo-labels; None: the teacher.
      row_losses: what the rows are trained on, besides clustering regularization in a state with a queue.

    Returns:
      run(key, state, federation, cohort, lr []) -> state, metrics. The cohort contains the local clients.
    """
    labeler = labeler or Labeler(reaches(hparams.threshold))
    phase = CrossEntity(model, views, hparams, axis, labeler, row_losses)

    def skipped(state: State) -> tuple[State]:
        return (state.replace(queue=state.queue.after_pre_round()) if state.queue else state,)

    return after_pre_rounds(hparams.pre_rounds, partial(run, phase), skipped)


def no_cross_entity() -> Metrics:
    """Returns the metrics of a round without a cross-entity phase: NaN."""
    return {name: jnp.full((), jnp.nan) for name in UNLABELED_METRICS}


def run(
    phase: CrossEntity, key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array
) -> tuple[State, Metrics]:
    """Runs K_u iterations and averages the bottoms; `build_cross_entity` returns this function with `phase` bound.

    Args:
      phase: the phase.
      key: the root key.
      state: the state after the supervised phase.
      federation: only the clients' data are read.
      cohort: the A' local clients.
      lr: [].

    Returns:
      The state with the student after the phase and (if there is one) an empty queue, and the metrics, scalars.

    Raises:
      UserError: the labeler keeps states for which `State.clients` has no room.
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
    # Broadcast the bottoms of student and teacher to the clients; the optimizer starts afresh.
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
    means, (counts, labeler_sums) = axis.psum((means, jax.tree.map(jnp.sum, sums)))
    labeler_means = {name: total / (num_participating * hparams.k_u) for name, total in labeler_sums.items()}
    metrics = trees.joined(jax.tree.map(jnp.mean, means), pseudo_label_rates(counts), labeler_means)
    # Without participating clients the server's pieces get no gradient, but weight decay would still change them.
    student = jax.tree.map(
        lambda new, old: jnp.where(num_participating > 0, new, old), end.student._replace(bottom=bottom), state.student
    )
    client_states = state.clients
    if phase.labeler.keeps:
        room, keeps = (jax.tree.map(lambda x: list(x.shape[1:]), tree) for tree in (client_states, end.labeler_state))
        if room != keeps:
            what = f'State.clients is {room or "empty"}'
            raise UserError(f'the labeler keeps {keeps} of clients, but {what}; let init set it, with a leading [N]')
        client_states = trees.scatter(client_states, cohort.ids, end.labeler_state, weight, axis.all_gather)
    queue = state.queue.emptied() if state.queue else ()
    return state.replace(student=student, queue=queue, clients=client_states), metrics


def iterations(
    phase: CrossEntity, context: RoundContext, start: Exchange, batches: BatchRows
) -> tuple[Exchange, Measured]:
    """Runs all K_u iterations.

    Args:
      phase: the phase.
      context: the constants of the round.
      start: the state before the first iteration.
      batches: the batches of all iterations, with a leading [K_u].

    Returns:
      The state after the last iteration, and what every iteration reports, with a leading [K_u].
    """
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
        """Gives the shapes of a report; images stand in for their views."""
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
    """Returns the number of iterations whose views are computed together, a divisor of K_u."""
    k_u, most = phase.hparams.k_u, steps_at_once(context.federation.client_images, 2 * batches.rows[0].size)
    return max(divisor for divisor in range(1, k_u + 1) if k_u % divisor == 0 and divisor <= most)


def augment(phase: CrossEntity, context: RoundContext, batch: BatchRows) -> tuple[Array, Array]:
    """Draws the weak and the strong views of a batch, [A', B, H, W, C] uint8 each."""
    images = context.federation.client_images[batch.rows]
    keys = iteration_keys(context.key, context.ids, batch.t)
    views, over_clients = phase.views, phase.axis.map
    return over_clients(views.weak)(keys['weak'], images), over_clients(views.strong)(keys['strong'], images)


@jax.named_scope('cross_entity_iteration')
def iteration(
    phase: CrossEntity, context: RoundContext, exchange: Exchange, batch: BatchRows, views: tuple[Array, Array]
) -> tuple[Exchange, Measured]:
    """Runs one iteration: labels, losses, one step of the server's pieces and of every client's bottom.

    Args:
      phase: the phase.
      context: the constants of the round.
      exchange: the state before the iteration.
      batch: the images to read.
      views: their weak and their strong views, from `augment`.

    Returns:
      The state after the iteration, and its report on the local clients.
    """
    model, hparams, axis, queue = phase.model, phase.hparams, phase.axis, exchange.queue
    keys = iteration_keys(context.key, context.ids, batch.t)
    x_weak, x_strong = map(phase.views.normalize, views)
    truth, labeled = context.federation.client_labels[batch.rows].reshape(-1), batch.labeled.reshape(-1)

    # Labels and keys. The compiler leaves out logits and features that nothing uses.
    teacher = context.teacher._replace(bottom=exchange.teacher_bottom)
    forward = partial(weak_rows, model, hparams, axis, teacher, exchange.student, x_weak, keys['teacher_dropout'])
    teacher_features, teacher_logits = forward(True)
    unlabeled = context.mask & ~labeled

    def logits_by(by_teacher: Array | bool) -> Array:
        return teacher_logits if by_teacher is True else forward(by_teacher)[1]

    weak = WeakViews(context.ids, context.weight, teacher_logits, logits_by, unlabeled)
    pseudo = label(phase, weak, truth, exchange.labeler_state)
    labels, confident = jnp.where(labeled, truth, pseudo.labels), pseudo.confident | labeled
    references = None
    if queue:
        local_keys = model.project(teacher.proj, teacher_features), labels, confident
        all_keys, all_labels, all_confident = axis.all_gather(local_keys)
        global_keys = References(all_keys, all_labels, all_confident, context.global_mask)
        references = queue.cross_entity_references(global_keys)
        queue = queue.push_unlabeled(global_keys, batch.t)

    parameters = trainable(exchange.student)
    targets = pseudo.logits, labels, confident, labeled, references
    gradient, (student, means) = jax.grad(partial(loss, phase, context), has_aux=True)(
        parameters, exchange.student, x_strong, targets, keys
    )
    top, proj = axis.psum((gradient.top, gradient.proj))
    # A client descends the mean loss of its own rows, not its share of the mean over all rows (Eq. 8).
    bottom = jax.tree.map(lambda g: g * context.num_participating, gradient.bottom)
    # The optimizer is element-wise: one call steps the server's pieces and, along [A'], every client's bottom.
    updates, opt_state = context.tx.update(SplitParams(bottom, top, proj), exchange.opt_state, parameters)
    student = with_parameters(student, optax.apply_updates(parameters, updates))
    teacher_bottom = exchange.teacher_bottom
    if hparams.client_teacher_ema:
        teacher_bottom = ema(teacher_bottom, student.bottom, hparams.ema_decay)
    counts = count_pseudo_labels(pseudo.labels, pseudo.confident, truth, unlabeled)
    labeler_sums = {name: jnp.sum(values * context.weight) for name, values in pseudo.metrics.items()}
    return Exchange(student, teacher_bottom, opt_state, queue, pseudo.state), (means, counts, labeler_sums)


class Labels(NamedTuple):
    """The labels of weak views."""

    logits: Array  # [R, K], from which the labels come
    labels: Array  # [R] int32; K is no class, and an anchor labeled K has no clustering regularization
    confident: Array  # [R] bool
    state: Any  # the labeler's, for the next iteration
    metrics: Mapping[str, Array]  # [A'] each


def label(phase: CrossEntity, weak: WeakViews, truth: Array, labeler_state: Any) -> Labels:
    """Labels weak views as the phase's labeler and `pseudo_labels` say.

    Args:
      phase: the phase.
      weak: the weak views.
      truth: [R] int32, for `pseudo_labels` 'true'.
      labeler_state: the labeler's state.

    Returns:
      The labels.

    Raises:
      UserError: a function of the labeler returns an array of a wrong shape or type.
    """

    def check(field: str, value: Any, like: Any) -> Any:
        shape, right_shape = (jax.tree.map(lambda x: list(jnp.shape(x)), tree) for tree in (value, like))
        if shape != right_shape:
            raise UserError(f"the labeler's {field} returned the shape {shape}; return {right_shape}")
        return value

    labeler, hparams = phase.labeler, phase.hparams
    logits = check('target', labeler.target(weak, labeler_state), weak.teacher_logits)
    labels, confident = assign_pseudo_labels(hparams, logits, truth)
    if hparams.pseudo_labels == 'method':
        confident = check('confident', labeler.confident(weak, logits, labeler_state), confident)
        if jnp.result_type(confident) != jnp.bool_:
            raise UserError(f"the labeler's confident returned {describe(confident)}; return bool")
    new_state = check('update', labeler.update(weak, labels, confident, labeler_state), labeler_state)
    metrics = labeler.metrics(labeler_state)
    check('metrics', dict(metrics), dict.fromkeys(metrics, weak.ids))
    if not labeler.unsure_anchors:
        labels = jnp.where(confident, labels, logits.shape[-1])  # an extra class without positive keys, so C is 0
    return Labels(logits, labels, confident, new_state, metrics)


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
    """Computes features and logits of weak views with the model that labels.

    A client sends the server one set of features, from the bottom that labels. `client_teacher_bn` selects whether that
    bottom runs in evaluation mode ('eval') or in training mode ('train': batch statistics, and dropout if it has any).

    Args:
      model: the split model.
      hparams: `client_teacher_bn` and `client_teacher_ema` are read.
      axis: the clients.
      teacher: the teacher; with `client_teacher_ema` its bottom has a leading [A'].
      student: the student, whose bottom has a leading [A'].
      x: [A', B, H, W, C], normalized weak views.
      keys: [A'], for dropout.
      by_teacher: whether the teacher labels, as in `WeakViews.logits_by`.

    Returns:
      Features [R, D] and logits [R, K].
    """
    # Sharing the teacher's weights makes the map over clients one large batch instead of many small ones.
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
        lambda teaches, teacher_w, student_w: jax.tree.map(partial(jnp.where, teaches), teacher_w, student_w),
        (0, teacher_axis, 0),
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
    """Computes the local clients' share of H + C (Eq. 6).

    Args:
      phase: the phase.
      context: the constants of the round.
      parameters: the student's parameters, by which the loss is differentiated.
      student: the student, whose bottoms are [A', ...].
      x: [A', B, H, W, C], normalized strong views.
      targets: the fields of `Rows` that are not the student's; without references there is no C.
      keys: the dropout keys of `iteration_keys`.

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
    row_losses = check_row_losses(phase.row_losses(Rows(logits, features, projections, *targets)), weight.size)
    metrics = {name: losses.row_mean(values, weight, context.num_rows) for name, values in row_losses.items()}
    value = hparams.consistency_weight * reduce(operator.add, metrics.values())
    if references is not None and projections is not None:  # both or neither, but mypy needs both
        clustering = clustering_rows(phase, projections, labels, references)
        metrics['loss_clustering'] = losses.row_mean(clustering, weight, context.num_rows)
        value = value + hparams.clustering_weight * metrics['loss_clustering']
    metrics['loss_unlabeled'] = value
    return value, (SplitParams(bottom, top, student.proj), metrics)


def check_row_losses(losses_by_name: Mapping[str, Array], rows: int) -> Mapping[str, Array]:
    """Validates the return value of a `RowLosses`.

    Args:
      losses_by_name: what it returned.
      rows: R.

    Returns:
      `losses_by_name`.

    Raises:
      UserError: it is not a dict of values [R] by metric names that the phase does not write itself.
    """
    names = set(losses_by_name) if isinstance(losses_by_name, Mapping) else set()
    wrong = not names or names & {'loss_unlabeled', 'loss_clustering'} or not all(n.startswith('loss_') for n in names)
    if wrong or any(jnp.shape(values) != (rows,) for values in losses_by_name.values()):
        shapes = jax.tree.map(jnp.shape, losses_by_name)
        raise UserError(
            f'row_losses returned {shapes}; return a dict of values [{rows}] by names that '
            'begin with loss_ and are not loss_unlabeled or loss_clustering, which the phase writes'
        )
    return losses_by_name


def clustering_rows(phase: CrossEntity, projections: Array, labels: Array, references: References) -> Array:
    """Computes the clustering regularization C (Eq. 5) of every row.

    Args:
      phase: the phase.
      projections: [R, P], the student's.
      labels: [R] int32.
      references: the teacher's keys.

    Returns:
      [R].
    """
    # Map the anchors client by client: a chunked map then never holds all similarities [R, T].
    clustering_of_client = phase.axis.map(
        lambda rows, labels: losses.contrastive_rows(rows, labels, references, phase.hparams.temperature)
    )
    rows = projections.reshape(-1, phase.hparams.batch_size, projections.shape[-1])
    return clustering_of_client(rows, labels.reshape(rows.shape[:2])).reshape(-1)


def round_key(key: Array, index: Array) -> Array:
    """Returns the key of the phase in round `index` [], from 0; `key` is the root key."""
    return rng.fold(key, 'cross_entity', index)


def iteration_keys(key: Array, ids: Array, t: Array) -> dict[str, Array]:
    """Derives the clients' keys in an iteration.

    Args:
      key: from `round_key`.
      ids: [A'] int32.
      t: [], the iteration.

    Returns:
      Keys [A'] by purpose.
    """
    return {
        name: jax.vmap(lambda client, name=name: rng.fold(key, name, client, t))(ids)
        for name in ('weak', 'strong', 'student_dropout', 'teacher_dropout', 'top_dropout')
    }
