"""FedSwitch (Zhao et al., arXiv 2301.10114): teacher or student labels, depending on the skew of a client's data.

This is a reconstruction from the paper's abstract and from what other papers write about it. They name a teacher that
is an EMA of the student and also moves at the clients, and an adaptive choice between the two as the source of
pseudo-labels, with a hyper-parameter for the boundary between IID and non-IID. The rest is our interpretation
(docs/ledger.md): where averages are taken, and the rule of the choice. We count a client's confident pseudo-labels by
class. If their shares h differ from the uniform distribution by more than beta_iid,

    KL(h || uniform) = log K + sum_k h_k log h_k  >  beta_iid,

the client counts as non-IID and the teacher labels its images; otherwise the student does.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Look, Method, option, ranges, register
from semisfl_jax.core import objectives, rng


def fedswitch(
    model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis
) -> core.Algorithm:
    """Builds FedSwitch.

    One round: K_s steps of cross-entropy at the server, each followed by an EMA update of the teacher; the student goes
    to the cohort, and the teacher to the clients that label with it; each client takes its FixMatch steps and updates
    its teacher by EMA after each (`ema_decay`); the server averages the students. The clients' teachers are discarded.
    The server's teacher, the headline model, benefits from unlabeled data in the supervised steps of later rounds.

    `fedswitch.mode` selects the source of the pseudo-labels:
      'teacher', 'student': the client's teacher, or its own model.
      'switch': the student if the confident pseudo-labels that the received student assigns to the images of the round
        have a skew of at most `beta_iid`, else the teacher (`by_teacher`).

    Args:
      model: the model, which is not split.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `FedSwitch` as options.
      axis: the clients of a round.

    Returns:
      The method as pure functions.
    """
    server = core.build_server(model, views, hparams)
    rule = objectives.fixmatch(core.teacher.confidence_threshold(hparams))
    objective = core.semi_supervised(model, views, hparams, rule)
    mode = hparams.options.mode

    def count(inputs: core.ClientInput, student: core.SplitParams, federation: core.Federation) -> Array:
        """Counts confident pseudo-labels of `student` by class [K], over all unlabeled images of the round."""

        def count_batch(t: Array) -> Array:
            batch = core.read(federation, inputs, t)
            x = views.normalize(views.weak(rng.fold(inputs.key, 'skew', t), batch.images))
            logits, _ = core.forward(model, student, x, None, False)
            labels, confident = core.assign_pseudo_labels(hparams, logits, batch.labels)
            return core.histogram(labels, confident & core.guessed_rows(hparams, batch), logits.shape[-1])

        empty = jnp.zeros(jax.eval_shape(count_batch, 0).shape)
        return jax.lax.fori_loop(0, inputs.steps, lambda t, counts: counts + count_batch(t), empty)

    def client(
        inputs: core.ClientInput, client_state: Any, state: core.State, federation: core.Federation, lr: Array
    ) -> core.ClientOutput:
        trusts_student = jnp.array(mode == 'student')
        if mode == 'switch':
            counts_by_class = count(inputs, state.student, federation)
            trusts_student = ~by_teacher(counts_by_class, hparams.options.beta_iid)

        def loss(
            parameters: core.SplitParams, student: core.SplitParams, teacher: core.SplitParams, t: Array
        ) -> core.LossValue:
            labeler = jax.tree.map(partial(jnp.where, trusts_student), student, teacher)
            batch = core.read(federation, inputs, t)
            return objective(parameters, student, labeler, batch, rng.fold(inputs.key, t), jnp.float32(0))

        tx, update_teacher = core.optimizer(hparams, lr), partial(core.ema, keep=hparams.ema_decay)
        student, client_state, means, counts = core.local_sgd(
            loss, state.student, client_state, tx, inputs.steps, state.teacher, update_teacher
        )
        means['student_labels'] = trusts_student.astype(jnp.float32)
        return core.ClientOutput(student, client_state, means, counts)

    local = core.build_local(client, hparams, axis)

    def init(key: Array) -> core.State:
        return core.init_state(key, model, clients=core.init_clients(key, model, hparams))

    round_ = core.server_then_clients(hparams, server, local)
    return core.Algorithm(init, round_, core.predict_by(model, views, 'teacher', 'student'), headline='teacher')


def by_teacher(counts: Array, beta_iid: float) -> Array:
    """Returns True where the teacher labels; at exactly `beta_iid` the student does.

    Args:
      counts: confident pseudo-labels by class [..., K].
      beta_iid: the largest skew, in nats, of clients that count as IID.

    Returns:
      A bool array [...].
    """
    return skew(counts) > beta_iid


def skew(counts: Array) -> Array:
    """Returns KL(h || uniform) in nats of counts [..., K] -> [...]: 0 if all classes are equally frequent.

    A single class gives the maximum, log K. So do zero counts, which are no evidence of IID data yet.
    """
    classes = counts.shape[-1]
    total = jnp.sum(counts, axis=-1, keepdims=True)
    some = jnp.maximum(total, 1.0)
    excess = (counts * classes - total) / some  # K h_k - 1; its numerator is exact, so equal counts have a skew of 0
    terms = jnp.where(counts > 0, counts / some * jnp.log1p(jnp.where(counts > 0, excess, 0.0)), 0.0)
    return jnp.where(total[..., 0] > 0, jnp.sum(terms, axis=-1), jnp.log(float(classes)))


# --- the record

MODES = ('switch', 'teacher', 'student')  # 'switch' applies the rule; the others fix the model that labels


# fmt: off
@dataclasses.dataclass(frozen=True)
class FedSwitch:
    """The keys of `config.fedswitch`, for FedSwitch and FedSwitch-SL."""

    mode: str = option('switch', choices=MODES, help="which model labels: 'switch': chosen by the skew of a client's "
        "pseudo-labels | 'teacher' | 'student'")
    beta_iid: float = option(0.5, at_least=0, idle={'fedswitch.mode': ('teacher', 'student')}, help="with 'switch': "
        'skew (in nats, from 0 to the log of the number of classes) up to which the student labels')
# fmt: on


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills the student down and up, and a teacher down for clients that label with it.

    With 'switch' a client first labels the images of its round with the student, and sends one number to report whether
    it needs the teacher. Only the share of clients that do is recorded, so every client is billed this share of a
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
METHOD = Method(
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
        'lr': ranges.LR,
        'threshold': ranges.THRESHOLD,
        'consistency_weight': ranges.WEIGHT,
        # from almost never the student to always: ten classes have a skew of at most log(10)
        'fedswitch.beta_iid': ranges.linear(0.0, 2.3),
    },
)
register(METHOD)
