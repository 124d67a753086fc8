"""SemiSFL (Algorithm 1): split federated learning on unlabeled clients, with clustering regularization."""

from __future__ import annotations

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.ranges import LR, THRESHOLD, WEIGHT, log
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core import queue
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, Array, ClientAxis, Views
from semisfl_jax.models import SplitModel


def semisfl(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds SemiSFL.

    One round: K_s supervised steps at the server, each followed by an EMA update of the teacher; the bottoms go to the
    cohort; K_u cross-entity iterations; the bottoms are averaged. The headline model is the teacher. It benefits from
    unlabeled data through the supervised steps of later rounds, which start from the averaged bottom.

    Args:
      model: the split model.
      views: augmentations and normalization.
      hparams: settings.
      axis: the clients of a round.
    """
    memory = queue.build(
        hparams.queue,
        hparams.queue_size,
        model.projection_size,
        hparams.queue_stride,
        hparams.queue_empty_slots,
    )
    supervised = core.build_supervised(model, views, hparams, memory)
    cross_entity = core.build_cross_entity(model, views, hparams, memory, axis)

    def init(key: Array) -> core.State:
        return core.init_state(key, model, memory.start(key))

    round_ = core.supervised_then_cross_entity(hparams, supervised, cross_entity)
    return Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='teacher')


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
        adapts_k_s=True,
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
