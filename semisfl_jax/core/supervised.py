"""The server-side supervised phase (Section III, step 1).

If clients are spread over devices, every device runs this entire phase on the same batches: a step on B_s images is
small next to the cohort's A * B, and shards of it would have to synchronize in each of the K_s steps.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.base import machine
from semisfl_jax.core import losses, rng, sampling
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.losses import References
from semisfl_jax.core.state import ServerPhase, State, trainable, with_parameters
from semisfl_jax.core.teacher import ema, ema_coefficient
from semisfl_jax.core.types import Array, Federation, Metrics, SplitModel, SplitParams, Views

BLOCK = 32  # steps whose images are drawn at once: a draw costs many small operations, however long it is
MOST_BYTES_OF_VIEWS = 2**26  # of views computed at once, which takes some twenty times as much memory
SUPERVISED_METRICS = ('loss_supervised', 'loss_supervised_ce', 'loss_supervised_contrastive', 'supervised_accuracy')

_Carry = tuple[State, Any, Array]  # of the loop over steps: state, optimizer state, sums of SUPERVISED_METRICS [4]


class Supervised(NamedTuple):
    """What the phase is built from: the first argument of the functions below."""

    model: SplitModel
    views: Views
    hparams: HParams
    label_weight: float  # of the cross-entropy


def build_supervised(model: SplitModel, views: Views, hparams: HParams, label_weight: float = 1.0) -> ServerPhase:
    """Builds the phase: K_s steps, each on a labeled batch.

    The student sees one view of the batch; its loss is the cross-entropy plus, in a state with a queue, the
    supervised-contrastive loss against the queue and the teacher's keys of another view (Eq. 4). Then the teacher is
    updated, and the keys enter the queue.

    Args:
      model: the split model.
      views: `supervised` and `normalize` are read.
      hparams: the hyper-parameters.
      label_weight: weight of the cross-entropy.

    Returns:
      run(key, state, federation, k_s [] int32, lr []) -> state, metrics. `k_s` may be traced: one compilation
      serves every K_s. A state without a teacher stays without one; without `opt_state` the optimizer starts afresh.
    """
    return partial(run, Supervised(model, views, hparams, label_weight))


def run(
    phase: Supervised, key: Array, state: State, federation: Federation, k_s: Array, lr: Array
) -> tuple[State, Metrics]:
    """Runs K_s steps.

    Args:
      phase: the phase.
      key: the root key.
      state: the state at the start of the round.
      federation: only the server's data are read.
      k_s: [] int32.
      lr: [].

    Returns:
      The state after the steps, and the means of SUPERVISED_METRICS.
    """
    views_per_step = phase.hparams.server_batch_size * (2 if state.queue else 1)
    makes_views_ahead = steps_at_once(federation.server_images, views_per_step) >= BLOCK

    def augment(number: Array, rows: Array) -> Array:
        """Draws the views of step `number` []: uint8 [B_s, H, W, C] or, with a queue, two views one after the other."""
        images = federation.server_images[rows]
        if state.queue:  # two independent draws, in one call
            images = jnp.concatenate([images, images])
        return phase.views.supervised(rng.fold(step_key(key, number), 'views'), images)

    def block(index: Array, carry: _Carry) -> _Carry:
        numbers = carry[0].step + jnp.arange(BLOCK)
        drawn = jax.vmap(lambda number: draw_rows(phase.hparams, key, number, federation))(numbers)
        views_ahead = None
        if makes_views_ahead:
            with jax.named_scope('views_of_steps'):
                views_ahead = jax.vmap(augment)(numbers, drawn[0])

        def body(i: Array, carry: _Carry) -> _Carry:
            state, opt_state, sums = carry
            rows, valid = jax.tree.map(lambda by_step: by_step[i], drawn)
            views = augment(state.step, rows) if views_ahead is None else views_ahead[i]
            labels = federation.server_labels[rows]
            state, opt_state, metrics = step(phase, key, state, opt_state, views, labels, valid, lr)
            return state, opt_state, sums + metrics

        return jax.lax.fori_loop(0, jnp.minimum(k_s - index * BLOCK, BLOCK), body, carry)

    carried = bool(jax.tree.leaves(state.opt_state))
    opt_state = state.opt_state if carried else optimizer(phase.hparams, lr).init(trainable(state.student))
    sums = jnp.zeros(len(SUPERVISED_METRICS))  # one array: an accelerator adds to all of them in one kernel
    state, opt_state, sums = jax.lax.fori_loop(0, -(-k_s // BLOCK), block, (state, opt_state, sums))
    if carried:
        state = state.replace(opt_state=opt_state)
    return state, {name: total / k_s for name, total in zip(SUPERVISED_METRICS, sums, strict=True)}


@jax.named_scope('supervised_step')
def step(
    phase: Supervised,
    key: Array,
    state: State,
    opt_state: Any,
    views: Array,
    labels: Array,
    valid: Array | None,
    lr: Array,
) -> tuple[State, Any, Array]:
    """Takes one step: the student learns, the teacher follows, its keys enter the queue.

    Args:
      phase: the phase.
      key: the root key.
      state: the state before the step.
      opt_state: the optimizer's state before the step.
      views: uint8 [B_s, H, W, C] or, with a queue, [2 B_s, H, W, C]: the student's view, then the teacher's.
      labels: [B_s] int32.
      valid: [B_s] bool, the rows that count; None: all.
      lr: [].

    Returns:
      The state and the optimizer's state after the step, and SUPERVISED_METRICS [4].
    """
    hparams, stream = phase.hparams, step_key(key, state.step)
    keys = None
    if state.queue:
        views, teacher_views = jnp.split(views, 2)
        keys, state = teacher_keys(phase, state, teacher_views, labels, rng.fold(stream, 'teacher_dropout'))
    parameters = trainable(state.student)
    gradient, (student, metrics) = jax.grad(partial(loss, phase), has_aux=True)(
        parameters, state, views, labels, valid, keys, rng.fold(stream, 'dropout')
    )
    updates, opt_state = optimizer(hparams, lr).update(gradient, opt_state, parameters)
    student = with_parameters(student, optax.apply_updates(parameters, updates))
    keep = ema_coefficient(state.step + 1, hparams.ema_decay, hparams.ema_warmup)
    state = state.replace(
        step=state.step + 1,
        student=student,
        teacher=ema(state.teacher, student, keep) if state.teacher else (),
        queue=state.queue if keys is None else state.queue.push_supervised(keys),
    )
    return state, opt_state, metrics


def teacher_keys(
    phase: Supervised, state: State, images: Array, labels: Array, dropout_key: Array
) -> tuple[References, State]:
    """Computes the teacher's keys of a view.

    Args:
      phase: the phase.
      state: the state before the step.
      images: [B_s, H, W, C] uint8.
      labels: [B_s] int32.
      dropout_key: used only if the teacher runs in training mode.

    Returns:
      B_s references, all confident, and the state, whose teacher may have new BatchNorm statistics.
    """
    x, bottom, model = phase.views.normalize(images), state.teacher.bottom, phase.model
    if phase.hparams.server_teacher_bn == 'eval':
        features, bottom = model.bottom(bottom, x, None, False)
    else:
        features, bottom = jax.lax.cond(
            state.round == 0,
            lambda: model.bottom(bottom, x, dropout_key, True),
            lambda: model.bottom(bottom, x, None, False),
        )
    all_rows = jnp.ones_like(labels, bool)
    keys = References(model.project(state.teacher.proj, features), labels, confident=all_rows, mask=all_rows)
    return keys, state.replace(teacher=state.teacher._replace(bottom=bottom))


def loss(
    phase: Supervised,
    parameters: SplitParams,
    state: State,
    images: Array,
    labels: Array,
    valid: Array | None,
    keys: References | None,
    dropout_key: Array,
) -> tuple[Array, tuple[SplitParams, Array]]:
    """Computes H + T (Eq. 4).

    Args:
      phase: the phase.
      parameters: the student's parameters, by which the loss is differentiated.
      state: the state, for the student's BatchNorm statistics and the queue.
      images: [B_s, H, W, C] uint8, the student's view.
      labels: [B_s] int32.
      valid: [B_s] bool, the rows that count; None: all.
      keys: the teacher's keys of its own view; None leaves out T.
      dropout_key: for the student's dropout.

    Returns:
      The loss [], the student with updated BatchNorm statistics, and SUPERVISED_METRICS [4].
    """
    model, hparams = phase.model, phase.hparams
    student = with_parameters(state.student, parameters)
    weight = jnp.ones(labels.shape, jnp.float32) if valid is None else valid.astype(jnp.float32)
    x = phase.views.normalize(images)
    features, bottom = model.bottom(student.bottom, x, rng.fold(dropout_key, 'bottom'), True, valid)
    logits, top = model.top(student.top, features, rng.fold(dropout_key, 'top'), True, valid)
    cross_entropy = losses.cross_entropy(logits, labels, weight)
    contrastive = jnp.zeros(())
    if keys is not None:
        rows, literal = model.project(student.proj, features), hparams.supervised_references == 'student_supcon'
        # Eq. 3 taken literally: the student's projections of this batch, which come first, except the anchor itself
        references = state.queue.supervised_references(keys._replace(keys=rows) if literal else keys)
        comparable = ~jnp.eye(labels.shape[0], references.labels.shape[0], dtype=bool) if literal else None
        terms = losses.contrastive_rows(rows, labels, references, hparams.temperature, comparable)
        contrastive = losses.row_mean(terms, weight)
    value = phase.label_weight * cross_entropy + hparams.contrastive_weight * contrastive
    accuracy = losses.row_mean(jnp.argmax(logits, axis=-1) == labels, weight)
    return value, (SplitParams(bottom, top, student.proj), jnp.stack([value, cross_entropy, contrastive, accuracy]))


def draw_rows(hparams: HParams, key: Array, number: Array, federation: Federation) -> tuple[Array, Array | None]:
    """Draws the labeled images that a step reads.

    Args:
      hparams: the batch size and the order of reading.
      key: the root key.
      number: [], the step, counted over all rounds.
      federation: only `server_index` is read.

    Returns:
      Rows of `server_images` [B_s], and [B_s] bool: which of them count (None: all).
    """
    server_rows, valid = federation.server_index, None
    batch = hparams.server_batch_size, server_rows.shape[0]
    if hparams.short_batches:
        rows, valid = sampling.server_pass_rows(key, number, *batch)
    else:
        list_steps = hparams.k_s if hparams.sampling == 'replicated' else 0  # the repeated list lasts this many steps
        rows = sampling.server_rows(key, number, *batch, list_steps)
    return server_rows[rows], valid


def step_key(key: Array, number: Array) -> Array:
    """Returns the key of step `number` [], counted over all rounds, from the root key."""
    return rng.fold(key, 'supervised', number)


def steps_at_once(images: Array, views: int) -> int:
    """Returns the number of steps, at least 1, whose views are computed together; it does not change a bit of them.

    On a CPU the views of a batch are made in its step, while its images are in the cache. On GPUs and TPUs, launching
    the thirty or more small kernels of the views takes longer than computing them.

    Args:
      images: [..., H, W, C] uint8; only the shape is read.
      views: views per step.

    Returns:
      The number of steps.
    """
    if machine.platform() == 'cpu':
        return 1
    height, width, channels = images.shape[-3:]
    return max(MOST_BYTES_OF_VIEWS // (views * height * width * channels), 1)
