"""SemiSFL (Algorithm 1): split federated learning on unlabeled clients, with clustering regularization."""

from functools import partial

from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Look, Method, ranges, register
from semisfl_jax.core import queue, trees


def semisfl(
    model: core.SplitModel,
    views: core.Views,
    hparams: core.HParams,
    axis: core.ClientAxis = core.LOCAL_CLIENTS,
    labeler: core.Labeler | None = None,
) -> core.Algorithm:
    """Builds SemiSFL.

    The headline model is the teacher. It benefits from unlabeled data through the supervised steps of later rounds,
    which start from the averaged bottom.

    Args:
      model: the model, cut between clients and server.
      views: augmentations and normalization.
      hparams: the hyper-parameters.
      axis: the clients of a round; by default, all are local.
      labeler: labels the clients' images; None: the teacher does.

    Returns:
      The method as pure functions.
    """
    supervised = core.build_supervised(model, views, hparams)
    cross_entity = core.build_cross_entity(model, views, hparams, axis, labeler)

    def init(key: Array) -> core.State:
        return core.init_state(key, model, queue.build(hparams, model.projection_size, key))

    round_ = build_round(hparams, supervised, cross_entity)
    return core.Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='teacher')


def build_round(
    hparams: core.HParams, supervised: core.state.ServerPhase, cross_entity: core.state.CrossEntityPhase
) -> core.Round:
    """Builds the round of a method that cuts the model (Algorithm 1).

    Args:
      hparams: the hyper-parameters, which set the learning rate.
      supervised: the server's phase.
      cross_entity: the phase of clients and server.

    Returns:
      A function (key, state, federation, cohort, K_s []) -> state, metrics.
    """

    def round_(
        key: Array, state: core.State, federation: core.Federation, cohort: core.Cohort, k_s: Array
    ) -> tuple[core.State, core.Metrics]:
        lr = core.learning_rate(hparams, state.round)
        # The server takes K_s steps on labels and updates the teacher after each.
        state, metrics = supervised(key, state, federation, k_s, lr)
        # The cohort receives the bottoms, clients and server run K_u iterations without labels, bottoms are averaged.
        state, unlabeled = cross_entity(key, state, federation, cohort, lr)
        return state.replace(round=state.round + 1), trees.joined({'lr': lr}, metrics, unlabeled)

    return round_


METHOD = Method(
    name='semisfl',
    build=semisfl,
    title='SemiSFL',
    source='Xu et al., SemiSFL: Split Federated Learning on Unlabeled and Non-IID Data, arXiv 2307.15870',
    uses=('pseudo-labels', 'cut', 'clustering', 'client teacher', 'teacher', 'consistency', 'pre-rounds', 'sampling'),
    k_s_rule='paper',
    official='the configurations already hold its own values',
    price=partial(costs.cross_entity, clustering=True),  # features of student and teacher up, a gradient down
    metrics={'loss_clustering': 'C: contrastive loss against teacher keys'},
    look=Look('#0072B2', 'o', '-'),
    ranges={
        'lr': ranges.LR,
        'threshold': ranges.THRESHOLD,
        'consistency_weight': ranges.WEIGHT,
        'clustering_weight': ranges.WEIGHT,
        'contrastive_weight': ranges.WEIGHT,
        'temperature': ranges.log(0.05, 1.0),  # from a quarter of SemiSFL's 0.2 to no scaling
    },
)
register(METHOD)
