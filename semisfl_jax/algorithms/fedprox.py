"""FedProx (Li et al., 2020): FedAvg with a proximal term that keeps clients near the model they received."""

from __future__ import annotations

from semisfl_jax.algorithms.fedavg import RANGES, USES, fedavg, labels_alone, official, price
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.ranges import log
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views
from semisfl_jax.models import SplitModel


def fedprox(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds FedProx: every client adds mu / 2 ||theta - theta_g||^2 to its objective, with mu = `local.prox` and
    theta_g the parameters it received. Everything else, including the arguments, is as in `fedavg`."""
    return fedavg(model, views, hparams, axis, prox=hparams.local.prox)


METHOD = register(
    Method(
        name='fedprox',
        build=fedprox,
        title='FedProx',
        source='Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020',
        uses=(*USES, 'prox'),
        server='optional',
        labels_alone=labels_alone,
        by_images=True,
        official=official,
        price=price,
        look=Look('#332288', '<', '-.'),
        ranges={**RANGES, 'local.prox': log(1e-3, 1.0)},  # its paper tries 0.001, 0.01, 0.1 and 1
    )
)
