"""Bottom and top as one model, for methods that do not split it; the cut index is irrelevant here.

A whole model is a `SplitParams` with an empty projection head (`init_state(projection=False)`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from semisfl_jax.core import rng
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.state import LocalPhase, ServerPhase, State, nan_metrics
from semisfl_jax.core.supervised import build_supervised
from semisfl_jax.core.types import Array, Cohort, Federation, Metrics, SplitParams, Views
from semisfl_jax.models import SplitModel


def forward(
    model: SplitModel,
    variables: SplitParams,
    images: Array,
    key: Array | None,
    train: bool,
    rows: Array | None = None,
) -> tuple[Array, SplitParams]:
    """Logits [B, K] of normalized images [B, H, W, C].

    Args:
      model: the model.
      variables: its weights.
      images: a batch.
      key: key for dropout; None in evaluation mode.
      train: whether to use dropout and batch statistics.
      rows: [B] bool, the valid rows, for training with a partial batch; None: all.

    Returns:
      logits, and the variables: in training, with BatchNorm's running statistics updated.
    """
    keys = (None, None) if key is None else (rng.fold(key, 'bottom'), rng.fold(key, 'top'))
    features, bottom = model.bottom(variables.bottom, images, keys[0], train, rows)
    logits, top = model.top(variables.top, features, keys[1], train, rows)
    return logits, SplitParams(bottom, top, variables.proj)


def build_server(model: SplitModel, views: Views, hparams: HParams, label_weight: float = 1.0) -> ServerPhase:
    """The server's part of a round: K_s steps of cross-entropy, or nothing if K_s is 0 and the server only averages.

    `label_weight` is the weight of the cross-entropy.

    Returns:
      run(key, state, federation, k_s, lr) -> state, metrics, as in `build_supervised`.
    """
    if hparams.server_trains:
        return build_supervised(model, views, hparams, memory=None, label_weight=label_weight)
    return lambda key, state, federation, k_s, lr: (state, {})


def skip_pre_rounds(
    hparams: HParams, phase: LocalPhase, received: Callable[[State], Any] = lambda state: state.student
) -> LocalPhase:
    """The clients' part of a round, skipped in the first `pre_rounds` rounds.

    Args:
      hparams: settings.
      phase: run(key, state, ...) -> averaged, clients, metrics, as built by `build_local`; `clients` is the new
        `state.clients`.
      received: state -> the value returned as `averaged` if the phase is skipped.

    Returns:
      A function like `phase`; if the phase is skipped, its metrics are NaN.
    """
    if not hparams.pre_rounds:
        return phase

    def run(key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array) -> tuple[Any, Any, Metrics]:
        arguments = key, state, federation, cohort, lr
        nothing = nan_metrics(phase, *arguments)
        return jax.lax.cond(
            state.round < hparams.pre_rounds,
            lambda: (received(state), state.clients, nothing),
            lambda: phase(*arguments),
        )

    return run
