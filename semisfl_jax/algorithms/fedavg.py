"""FedAvg (McMahan et al., 2017) on the labels of the clients, or with FixMatch or UDA on unlabelled clients."""

from __future__ import annotations

import jax.numpy as jnp

from semisfl_jax import phases, rng, trees
from semisfl_jax.hparams import HParams, learning_rate, optimizer
from semisfl_jax.models import SplitModel
from semisfl_jax.phases.state import trainable
from semisfl_jax.types import HERE, Algorithm, Array, Cohort, Federation, Layout, Metrics, Views


def fedavg(model: SplitModel, views: Views, hparams: HParams, layout: Layout = HERE, prox: float = 0.0) -> Algorithm:
    """Builds FedAvg; with `prox` above 0, FedProx.

    One round: K_s steps of cross-entropy at the server, if it has labels (K_s above 0); the whole model goes to the
    cohort; each client minimises its objective; the server averages the models.

    The objective of a client, `local.objective`:
      'supervised': cross-entropy on its labelled images. With all labels at the clients, the upper bound that the
        literature calls FedAvg-SL.
      'fixmatch', 'uda': consistency on its unlabelled images, and cross-entropy on the labelled ones if it has any.

    It is judged by the averaged model.

    Args:
      model: the model, run whole.
      views: augmentations and normalisation.
      hparams: settings.
      layout: where the clients are computed.
      prox: mu of FedProx.
    """
    server = phases.build_server(model, views, hparams)
    objective = phases.build_objective(model, views, hparams)

    def client(visit: phases.Visit, kept, state: phases.State, federation: Federation, lr: Array) -> phases.Work:
        start = trainable(state.student)
        progress = jnp.minimum(state.round / hparams.lr_rounds, 1.0)

        def loss(parameters, student, _, t):
            batch = phases.read(federation, visit, t)
            value, found = objective(parameters, student, student, batch, rng.fold(visit.key, t), progress)
            if prox:
                value = value + 0.5 * prox * trees.squared_distance(parameters, start)
            return value, found

        sgd = optimizer(hparams, lr)
        return phases.Work(*phases.descend(loss, state.student, kept, sgd, visit.steps))

    local = phases.after_warm_up(hparams, phases.build_local(client, hparams, layout))

    def init(key: Array) -> phases.State:
        clients = phases.init_clients(key, model, hparams)
        return phases.init_state(key, model, memory=(), projection=False, teacher=False, clients=clients)

    def round_(
        key: Array, state: phases.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[phases.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        state, metrics = server(key, state, federation, k_s, lr)
        student, clients, found = local(key, state, federation, cohort, lr)
        state = state.replace(round=state.round + 1, student=student, clients=clients)
        return state, {'lr': lr, **metrics, **found}

    def predict(state: phases.State, images: Array) -> dict[str, Array]:
        return {'student': phases.predict(model, views, state.student, images)}

    return Algorithm(init, round_, predict, headline='student', uses_clients=True)
