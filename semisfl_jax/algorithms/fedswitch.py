"""FedSwitch (Zhao et al., arXiv 2301.10114): teacher or student labels, depending on the skew of a client's data.

A reconstruction. Only the paper's abstract and what other papers write about it were available: a teacher that is an
EMA of the student and also moves at the clients; an adaptive choice between the two as the source of pseudo-labels,
with a hyper-parameter that sets the boundary between IID and non-IID. The rest is this package's interpretation
(docs/ledger.md): where the averages are taken, and the rule of the choice. The confident pseudo-labels of a client are
counted by class, and if their shares h differ from the uniform distribution by more than beta_iid,

    KL(h || uniform) = log K + sum_k h_k log h_k  >  beta_iid,

the client counts as non-IID and the teacher labels its images; otherwise the student does.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.ranges import LR, THRESHOLD, WEIGHT, linear
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.keys import key as option
from semisfl_jax.core.objectives import fixmatch
from semisfl_jax.core.teacher import assign_pseudo_labels, confidence_threshold, ema, histogram
from semisfl_jax.core.types import Algorithm, Array, ClientAxis, Federation, LossValue, SplitParams, Views
from semisfl_jax.models import SplitModel

MODES = ('switch', 'teacher', 'student')  # who labels: chosen by the rule, or fixed


@dataclasses.dataclass(frozen=True)
class FedSwitch:
    """`config.fedswitch`, for FedSwitch and FedSwitch-SL."""

    mode: str = option(
        'switch',
        "which model labels: 'switch': chosen by the skew of a client's pseudo-labels | 'teacher' | 'student'",
        choices=MODES,
    )
    beta_iid: float = option(
        0.5,
        "with 'switch': skew (in nats, from 0 to the log of the number of classes) up to which the student labels",
        at_least=0,
        idle={'fedswitch.mode': ('teacher', 'student')},
    )


def fedswitch(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds FedSwitch.

    One round: K_s steps of cross-entropy at the server, each followed by an EMA update of the teacher; the student goes
    to the cohort, and the teacher to the clients that label with it; each client takes its FixMatch steps, with an
    EMA update of its teacher after each (`ema_decay`); the server averages the students. The clients' teachers are
    discarded, and the server's teacher benefits from unlabeled data in the supervised steps of later rounds. It is the
    headline model.

    Source of the pseudo-labels, `fedswitch.mode`:
      'teacher', 'student': the client's teacher, or its own model.
      'switch': the student if the confident pseudo-labels that the received student assigns to the images of the
        round have a skew of at most `beta_iid`, else the teacher (`by_teacher`).

    Arguments as in `semisfl`; the model is not split.
    """
    server = core.build_server(model, views, hparams)
    rule = fixmatch(confidence_threshold(hparams))
    objective = core.semi_supervised(model, views, hparams, rule)
    mode = hparams.options.mode

    def count(inputs: core.ClientInput, student: SplitParams, federation: Federation) -> Array:
        """Confident pseudo-labels of `student` by class [K], over all unlabeled images that the client will read."""

        def of_batch(t: Array) -> Array:
            batch = core.read(federation, inputs, t)
            x = views.normalize(views.weak(rng.fold(inputs.key, 'skew', t), batch.images))
            logits, _ = core.forward(model, student, x, None, False)
            labels, confident = assign_pseudo_labels(hparams, logits, batch.labels)
            return histogram(labels, confident & core.guessed_rows(hparams, batch), logits.shape[-1])

        empty = jnp.zeros(jax.eval_shape(of_batch, 0).shape)
        return jax.lax.fori_loop(0, inputs.steps, lambda t, counts: counts + of_batch(t), empty)

    def client(
        inputs: core.ClientInput, client_state: Any, state: core.State, federation: Federation, lr: Array
    ) -> core.ClientOutput:
        trusts_student = jnp.array(mode == 'student')
        if mode == 'switch':
            of_class = count(inputs, state.student, federation)
            trusts_student = ~by_teacher(of_class, hparams.options.beta_iid)

        def loss(parameters: SplitParams, student: SplitParams, teacher: SplitParams, t: Array) -> LossValue:
            labeler = jax.tree.map(partial(jnp.where, trusts_student), student, teacher)
            batch = core.read(federation, inputs, t)
            return objective(parameters, student, labeler, batch, rng.fold(inputs.key, t), jnp.float32(0))

        def follow(teacher: SplitParams, student: SplitParams) -> SplitParams:
            return ema(teacher, student, hparams.ema_decay)

        tx = optimizer(hparams, lr)
        student, client_state, means, counts = core.local_sgd(
            loss, state.student, client_state, tx, inputs.steps, companion=state.teacher, follow=follow
        )
        means['student_labels'] = trusts_student.astype(jnp.float32)
        return core.ClientOutput(student, client_state, means, counts)

    local = core.build_local(client, hparams, axis)

    def init(key: Array) -> core.State:
        return core.init_state(key, model, clients=core.init_clients(key, model, hparams))

    round_ = core.server_then_clients(hparams, server, local)
    return Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='teacher')


