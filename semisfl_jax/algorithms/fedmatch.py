"""FedMatch (Jeong et al., ICLR 2021): disjoint learning of sigma + psi, inter-client consistency, agreement labels."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax import agreement, phases, rng, trees
from semisfl_jax.hparams import HParams, learning_rate, optimizer
from semisfl_jax.models import SplitModel
from semisfl_jax.phases import disjoint
from semisfl_jax.phases.state import trainable, with_parameters
from semisfl_jax.types import HERE, Algorithm, Array, Cohort, Federation, Layout, Metrics, SplitParams, Views


class Sent(NamedTuple):
    """What a client is sent of its helpers."""

    psi: SplitParams  # leaves [H, ...]
    there: Array  # [H] bool, False where fewer are known


class Record(NamedTuple):
    """What a client keeps, and what the server knows of it; `State.clients` has a leading [N].

    All but `momentum` is () where `fedmatch.helpers` is 0: the psi of all take N times the memory of the model.
    """

    momentum: dict[str, Any]  # of each part that the client trains, () with fresh optimizers
    psi: SplitParams = ()  # as the client uploaded it last
    embedding: Array = ()  # [K], the probabilities that its model then gave to the image of noise
    known: Array = ()  # [] bool, whether it ever uploaded
    sent: Sent = ()  # with `helpers_persist`, what it was sent last: H times the memory of `psi`


def fedmatch(model: SplitModel, views: Views, hparams: HParams, layout: Layout = HERE) -> Algorithm:
    """Builds FedMatch. Parameters are theta = sigma + psi: `State.student` has sigma, `State.server` is psi.

    One round, labels at the server: K_s steps of sigma on lambda_s times the cross-entropy of f(sigma + psi), psi
    fixed; both go to the cohort; each client makes its steps of psi on L_u (`disjoint.build_agreement_loss`), sigma
    fixed; the server averages psi. With labels at the clients, each of their iterations is a step of sigma on labelled
    images, then one of psi on the others, and the server averages both, after K_s steps of its own where K_s is not 0.

    With `delta_threshold`, an entry of what a client trains is sent only if it changed by more than that, and in the
    average, as in what the server keeps of the client, the value that it had given out stands for an entry not sent.
    Downloads are whole.

    In every `helper_every`-th round, a client that has taken part before is sent the last psi of the H others whose
    models predict one image of noise most alike. With the sigma that it has received itself, they are its helpers: in
    that round alone, as in the authors' code, or with `helpers_persist` until it is sent others. Where fewer than H
    others are known, these few help (the authors' search fails then).

    It is judged by sigma + psi, entries of psi up to `l1_threshold` in size set to zero. Statistics of BatchNorm, which
    the authors' model has not, are moved by whoever trains, and averaged. Arguments as of `semisfl`; the model runs
    whole.
    """
    own, labels_at_clients = hparams.fedmatch, hparams.labeled_rows > 0
    label_loss = disjoint.build_label_loss(model, views, hparams)
    agreement_loss = disjoint.build_agreement_loss(model, views, hparams)

    def send(client: Array, records: Record) -> Sent:
        ids, there = agreement.nearest(records.embedding, records.known, client, own.helpers)
        return Sent(trees.gather(records.psi, ids), there)

    def client(
        key: Array, visit: phases.Visit, record: Record, state: phases.State, federation: Federation, lr: Array
    ) -> phases.Work:
        sigma, moving = trainable(state.student), disjoint.statistics(state.student)
        has_labels = federation.labeled_size[visit.id] > 0  # without any, sigma stays
        sgd = {'sigma': optimizer(hparams, lr * has_labels), 'psi': optimizer(hparams, lr)}

        def train(sent: Sent | None):
            helpers = sent and disjoint.Helpers(disjoint.total(sigma, sent.psi), moving, sent.there)

            def term(loss, *others):
                def of_iteration(part, parts, moving, t):
                    batch, step_key = phases.read(federation, visit, t), rng.fold(visit.key, t)
                    return loss(part, parts, moving, batch, step_key, *others)

                return of_iteration

            terms = {'sigma': term(label_loss)} if labels_at_clients else {}
            terms['psi'] = term(agreement_loss, helpers)
            parts = {'sigma': sigma, 'psi': state.server}
            trained = disjoint.descend_in_turn(terms, parts, moving, record.momentum, sgd, visit.steps)
            return jnp.sum(sent.there, dtype=jnp.float32) if sent else jnp.zeros(()), trained

        if not own.helpers:
            used, (parts, moved, momentum, means, counts) = train(None)
            parts, shares = arriving(parts, state)
            record = Record(momentum)
        else:
            # The conditions are on the round alone, so that rounds without helpers do not pay for their predictions.
            due = (state.round + 1) % own.helper_every == 0
            new, sent, helped = partial(send, visit.id, state.clients), (), due
            if own.helpers_persist:
                sent = jax.lax.cond(due, new, lambda: record.sent)
                new, helped = lambda: sent, state.round + 1 >= own.helper_every
            used, (parts, moved, momentum, means, counts) = jax.lax.cond(
                helped, lambda: train(new()), lambda: train(None)
            )
            parts, shares = arriving(parts, state)
            image = agreement.noise(rng.fold(key, 'noise'), federation.client_images.shape[1:])
            whole = with_parameters(moved, disjoint.total(**parts))
            embedding = jax.nn.softmax(phases.predict(model, views, whole, image[None])[0])
            record = Record(momentum, parts['psi'], embedding, jnp.array(True), sent)
        return phases.Work(upload(parts, moved), record, means | {'helpers_used': used} | shares, counts)

    def arriving(parts: disjoint.Parts, state: phases.State) -> tuple[disjoint.Parts, dict[str, Array]]:
        """The parts as the server gets them and, where some entries are not sent, the shares of those that are."""
        if not own.delta_threshold:
            return parts, {}
        psi, share = disjoint.only_changes(parts['psi'], state.server, own.delta_threshold, own.l1_threshold)
        parts, shares = parts | {'psi': psi}, {'psi_sent': share}
        if labels_at_clients:
            sigma, share = disjoint.only_changes(parts['sigma'], trainable(state.student), own.delta_threshold)
            parts, shares = parts | {'sigma': sigma}, shares | {'sigma_sent': share}
        return parts, shares

    def upload(parts: disjoint.Parts, moved: SplitParams) -> dict[str, SplitParams]:
        sigma = {'sigma': parts['sigma']} if labels_at_clients else {}
        return sigma | {'psi': parts['psi'], 'statistics': moved}

    def received(state: phases.State) -> dict[str, SplitParams]:
        return upload({'sigma': trainable(state.student), 'psi': state.server}, disjoint.statistics(state.student))

    def init(key: Array) -> phases.State:
        state = phases.init_state(key, model, memory=(), projection=False, teacher=False)
        psi = jax.tree.map(lambda w: own.psi_start * w, trainable(state.student))
        trained = ('sigma', 'psi') if labels_at_clients else ('psi',)
        records = Record({name: phases.init_clients(key, model, hparams) for name in trained})
        if own.helpers:
            records = Record(records.momentum, *trees.replicate(unknown(state, psi), hparams.num_clients))
        return state.replace(server=psi, clients=records)

    def unknown(state: phases.State, psi: SplitParams) -> tuple:
        features = jnp.zeros((1, model.feature_size))
        classes = jax.eval_shape(lambda x: model.top(state.student.top, x, None, False)[0], features).shape[-1]
        nothing = jax.tree.map(jnp.zeros_like, psi)
        sent = Sent(trees.replicate(nothing, own.helpers), jnp.zeros(own.helpers, bool)) if own.helpers_persist else ()
        return nothing, jnp.zeros(classes), jnp.array(False), sent

    def round_(
        key: Array, state: phases.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[phases.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        server = phases.build_server(disjoint.shifted(model, state.server), views, hparams, label_weight=own.lambda_s)
        state, metrics = server(key, state, federation, k_s, lr)
        local = phases.build_local(partial(client, key), hparams, layout, received)
        mean, clients, found = phases.after_warm_up(hparams, local, received)(key, state, federation, cohort, lr)
        student = with_parameters(mean['statistics'], mean.get('sigma', trainable(state.student)))
        state = state.replace(round=state.round + 1, student=student, server=mean['psi'], clients=clients)
        return state, {'lr': lr, **metrics, **found}

    def predict(state: phases.State, images: Array) -> dict[str, Array]:
        psi = jax.tree.map(lambda w: jnp.where(jnp.abs(w) > own.l1_threshold, w, 0.0), state.server)
        whole = with_parameters(state.student, disjoint.total(trainable(state.student), psi))
        return {'student': phases.predict(model, views, whole, images)}

    return Algorithm(init, round_, predict, headline='student', uses_clients=True)
