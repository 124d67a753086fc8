"""FedSwitch-SL: FedSwitch with split learning, SemiSFL's ablation without clustering regularization."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from semisfl_jax import core, costs
from semisfl_jax.algorithms import fedswitch
from semisfl_jax.algorithms.method import Flat, Look, Method
from semisfl_jax.algorithms.registry import register
from semisfl_jax.algorithms.semisfl import build_round
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.state import num_classes
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, Array, ClientAxis, Views
from semisfl_jax.models import SplitModel


def fedswitch_sl(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds FedSwitch-SL.

    A round is that of SemiSFL without projection head, contrastive terms and queue: K_s supervised steps on
    cross-entropy alone, each followed by an EMA update of the teacher; the bottoms of student and teacher go to the
    cohort; K_u cross-entity iterations on consistency regularization alone; the bottoms are averaged. K_s is constant
    by default. The headline model is the teacher (Section V-B).

    FedSwitch adds the choice of who labels a client's images in an iteration, teacher or student
    (`fedswitch.by_teacher`, a reconstruction). FedSwitch also moves the teacher at the clients, which
    `client_teacher_ema` enables; it is off by default, as in SemiSFL. Arguments as in `semisfl`; the projection head is
    not used.
    """
    supervised = core.build_supervised(model, views, hparams)
    cross_entity = core.build_cross_entity(model, views, hparams, axis, build_labeler(model, hparams))

    def init(key: Array) -> core.State:
        return core.init_state(key, model)

    round_ = build_round(hparams, supervised, cross_entity)
    return Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='teacher')


def build_labeler(model: SplitModel, hparams: HParams) -> core.Labeler:
    """Who labels, by `fedswitch.mode`: the teacher, the client's student or, in 'switch', one of them for each client.

    That depends on the confident pseudo-labels that the client has been given so far in the round, which needs no extra
    message. In the first iteration the teacher labels.
    """
    mode, switches = hparams.options.mode, hparams.options.mode == 'switch'

    def start(ids: Array, state: core.State) -> Any:
        return jnp.zeros((len(ids), num_classes(model, state.student.top))) if switches else ()

    def label(weak: core.WeakViews, counts: Any) -> core.Labels:
        by_teacher = fedswitch.by_teacher(counts, hparams.options.beta_iid) if switches else mode == 'teacher'
        logits = weak.logits_by(by_teacher)
        labels, confident = core.assign_pseudo_labels(hparams, logits, weak.truth)
        if not switches:
            return core.Labels(logits, labels, confident)
        counts += weak.label_counts(labels, confident, counts.shape[-1])
        return core.Labels(logits, labels, confident, counts, {'student_labels': ~by_teacher})

    return core.Labeler(label, start)


def price(context: costs.CostContext) -> costs.ClientCost:
    """As for SemiSFL without the clustering part; who labels changes which features are used, not how many are sent. If
    only the student labels, clients get no teacher."""
    cost = costs.cross_entity(context, clustering=False)
    return cost._replace(download=context.pieces.bottom) if context.hparams.options.mode == 'student' else cost


def check(flat: Flat) -> None:
    """Raises UserError if a key moves a teacher that is never used."""
    if flat['fedswitch.mode'] == 'student' and flat['client_teacher_ema']:
        raise UserError("config.client_teacher_ema=True: fedswitch.mode='student' has no teacher; use another mode")


METHOD = register(
    Method(
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
)
