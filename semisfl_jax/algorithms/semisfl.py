"""SemiSFL (Algorithm 1): split federated learning on unlabeled clients, with clustering regularization."""

from __future__ import annotations

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.ranges import LR, THRESHOLD, WEIGHT, log
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core import queue, trees
from semisfl_jax.core.hparams import HParams, learning_rate
from semisfl_jax.core.types import (
    LOCAL_CLIENTS,
    Algorithm,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    Metrics,
    Round,
    SplitModel,
    Views,
)


def semisfl(
    model: SplitModel,
    views: Views,
    hparams: HParams,
    axis: ClientAxis = LOCAL_CLIENTS,
    labeler: core.Labeler | None = None,
) -> Algorithm:
    """Builds SemiSFL.

    The headline model is the teacher. It benefits from unlabeled data through the supervised steps of later rounds,
    which start from the averaged bottom. `axis` is that of the clients of a round; `labeler` None is the teacher.
    """
    supervised = core.build_supervised(model, views, hparams)
    cross_entity = core.build_cross_entity(model, views, hparams, axis, labeler)

    def init(key: Array) -> core.State:
        return core.init_state(key, model, queue.build(hparams, model.projection_size, key))

    round_ = build_round(hparams, supervised, cross_entity)
    return Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='teacher')


def build_round(hparams: HParams, supervised: core.ServerPhase, cross_entity: core.CrossEntityPhase) -> Round:
    """A round of a method that cuts the model (Algorithm 1)."""

    def round_(
        key: Array, state: core.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[core.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        # The server: K_s steps on labels, each followed by an update of the teacher.
        state, metrics = supervised(key, state, federation, k_s, lr)
        # The bottoms go to the cohort; clients and server: K_u iterations without labels; the bottoms are averaged.
        state, unlabeled = cross_entity(key, state, federation, cohort, lr)
        return state.replace(round=state.round + 1), trees.joined({'lr': lr}, metrics, unlabeled)

    return round_


def price(context: costs.CostContext) -> costs.ClientCost:
    """In every iteration, features of student and teacher up, a gradient down."""
    return costs.cross_entity(context, clustering=True)


METHOD = register(
    Method(
        name='semisfl',
        build=semisfl,
        title='SemiSFL',
        source='Xu et al., SemiSFL: Split Federated Learning on Unlabeled and Non-IID Data, arXiv 2307.15870',
        uses=(
            'pseudo-labels',
            'cut',
            'clustering',
            'client teacher',
            'teacher',
            'consistency',
            'pre-rounds',
            'sampling',
        ),
        k_s_rule='paper',
        official='the configurations already hold its own values',
        price=price,
        metrics={'loss_clustering': 'C: contrastive loss against teacher keys'},
        look=Look('#0072B2', 'o', '-'),
        ranges={
            'lr': LR,
            'threshold': THRESHOLD,
            'consistency_weight': WEIGHT,
            'clustering_weight': WEIGHT,
            'contrastive_weight': WEIGHT,
            'temperature': log(0.05, 1.0),  # a quarter of its 0.2, and none at all
        },
    )
)
