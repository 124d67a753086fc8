"""What a client of SemiFL does in a round: it labels its images, draws its sets, and trains on them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from semisfl_jax import core
from semisfl_jax.algorithms.semifl.options import Parts
from semisfl_jax.algorithms.semifl.sets import Sets, draw_sets, of_epochs, pair
from semisfl_jax.core import losses, rng
from semisfl_jax.core.hparams import optimizer
from semisfl_jax.core.state import with_parameters
from semisfl_jax.core.teacher import assign_pseudo_labels, count_pseudo_labels
from semisfl_jax.core.types import Array, Federation, LossValue, SplitParams


def train_client(
    parts: Parts,
    inputs: core.ClientInput,
    client_state: Any,
    state: core.State,
    federation: Federation,
    lr: Array,
) -> core.ClientOutput:
    """A client labels its images, draws its sets, and trains on them unless it has no confident image."""
    epochs, size = parts.hparams.local.epochs, federation.size[inputs.id]
    labels, confident = label_images(parts, inputs, state.student, federation)
    sets = draw_sets(rng.fold(inputs.key, 'sets'), confident, size)
    steps = client_steps(parts, inputs.steps, sets.num_confident)
    loss = partial(client_loss, parts, inputs, sets, labels, federation)

    def train() -> tuple[SplitParams, Any, dict[str, Array]]:
        tx = optimizer(parts.hparams, lr)
        student, next_client_state, means, _ = core.local_sgd(loss, state.student, client_state, tx, steps)
        means['client_steps'] = jnp.float32(steps)
        if epochs:
            means['client_images'] = jnp.float32(epochs * sets.num_confident)
        return student, next_client_state, means

    def sit_out() -> tuple[SplitParams, Any, dict[str, Array]]:
        return state.student, client_state, jax.tree.map(jnp.zeros_like, jax.eval_shape(train)[2])

    participates = sets.num_confident > 0
    student, next_client_state, means = jax.lax.cond(participates, train, sit_out)
    truth = federation.client_labels[inputs.rows]
    counts = count_pseudo_labels(labels, confident, truth, jnp.arange(labels.shape[0]) < size)
    return core.ClientOutput(student, next_client_state, means, counts, participates)


def label_images(
    parts: Parts, inputs: core.ClientInput, student: SplitParams, federation: Federation
) -> tuple[Array, Array]:
    """Hard labels [S] of all images of a client and whether they are confident [S]; 0 and False for padding."""
    model, views, batch, size = parts.model, parts.views, parts.options.pass_batch_size, federation.size[inputs.id]

    def label_batch(t: Array, all_labels: tuple[Array, Array]) -> tuple[Array, Array]:
        positions = t * batch + jnp.arange(batch)
        rows = inputs.rows.at[positions].get(mode='clip')
        images = federation.client_images[rows]
        x = views.normalize(views.weak(rng.fold(inputs.key, 'label', t), images))
        logits, _ = core.forward(model, student, x, None, False)
        labels, confident = assign_pseudo_labels(parts.hparams, logits, federation.client_labels[rows])
        batch_labels = jnp.where(positions < size, labels, 0), confident & (positions < size)
        return jax.tree.map(lambda old, new: old.at[positions].set(new, mode='drop'), all_labels, batch_labels)

    empty = jnp.zeros(inputs.rows.shape, jnp.int32), jnp.zeros(inputs.rows.shape, bool)
    return jax.lax.fori_loop(0, -(-size // batch), label_batch, empty)


def client_steps(parts: Parts, steps: Array | int, count: Array) -> Array | int:
    """Iterations of a client with `count` [] confident images, which would otherwise take `steps`."""
    epochs, rows, max_passes = parts.hparams.local.epochs, parts.hparams.batch_size, parts.options.max_passes
    if epochs:
        return epochs * -(-count // rows)
    return jnp.minimum(steps, -(-max_passes * count // rows)) if max_passes else steps


def client_loss(
    parts: Parts,
    inputs: core.ClientInput,
    sets: Sets,
    labels: Array,
    federation: Federation,
    parameters: SplitParams,
    student: SplitParams,
    _: Any,
    t: Array,
) -> LossValue:
    """The loss of iteration `t` [] of a client: strong views of FIX, and mixtures of weak views of FIX and MIX.

    Args:
      parts: settings.
      inputs: of the client.
      sets: its FIX and MIX.
      labels: [S] of its images.
      federation: the data.
      parameters: of the student.
      student: the model, whose parameters are replaced.
      t: number of the iteration.

    Returns:
      The loss, and as in `local_sgd`: the student with updated statistics, means and (no) counts.
    """
    model, views, rows, alpha = parts.model, parts.views, parts.hparams.batch_size, parts.options.mixup_alpha
    key, valid = rng.fold(inputs.key, t), None
    if parts.hparams.local.epochs:
        fix, mix, valid = of_epochs(inputs.key, sets, federation.size[inputs.id], t, rows)
    else:
        fix, mix = pair(inputs.key, sets, t * rows + jnp.arange(rows))
    weight = jnp.ones(fix.shape) if valid is None else valid.astype(jnp.float32)
    images, others = (federation.client_images[inputs.rows[positions]] for positions in (fix, mix))
    strong = views.normalize(views.strong(rng.fold(key, 'strong'), images))
    weak = views.normalize(views.weak(rng.fold(key, 'weak'), images))
    other = views.normalize(views.weak(rng.fold(key, 'other'), others))
    share = jax.random.beta(rng.fold(key, 'share'), alpha, alpha)
    variables, mixed = with_parameters(student, parameters), share * weak + (1 - share) * other
    logits, variables = core.forward(model, variables, strong, rng.fold(key, 'dropout'), True, valid)
    mixed_logits, variables = core.forward(model, variables, mixed, rng.fold(key, 'dropout_mix'), True, valid)
    loss_fix = losses.cross_entropy(logits, labels[fix], weight)
    loss_mix = mix_loss(mixed_logits, labels[fix], labels[mix], share, weight)
    value = loss_fix + loss_mix
    means = {'loss_local': value, 'loss_unlabeled': value, 'loss_fix': loss_fix, 'loss_mix': loss_mix}
    return value, (variables, means, {})


def mix_loss(logits: Array, labels: Array, others: Array, share: Array, rows: Array) -> Array:
    """`share` CE(logits, labels) + (1 - `share`) CE(logits, others) [] of mixtures: logits [B, K], labels [B].

    A mean under the weights `rows` [B], 1 for valid rows.
    """
    return share * losses.cross_entropy(logits, labels, rows) + (1 - share) * losses.cross_entropy(logits, others, rows)
