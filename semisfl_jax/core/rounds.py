"""What several methods have in common: the order of a round, and which models they report."""

from __future__ import annotations

from semisfl_jax.core.hparams import HParams, learning_rate
from semisfl_jax.core.state import CrossEntityPhase, LocalPhase, ServerPhase, State, predict
from semisfl_jax.core.types import Array, Cohort, Federation, Metrics, Predict, Round, Views
from semisfl_jax.models import SplitModel


def supervised_then_cross_entity(hparams: HParams, supervised: ServerPhase, cross_entity: CrossEntityPhase) -> Round:
    """A round of a method that cuts the model: K_s steps at the server, then iterations of clients and server."""

    def round_(key: Array, state: State, federation: Federation, cohort: Cohort, k_s: Array) -> tuple[State, Metrics]:
        lr = learning_rate(hparams, state.round)
        state, metrics = supervised(key, state, federation, k_s, lr)
        state, unlabeled = cross_entity(key, state, federation, cohort, lr)
        return state.replace(round=state.round + 1), {'lr': lr, **metrics, **unlabeled}

    return round_


def server_then_clients(hparams: HParams, server: ServerPhase, clients: LocalPhase) -> Round:
    """A round of a method of whole models: K_s steps at the server, then the clients', whose average is the student."""

    def round_(key: Array, state: State, federation: Federation, cohort: Cohort, k_s: Array) -> tuple[State, Metrics]:
        lr = learning_rate(hparams, state.round)
        state, metrics = server(key, state, federation, k_s, lr)
        student, kept, client_metrics = clients(key, state, federation, cohort, lr)
        state = state.replace(round=state.round + 1, student=student, clients=kept)
        return state, {'lr': lr, **metrics, **client_metrics}

    return round_


def predict_by(model: SplitModel, views: Views, *names: str) -> Predict:
    """predict(state, images [B, H, W, C] uint8) -> logits [B, K] of models of the state, such as 'student', by name."""

    def predict_all(state: State, images: Array) -> dict[str, Array]:
        return {name: predict(model, views, getattr(state, name), images) for name in names}

    return predict_all