def skew(counts: Array) -> Array:
    """KL(h || uniform) in nats of counts [..., K] -> [...]: 0 if all classes are equally frequent.

    A single class gives the maximum, log K, and so do zero counts, since there is no evidence of IID data yet.
    """
    classes = counts.shape[-1]
    total = jnp.sum(counts, axis=-1, keepdims=True)
    some = jnp.maximum(total, 1.0)
    excess = (counts * classes - total) / some  # K h_k - 1, in integers: equal counts have a skew of exactly 0
    terms = jnp.where(counts > 0, counts / some * jnp.log1p(jnp.where(counts > 0, excess, 0.0)), 0.0)
    return jnp.where(total[..., 0] > 0, jnp.sum(terms, axis=-1), jnp.log(float(classes)))


def by_teacher(counts: Array, beta_iid: float) -> Array:
    """Whether the teacher labels: counts [..., K] -> bool [...]. At exactly `beta_iid` the student labels."""
    return skew(counts) > beta_iid


def price(context: costs.CostContext) -> costs.ClientCost:
    """The student down, also the teacher to clients that label with it, the student up.

    In 'switch' a client first labels the images of its round with the student and sends one number to report whether it
    needs the teacher. Only the share of such clients is recorded, so every client is billed the same share of a
    teacher; before the round, or if no client survived, a whole one.
    """
    h, cost = context.hparams, costs.whole_model(context)
    if h.options.mode != 'switch':
        return cost._replace(download=(2 if h.options.mode == 'teacher' else 1) * context.whole_bytes)
    images = h.batch_size * np.asarray(context.steps)
    return cost._replace(
        download=(2 - context.mean('student_labels', otherwise=0.0)) * context.whole_bytes,
        setup_upload=costs.NUMBER,
        setup_work=images * context.pieces.whole_work.forward,
    )


STUDENT_LABELS = (
    'share of clients that label with the student; in `fedswitch_sl`, which has it in mode `switch`, of clients and '
    'iterations'
)
METHOD = register(
    Method(
        name='fedswitch',
        build=fedswitch,
        title='FedSwitch',
        source='Zhao et al., When does the student surpass the teacher? Federated Semi-supervised Learning with '
        'Teacher-Student EMA, arXiv 2301.10114 (a reconstruction from its abstract)',
        options=FedSwitch,
        uses=('pseudo-labels', 'teacher', 'local', 'steps', 'kept optimizers', 'consistency', 'pre-rounds', 'sampling'),
        official='only the abstract of its paper was available, so none of its values are known',
        price=price,
        metrics={'student_labels': STUDENT_LABELS},
        look=Look('#009E73', '^', '-.'),
        ranges={
            'lr': LR,
            'threshold': THRESHOLD,
            'consistency_weight': WEIGHT,
            # from hardly ever to always the student: the skew of ten classes is at most log(10)
            'fedswitch.beta_iid': linear(0.0, 2.3),
        },
    )
)
