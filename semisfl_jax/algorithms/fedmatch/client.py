"""What a client of FedMatch does in a round, and what it keeps: its parts of the model, and its helpers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax import core
from semisfl_jax.algorithms.fedmatch import agreement, disjoint
from semisfl_jax.algorithms.fedmatch.options import Parts
from semisfl_jax.core import rng, trees
from semisfl_jax.core.hparams import optimizer
from semisfl_jax.core.state import trainable, with_parameters
from semisfl_jax.core.types import Array, Federation, LossValue, SplitParams


class Sent(NamedTuple):
    """The helper models sent to a client."""

    psi: SplitParams  # leaves [H, ...]
    valid: Array  # [H] bool, False for rows without a known helper


class Record(NamedTuple):
    """What a client keeps, and what the server knows about it; `State.clients` has a leading [N].

    All fields but `momentum` are () if `fedmatch.helpers` is 0: every psi together take N times the model's memory.
    """

    momentum: dict[str, Any]  # optimizer state of each part that the client trains, () with fresh optimizers
    psi: Any = ()  # SplitParams, the client's last upload
    embedding: Any = ()  # [K], class probabilities that its model then assigned to the noise image
    known: Any = ()  # [] bool, whether it ever uploaded
    sent: Any = ()  # with `helpers_persist`, the helpers last sent to it: H times the memory of `psi`


def train_client(
    parts: Parts,
    key: Array,
    inputs: core.ClientInput,
    record: Record,
    state: core.State,
    federation: Federation,
    lr: Array,
) -> core.ClientOutput:
    """One client's round: with or without helpers, then the upload, and what the server notes about it."""
    options = parts.options
    train = partial(train_parts, parts, inputs, record, state, federation, lr)
    if not options.helpers:
        used, (trained, batch_stats, momentum, means, counts) = train(None)
        trained, shares = arriving(parts, trained, state)
        record = Record(momentum)
    else:
        # The conditions depend only on the round, so that rounds without helpers skip the helpers' predictions.
        due = (state.round + 1) % options.helper_every == 0
        new: Callable[[], Sent] = partial(choose_helpers, parts, inputs.id, state.clients)
        sent, helped = (), due
        if options.helpers_persist:
            sent = jax.lax.cond(due, new, lambda: record.sent)
            new, helped = lambda: sent, state.round + 1 >= options.helper_every
        used, (trained, batch_stats, momentum, means, counts) = jax.lax.cond(
            helped, lambda: train(new()), lambda: train(None)
        )
        trained, shares = arriving(parts, trained, state)
        image = agreement.noise(rng.fold(key, 'noise'), federation.client_images.shape[1:])
        whole = with_parameters(batch_stats, disjoint.total(**trained))
        embedding = jax.nn.softmax(core.predict(parts.model, parts.views, whole, image[None])[0])
        record = Record(momentum, trained['psi'], embedding, jnp.array(True), sent)
    means = means | {'helpers_used': used} | shares
    return core.ClientOutput(upload(parts, trained, batch_stats), record, means, counts)


def choose_helpers(parts: Parts, client: Array, records: Record) -> Sent:
    """The psi of the H other clients whose predictions are most like those of `client` []."""
    ids, valid = agreement.nearest(records.embedding, records.known, client, parts.options.helpers)
    return Sent(trees.gather(records.psi, ids), valid)


def train_parts(
    parts: Parts,
    inputs: core.ClientInput,
    record: Record,
    state: core.State,
    federation: Federation,
    lr: Array,
    sent: Sent | None,
) -> tuple[Array, tuple[disjoint.SigmaPsi, SplitParams, dict[str, Any], dict[str, Array], dict[str, Array]]]:
    """A client's iterations, with the helpers `sent` to it or without.

    Returns:
      The number of helpers [], and what `disjoint.alternating_sgd` returns.
    """
    sigma, batch_stats = trainable(state.student), disjoint.statistics(state.student)
    has_labels = federation.labeled_size[inputs.id] > 0  # without any, sigma is unchanged
    tx = {'sigma': optimizer(parts.hparams, lr * has_labels), 'psi': optimizer(parts.hparams, lr)}
    helpers = sent and disjoint.Helpers(disjoint.total(sigma, sent.psi), batch_stats, sent.valid)

    def term(loss: Callable, *others: disjoint.Helpers | None) -> disjoint.Loss:
        def of_iteration(part: SplitParams, both: disjoint.SigmaPsi, batch_stats: SplitParams, t: Array) -> LossValue:
            batch, step_key = core.read(federation, inputs, t), rng.fold(inputs.key, t)
            return loss(part, both, batch_stats, batch, step_key, *others)

        return of_iteration

    terms = {'sigma': term(parts.label_loss)} if parts.labels_at_clients else {}
    terms['psi'] = term(parts.agreement_loss, helpers)
    start = {'sigma': sigma, 'psi': state.server}
    trained = disjoint.alternating_sgd(terms, start, batch_stats, record.momentum, tx, inputs.steps)
    return jnp.sum(sent.valid, dtype=jnp.float32) if sent else jnp.zeros(()), trained


def arriving(parts: Parts, trained: disjoint.SigmaPsi, state: core.State) -> tuple[disjoint.SigmaPsi, dict[str, Array]]:
    """sigma and psi as they arrive at the server and, with `delta_threshold`, the shares of the entries sent."""
    options = parts.options
    if not options.delta_threshold:
        return trained, {}
    psi, share = disjoint.only_changes(trained['psi'], state.server, options.delta_threshold, options.l1_threshold)
    trained, shares = trained | {'psi': psi}, {'psi_sent': share}
    if parts.labels_at_clients:
        before = trainable(state.student)
        sigma, share = disjoint.only_changes(trained['sigma'], before, options.delta_threshold)
        trained, shares = trained | {'sigma': sigma}, shares | {'sigma_sent': share}
    return trained, shares


def upload(parts: Parts, trained: disjoint.SigmaPsi, batch_stats: SplitParams) -> dict[str, SplitParams]:
    """What the server averages."""
    sigma = {'sigma': trained['sigma']} if parts.labels_at_clients else {}
    return sigma | {'psi': trained['psi'], 'statistics': batch_stats}


def sent_out(parts: Parts, state: core.State) -> dict[str, SplitParams]:
    """What the server sends to the clients, structured as an upload."""
    return upload(parts, {'sigma': trainable(state.student), 'psi': state.server}, disjoint.statistics(state.student))
