"""The server-side supervised phase (Section III, step 1)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.core import ema, losses, machine, rng, sampling
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.losses import References
from semisfl_jax.core.queue import Memory
from semisfl_jax.core.state import ServerPhase, State, trainable, with_parameters
from semisfl_jax.core.types import Array, Federation, Metrics, SplitModel, SplitParams, Variables, Views

BLOCK = 32  # steps whose images are drawn at once: a draw is many small operations, however long it is
SUPERVISED_METRICS = ('loss_supervised', 'loss_supervised_ce', 'loss_supervised_contrastive', 'supervised_accuracy')

_Carry = tuple[State, optax.OptState, Array]  # of the loop over steps; the array [4] has sums of SUPERVISED_METRICS


class Supervised(NamedTuple):
    """What the phase is built from: the first argument of the functions below."""

    model: SplitModel
    views: Views
    hparams: HParams
    memory: Memory | None  # queue policy, or None to train on cross-entropy alone
    label_weight: float  # of the cross-entropy


class Batch(NamedTuple):
    """The labeled images of one step."""

    images: Array  # [B_s, H, W, C] uint8, view 1
    labels: Array  # [B_s] int32
    valid: Array | None  # [B_s] bool, None: all
    keys: References | None  # the teacher's keys [B_s, P] of view 2, None without a queue


def build_supervised(
    model: SplitModel, views: Views, hparams: HParams, memory: Memory | None, label_weight: float = 1.0
) -> ServerPhase:
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
      serves every K_s. A state without a teacher stays without one; without `opt_state` a fresh optimizer is used.
    """
    return partial(run, Supervised(model, views, hparams, memory, label_weight))


