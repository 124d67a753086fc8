"""FedSwitch-SL: FedSwitch with split learning, SemiSFL's ablation without clustering regularization."""

from functools import partial

import jax.numpy as jnp
from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Flat, Look, Method, fedswitch, register
from semisfl_jax.algorithms.semisfl import build_round
from semisfl_jax.base.errors import UserError


def fedswitch_sl(
    model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis = core.LOCAL_CLIENTS
) -> core.Algorithm:
    """Builds FedSwitch-SL.

    A round is SemiSFL's without projection head, contrastive terms and queue: K_s supervised steps on cross-entropy
    alone, each followed by an EMA update of the teacher; the bottoms of student and teacher go to the cohort; K_u
    cross-entity iterations on consistency regularization alone; the bottoms are averaged. K_s is constant by default.
    The headline model is the teacher (Section V-B).

    FedSwitch adds a choice: in every iteration, teacher or student labels a client's images (`fedswitch.by_teacher`, a
    reconstruction). FedSwitch also moves the teacher at the clients, which `client_teacher_ema` enables; it is off by
    default, as in SemiSFL.

    Args:
      model: the model, cut between clients and server; its projection head is not used.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `fedswitch.FedSwitch` as options.
      axis: the clients of a round; by default, all are local.

    Returns:
      The method as pure functions.
    """
    supervised = core.build_supervised(model, views, hparams)
    cross_entity = core.build_cross_entity(model, views, hparams, axis, build_labeler(model, hparams))
    round_ = build_round(hparams, supervised, cross_entity)
    init = partial(core.init_state, model=model)
    return core.Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='teacher')


def build_labeler(model: core.SplitModel, hparams: core.HParams) -> core.Labeler:
    """Builds the labeler that `fedswitch.mode` names: teacher, student or, with 'switch', one of them for each client.

    The switch depends on the confident pseudo-labels that the client has received so far in the round, which needs no
    extra message. The teacher labels the first iteration.

    Args:
      model: the model, which gives the number of classes.
      hparams: the hyper-parameters, with `fedswitch.FedSwitch` as options.

    Returns:
      A labeler whose counts start at 0 in every round.
    """
    mode, confident = hparams.options.mode, core.reaches(hparams.threshold)
    if mode != 'switch':
        return core.Labeler(confident, lambda weak, _: weak.logits_by(mode == 'teacher'))

    def by_teacher(counts: Array) -> Array:
        return fedswitch.by_teacher(counts, hparams.options.beta_iid)

    return core.Labeler(
        confident,
        lambda weak, counts: weak.logits_by(by_teacher(counts)),
        start=lambda ids, state: jnp.zeros((len(ids), core.num_classes(model, state.student.top))),
        update=core.count_confident,
        metrics=lambda counts: {'student_labels': ~by_teacher(counts)},
    )


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills the cross-entity phase without clustering; a student that labels alone saves the teacher's download.

    Switching changes which features the server uses, not how many clients send.
    """
    cost = costs.cross_entity(context, clustering=False)
    return cost._replace(download=context.pieces.bottom) if context.hparams.options.mode == 'student' else cost


def check(flat: Flat) -> None:
    """Raises UserError if a key moves a teacher that labels nothing."""
    if flat['fedswitch.mode'] == 'student' and flat['client_teacher_ema']:
        raise UserError("config.client_teacher_ema=True: fedswitch.mode='student' has no teacher; use another mode")


METHOD = Method(
    name='fedswitch_sl',
    build=fedswitch_sl,
    title='FedSwitch-SL',
    source='the ablation of Xu et al., arXiv 2307.15870, of Zhao et al., arXiv 2301.10114',
    options=fedswitch.FedSwitch,
    group='fedswitch',
    uses=('pseudo-labels', 'cut', 'client teacher', 'teacher', 'consistency', 'pre-rounds', 'sampling'),
    check=check,
    official='it is SemiSFL without clustering, whose values the configurations already hold',
    price=price,
    metrics={'student_labels': fedswitch.STUDENT_LABELS},
    look=Look('#D55E00', 's', '--'),
    ranges=fedswitch.METHOD.ranges,
)
register(METHOD)
