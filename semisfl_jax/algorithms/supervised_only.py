"""Supervised-only, the lower bound in the paper's tables: the server's labels, no clients, no communication."""

from functools import partial

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Look, Method, ranges, register
from semisfl_jax.algorithms.semisfl import build_round


def supervised_only(
    model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis
) -> core.Algorithm:
    """Builds supervised-only training: K_s steps of cross-entropy per round on the server's labeled images.

    The paper does not name the loss of this baseline; we assume cross-entropy alone. `teacher_accuracy` reports an
    average of the model over its steps, computed like SemiSFL's teacher, so that a comparison can separate the effect
    of averaging from that of unlabeled data.

    Args:
      model: the model; its projection head is not used.
      views: augmentations and normalization.
      hparams: the hyper-parameters.
      axis: not used, as there are no clients.

    Returns:
      The method as pure functions. Its headline model is the student.
    """
    supervised = core.build_supervised(model, views, hparams)
    round_ = build_round(hparams, supervised, lambda key, state, *_: (state, core.cross_entity.no_cross_entity()))
    init = partial(core.init_state, model=model)
    return core.Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='student')


METHOD = Method(
    name='supervised_only',
    build=supervised_only,
    title='Supervised-only',
    source='the lower bound of the tables of Xu et al., arXiv 2307.15870',
    # SemiSFL's keys for clients and the contrastive loss have no effect here; they are accepted, so that changing
    # `algorithm` alone gives the lower bound of a configuration.
    uses=('cut', 'clustering', 'client teacher', 'teacher', 'consistency', 'pre-rounds', 'sampling'),
    clients=False,
    official='the configurations already hold its own values',
    price=lambda context: costs.ClientCost(),  # no client takes part
    look=Look('#000000', 'P', '-'),
    ranges={'lr': ranges.LR, 'weight_decay': ranges.WEIGHT_DECAY, 'ema_decay': ranges.EMA_DECAY},
)
register(METHOD)
