"""Disjoint learning: the parameters of a model are a sum of parts, sigma + psi, each trained on its own loss.

BatchNorm's running statistics are not parameters and belong to the sum: `statistics` are variables without
parameters, which `with_parameters` fills in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.algorithms.fedmatch import agreement
from semisfl_jax.core import losses, rng, trees
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.local import Batch, forward, guessed_rows, iterate
from semisfl_jax.core.state import with_parameters
from semisfl_jax.core.teacher import assign_pseudo_labels, count_pseudo_labels
from semisfl_jax.core.types import Array, LossValue, Reported, SplitParams, Variables, Views
from semisfl_jax.models import SplitModel

SigmaPsi = dict[str, SplitParams]  # the parameters 'sigma' and 'psi'
# loss(part, parts, statistics, t) -> loss [], (updated statistics, means, counts), for descent on `part`
Loss = Callable[..., LossValue]
_State = tuple[SigmaPsi, SplitParams, dict[str, Any]]  # parts, statistics, optimizer states


class Helpers(NamedTuple):
    """Models of other clients, which label together with the client's own."""

    parameters: SplitParams  # leaves [H, ...], sigma + psi
    statistics: SplitParams  # shared by all helpers
    valid: Array  # [H] bool, False: ignored


def total(sigma: SplitParams, psi: SplitParams) -> SplitParams:
    """theta = sigma + psi. An extra leading axis of either one is broadcast."""
    return jax.tree.map(jnp.add, sigma, psi)


def statistics(variables: SplitParams) -> SplitParams:
    """The BatchNorm statistics of `variables` alone: the same tree with no parameters."""
    return with_parameters(variables, SplitParams({}, {}, {}))


def shifted(model: SplitModel, psi: SplitParams) -> SplitModel:
    """`model` with `psi` added to whatever parameters its functions are given: to train sigma with psi fixed."""

    def plus(variables: Variables, shift: Variables) -> Variables:
        return {**variables, 'params': jax.tree.map(jnp.add, variables['params'], shift)}

    return model._replace(
        bottom=lambda variables, *arguments: model.bottom(plus(variables, psi.bottom), *arguments),
        top=lambda variables, *arguments: model.top(plus(variables, psi.top), *arguments),
    )


def _run(
    model: SplitModel, theta: SplitParams, batch_stats: SplitParams, x: Array, key: Array | None = None
) -> tuple[Array, SplitParams]:
    """Logits [B, K] of normalized images, and the statistics, updated in training mode, that is, with a key."""
    logits, variables = forward(model, with_parameters(batch_stats, theta), x, key, key is not None)
    return logits, statistics(variables)