def run(
    phase: Supervised, key: Array, state: State, federation: Federation, k_s: Array, lr: Array
) -> tuple[State, Metrics]:
    """K_s steps, and the means of their metrics; see `build_supervised`."""
    at_once = steps_at_once(federation.server_images, views_of_step(phase))

    def block(index: Array, carry: _Carry) -> _Carry:
        first = carry[0].step
        drawn = jax.vmap(lambda i: draw_rows(phase.hparams, key, first + i, federation))(jnp.arange(BLOCK))
        seen_ahead = None
        if at_once >= BLOCK:
            with jax.named_scope('views_of_steps'):
                seen_ahead = jax.vmap(lambda i, rows: augment(phase, key, first + i, federation, rows))(
                    jnp.arange(BLOCK), drawn[0]
                )

        def body(i: Array, carry: _Carry) -> _Carry:
            state, opt_state, sums = carry
            rows, valid = jax.tree.map(lambda of_steps: of_steps[i], drawn)
            seen = augment(phase, key, state.step, federation, rows) if seen_ahead is None else seen_ahead[i]
            labels = federation.server_labels[rows]
            state, opt_state, metrics = step(phase, key, state, opt_state, seen, labels, valid, lr)
            return state, opt_state, sums + jnp.stack([metrics[name] for name in SUPERVISED_METRICS])

        return jax.lax.fori_loop(0, jnp.minimum(k_s - index * BLOCK, BLOCK), body, carry)

    carried = bool(jax.tree.leaves(state.opt_state))
    opt_state = state.opt_state if carried else optimizer(phase.hparams, lr).init(trainable(state.student))
    sums = jnp.zeros(len(SUPERVISED_METRICS))  # one array, so that an accelerator adds to all of them in one kernel
    blocks = -(-k_s // BLOCK)
    state, opt_state, sums = jax.lax.fori_loop(0, blocks, block, (state, opt_state, sums))
    if carried:
        state = state.replace(opt_state=opt_state)
    return state, {name: total / k_s for name, total in zip(SUPERVISED_METRICS, sums, strict=True)}


@jax.named_scope('supervised_step')
def step(
    phase: Supervised,
    key: Array,
    state: State,
    opt_state: optax.OptState,
    seen: Array,
    labels: Array,
    valid: Array | None,
    lr: Array,
) -> tuple[State, optax.OptState, dict[str, Array]]:
    """One step of the student, the update of the teacher, and the push of its keys to the queue.

    `seen` are the views of its images, from `see`; `labels` and `valid` are [B_s], the latter as in `draw_rows`.
    """
    hparams, memory = phase.hparams, phase.memory
    step_key = step_key_of(key, state.step)
    keys, view = None, seen
    if memory is not None:
        view, other_view = jnp.split(seen, 2)
        keys, state = teacher_keys(phase, state, other_view, labels, rng.fold(step_key, 'teacher_dropout'))
    parameters = trainable(state.student)
    gradient, (student, metrics) = jax.grad(partial(loss, phase), has_aux=True)(
        parameters, state, Batch(view, labels, valid, keys), rng.fold(step_key, 'dropout')
    )
    updates, opt_state = optimizer(hparams, lr).update(gradient, opt_state, parameters)
    student = with_parameters(student, optax.apply_updates(parameters, updates))
    keep = ema.coefficient(state.step + 1, hparams.ema_decay, hparams.ema_warmup)
    state = state.replace(
        step=state.step + 1,
        student=student,
        teacher=ema.update(state.teacher, student, keep) if state.teacher else (),
        memory=state.memory if memory is None or keys is None else memory.push_supervised(state.memory, keys),
    )
    return state, opt_state, metrics


def draw_rows(hparams: HParams, key: Array, number: Array, federation: Federation) -> tuple[Array, Array | None]:
    """Rows of `server_images` [B_s] that step `number` [] (over all rounds) reads, and which of them count (None: all).

    `key` is the root key.
    """
    server_rows, valid = federation.server_index, None
    batch = hparams.server_batch_size, server_rows.shape[0]
    if hparams.short_batches:
        rows, valid = sampling.server_pass_rows(key, number, *batch)
    else:
        rows = sampling.server_rows(key, number, *batch, hparams.server_list_steps)
    return server_rows[rows], valid


def step_key_of(key: Array, number: Array) -> Array:
    """The key of step `number` [], counted over all rounds; `key` is the root key."""
    return rng.fold(key, 'supervised', number)


def views_of_step(phase: Supervised) -> int:
    """How many views a step has: of every image one, or two with a queue."""
    return phase.hparams.server_batch_size * (1 if phase.memory is None else 2)


def augment(phase: Supervised, key: Array, number: Array, federation: Federation, rows: Array) -> Array:
    """The views of step `number` [] of `server_images` [B_s]: uint8, view 1, followed by view 2 if there is a queue."""
    images = federation.server_images[rows]
    if phase.memory is not None:  # two independent draws, in one call
        images = jnp.concatenate([images, images])
    return phase.views.supervised(rng.fold(step_key_of(key, number), 'views'), images)


def teacher_keys(
    phase: Supervised, state: State, images: Array, labels: Array, dropout_key: Array
) -> tuple[References, State]:
    """The teacher's keys [B_s, P] of view 2, and the state, whose teacher may have updated statistics."""
    features, bottom = teacher_features(phase, state, phase.views.normalize(images), dropout_key)
    keys, all_true = phase.model.project(state.teacher.proj, features), jnp.ones_like(labels, bool)
    references = References(keys, labels, confident=all_true, mask=all_true)
    return references, state.replace(teacher=state.teacher._replace(bottom=bottom))


def teacher_features(phase: Supervised, state: State, x: Array, dropout_key: Array) -> tuple[Array, Variables]:
    """Features of normalized images, and the teacher's bottom, possibly with updated statistics."""
    bottom, model = state.teacher.bottom, phase.model
    if phase.hparams.server_teacher_bn == 'eval':
        return model.bottom(bottom, x, None, False)
    return jax.lax.cond(
        state.round == 0,
        lambda: model.bottom(bottom, x, dropout_key, True),
        lambda: model.bottom(bottom, x, None, False),
    )


def loss(
    phase: Supervised, parameters: SplitParams, state: State, batch: Batch, dropout_key: Array
) -> tuple[Array, tuple[SplitParams, dict[str, Array]]]:
    """Cross-entropy plus the supervised-contrastive loss (Eq. 4), the student with updated BatchNorm statistics, and
    metrics."""
    model, hparams, labels, valid = phase.model, phase.hparams, batch.labels, batch.valid
    student = with_parameters(state.student, parameters)
    weight = jnp.ones(labels.shape, jnp.float32) if valid is None else valid.astype(jnp.float32)
    dropout_keys = (rng.fold(dropout_key, piece) for piece in ('bottom', 'top'))
    x = phase.views.normalize(batch.images)
    features, bottom = model.bottom(student.bottom, x, next(dropout_keys), True, valid)
    logits, top = model.top(student.top, features, next(dropout_keys), True, valid)
    cross_entropy = losses.cross_entropy(logits, labels, weight)
    contrastive = jnp.zeros(())
    if phase.memory is not None and batch.keys is not None:
        rows = model.project(student.proj, features)
        contrastive = contrastive_loss(hparams, phase.memory, state.memory, rows, labels, batch.keys, weight)
    value = phase.label_weight * cross_entropy + hparams.contrastive_weight * contrastive
    accuracy = losses.row_mean(jnp.argmax(logits, axis=-1) == labels, weight)
    metrics = dict(zip(SUPERVISED_METRICS, (value, cross_entropy, contrastive, accuracy), strict=True))
    return value, (SplitParams(bottom, top, student.proj), metrics)


def contrastive_loss(
    hparams: HParams, memory: Memory, queue: Any, rows: Array, labels: Array, keys: References, weight: Array
) -> Array:
    """The supervised-contrastive loss [] (Eq. 3).

    Args:
      hparams: settings.
      memory: queue policy.
      queue: its state.
      rows: the student's projections of view 1 [B_s, P].
      labels: [B_s].
      keys: the teacher's, of view 2 [B_s, P].
      weight: [B_s].
    """
    if hparams.supervised_references == 'teacher_keys':
        references = memory.supervised_references(queue, keys)
        return losses.contrastive(rows, labels, references, hparams.temperature, weight)
    # Eq. 3 taken literally: the batch's own student projections, except the anchor itself, and the queue
    references = memory.supervised_references(queue, keys._replace(keys=rows))
    batch = labels.shape[0]
    itself = jnp.eye(batch, references.labels.shape[0], dtype=bool)  # the batch comes first
    return losses.contrastive(rows, labels, references, hparams.temperature, weight, comparable=~itself)


MOST_BYTES_OF_VIEWS = 2**26  # of the views that are made at once; making them takes some twenty times as much memory


def steps_at_once(images: Array, views: int) -> int:
    """The number of steps whose views are computed together, at least 1; they are the same bits.

    On a CPU the views of a batch are made in its step, while its images are in the cache. On GPUs and TPUs, launching
    the thirty or more small kernels of the views takes longer than computing them.

    Args:
      images: [..., H, W, C] uint8, the images from which the views are made.
      views: number of views in one step.
    """
    if machine.platform() == 'cpu':
        return 1
    height, width, channels = images.shape[-3:]
    return max(MOST_BYTES_OF_VIEWS // (views * height * width * channels), 1)
