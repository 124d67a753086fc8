"""Supervised-only, the lower bound in the paper's tables: the server's labels, no clients, no communication."""

from __future__ import annotations

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.ranges import EMA_DECAY, LR, WEIGHT_DECAY
from semisfl_jax.algorithms.registry import register
from semisfl_jax.algorithms.semisfl import build_round
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Algorithm, Array, ClientAxis, Views
from semisfl_jax.models import SplitModel


def supervised_only(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds supervised-only training: K_s steps of cross-entropy per round on the server's labeled images.

    The paper does not say which loss it has; we assume cross-entropy alone. An average of the model over its steps,
    computed like SemiSFL's teacher, is also reported as `teacher_accuracy`, so that a comparison can separate the
    effect of averaging from that of unlabeled data.

    `axis` is not used: there are no clients.
    """
    supervised = core.build_supervised(model, views, hparams)

    def init(key: Array) -> core.State:
        return core.init_state(key, model)

    round_ = build_round(hparams, supervised, lambda key, state, *_: (state, core.no_cross_entity()))
    return Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='student')


def price(context: costs.CostContext) -> costs.ClientCost:
    """Nothing is sent."""
    return costs.ClientCost()


METHOD = register(
    Method(
        name='supervised_only',
        build=supervised_only,
        title='Supervised-only',
        source='the lower bound of the tables of Xu et al., arXiv 2307.15870',
        # SemiSFL's keys for clients and the contrastive loss have no effect here; they are accepted, so that changing
        # `algorithm` alone gives the lower bound of a configuration.
        uses=('cut', 'clustering', 'client teacher', 'teacher', 'consistency', 'pre-rounds', 'sampling'),
        clients=False,
        official='the configurations already hold its own values',
        price=price,
        look=Look('#000000', 'P', '-'),
        ranges={'lr': LR, 'weight_decay': WEIGHT_DECAY, 'ema_decay': EMA_DECAY},
    )
)
