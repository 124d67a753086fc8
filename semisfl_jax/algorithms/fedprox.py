"""FedProx (Li et al., 2020): FedAvg whose clients are held near the model that they received."""

from __future__ import annotations

from semisfl_jax.algorithms.fedavg import fedavg
from semisfl_jax.hparams import HParams
from semisfl_jax.models import SplitModel
from semisfl_jax.types import HERE, Algorithm, Layout, Views


def fedprox(model: SplitModel, views: Views, hparams: HParams, layout: Layout = HERE) -> Algorithm:
    """Builds FedProx: every client adds mu / 2 ||theta - theta_g||^2 to its objective, mu = `local.prox`, theta_g the
    parameters that it received. All else, and all arguments, are those of FedAvg."""
    return fedavg(model, views, hparams, layout, prox=hparams.local.prox)