def _size(x: Array) -> Array:
    """|x| with gradient 0 at 0 (that of `jnp.abs` is 1), so that entries at 0, such as initial biases, stay there."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def only_changes(
    trained: SplitParams, received: SplitParams, threshold: float, smallest: float = 0.0
) -> tuple[SplitParams, Array]:
    """A part as it arrives at the server when a client sends only the entries that it changed.

    An entry is sent, unmodified, if it differs from the one received by more than `threshold`; in that comparison,
    trained entries of magnitude up to `smallest` count as 0. An entry that is not sent keeps the received value.

    Returns:
      the part, and the share [] of its entries that were sent.
    """

    def differs(new: Array, old: Array) -> Array:
        return jnp.abs(jnp.where(jnp.abs(new) > smallest, new, 0.0) - old) > threshold

    changed = jax.tree.map(differs, trained, received)
    part = jax.tree.map(jnp.where, changed, trained, received)
    leaves = jax.tree.leaves(changed)
    return part, sum(jnp.sum(leaf) for leaf in leaves) / sum(leaf.size for leaf in leaves)


def build_label_loss(model: SplitModel, views: Views, hparams: HParams) -> Callable:
    """The loss of sigma at a client: lambda_s times the cross-entropy of the labeled images in a batch.

    Returns:
      loss(sigma, parts, statistics, batch, key) -> as `Loss`. Without a labeled image it is 0, and the statistics are
      unchanged.
    """
    head, scale = hparams.labeled_rows, hparams.options.lambda_s

    def loss(sigma: SplitParams, parts: SigmaPsi, batch_stats: SplitParams, batch: Batch, key: Array) -> LossValue:
        x = views.normalize(views.supervised(rng.fold(key, 'supervised'), batch.images[:head]))
        logits, new_batch_stats = _run(
            model, total(sigma, parts['psi']), batch_stats, x, rng.fold(key, 'sigma_dropout')
        )
        rows = losses.cross_entropy_rows(logits, batch.labels[:head])
        value = losses.row_mean(rows, batch.labeled[:head].astype(jnp.float32))
        new_batch_stats = jax.tree.map(
            lambda new, old: jnp.where(jnp.any(batch.labeled), new, old), new_batch_stats, batch_stats
        )
        return scale * value, (new_batch_stats, {'loss_local': scale * value, 'loss_client_labels': value}, {})

    return loss


def build_agreement_loss(model: SplitModel, views: Views, hparams: HParams) -> Callable:
    """The loss of psi at a client, FedMatch's L_u.

        lambda_a CE(label, f(strong u)) + lambda_i mean_j KL(p_j(u) || p(u))
        + lambda_l2 ||sigma - psi||^2 + lambda_l1 |psi|

    The first two are means over the unlabeled u whose p reaches the threshold, 0 without any, as in the authors' code.
    p is the client's own prediction for the unaugmented image, in evaluation mode, and the p_j are the helpers'
    predictions. The label is their majority vote, or p's class if there is no helper.

    Returns:
      loss(psi, parts, statistics, batch, key, helpers or None) -> as `Loss`.
    """
    options = hparams.options

    def loss(
        psi: SplitParams,
        parts: SigmaPsi,
        batch_stats: SplitParams,
        batch: Batch,
        key: Array,
        helpers: Helpers | None,
    ) -> LossValue:
        theta, x = total(parts['sigma'], psi), views.normalize(batch.images)
        logits, _ = _run(model, theta, batch_stats, x)
        labels, confident = assign_pseudo_labels(hparams, logits, batch.labels)
        divergence = jnp.zeros(labels.shape)
        if helpers is not None:
            helper_logits = jax.lax.map(
                lambda parameters: _run(model, parameters, helpers.statistics, x)[0], helpers.parameters
            )
            divergence = agreement.divergence(helper_logits, logits, helpers.valid)
            if hparams.pseudo_labels == 'method':  # else no vote is taken
                votes = jnp.argmax(helper_logits, axis=-1)
                labels = agreement.label(labels, votes, helpers.valid, logits.shape[-1])
        strong = views.normalize(views.strong(rng.fold(key, 'strong'), batch.images))
        logits, new_batch_stats = _run(model, theta, batch_stats, strong, rng.fold(key, 'psi_dropout'))
        guessed = guessed_rows(hparams, batch)
        counted = (confident & guessed).astype(jnp.float32)
        agreed = losses.row_mean(losses.cross_entropy_rows(logits, labels), counted)
        inter_client = losses.row_mean(divergence, counted)
        unlabeled = options.lambda_a * agreed + options.lambda_i * inter_client
        value = unlabeled + options.lambda_l2 * trees.squared_distance(parts['sigma'], psi)
        value = value + options.lambda_l1 * sum(jnp.sum(_size(leaf)) for leaf in jax.tree.leaves(psi))
        means = {'loss_local': value, 'loss_unlabeled': unlabeled}
        means |= {'loss_agreement': agreed, 'loss_inter_client': inter_client}
        return value, (new_batch_stats, means, count_pseudo_labels(labels, confident, batch.labels, guessed))

    return loss


def alternating_sgd(
    terms: dict[str, Loss],
    parts: SigmaPsi,
    batch_stats: SplitParams,
    client_state: dict[str, Any],
    tx: dict[str, optax.GradientTransformation],
    steps: Array | int,
) -> tuple[SigmaPsi, SplitParams, dict[str, Any], dict[str, Array], dict[str, Array]]:
    """The optimizer steps of one client: in each iteration one step of every part that has a loss, in order.

    Args:
      terms: the losses of the trained parts.
      parts: all parts at the start.
      batch_stats: the statistics at the start.
      client_state: each trained part's optimizer state from the client's last round, () for a fresh one.
      tx: the optimizers.
      steps: iterations; 0 changes nothing.

    Returns:
      parts, statistics, optimizer states (() where `client_state` was ()), means over the iterations, sums of
      counts. Values that several losses report under the same name are added.
    """

    def iteration(t: Array, state: _State) -> tuple[_State, Reported]:
        parts, batch_stats, momenta = state
        means: dict[str, Array] = {}
        counts: dict[str, Array] = {}
        for name, loss in terms.items():
            gradient, (batch_stats, *reported) = jax.grad(loss, has_aux=True)(parts[name], parts, batch_stats, t)
            updates, momentum = tx[name].update(gradient, momenta[name], parts[name])
            parts = parts | {name: optax.apply_updates(parts[name], updates)}
            momenta = momenta | {name: momentum}
            for sums, new in zip((means, counts), reported, strict=True):
                sums |= {key: sums.get(key, 0) + value for key, value in new.items()}
        return (parts, batch_stats, momenta), (means, counts)

    fresh = {name: not jax.tree.leaves(client_state[name]) for name in terms}
    momenta = {name: tx[name].init(parts[name]) if fresh[name] else client_state[name] for name in terms}
    (parts, batch_stats, momenta), means, counts = iterate(iteration, (parts, batch_stats, momenta), steps)
    return parts, batch_stats, {name: () if fresh[name] else momenta[name] for name in terms}, means, counts
