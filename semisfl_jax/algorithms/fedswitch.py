"""FedSwitch (Zhao et al., arXiv 2301.10114): a teacher or the student labels, by the skew of a client's data.

A reconstruction. Only the abstract of the paper and what others write of it were at hand: a teacher that is an average
of the student and moves at the clients, too; an adaptive choice between the two as the source of pseudo-labels, with
a hyper-parameter of how IID clients are. The rule of the choice (`switching`), its hyper-parameter and the place of the
averages are this package's reading (docs/ledger.md).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import costs, ema, phases, rng
from semisfl_jax.algorithms.method import Flat, Look, Method, option, register
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import HParams, learning_rate, optimizer
from semisfl_jax.models import SplitModel
from semisfl_jax.phases import pseudo_label, switching
from semisfl_jax.types import (
    LOCAL_CLIENTS,
    Algorithm,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    Metrics,
    SplitParams,
    Views,
)


@dataclasses.dataclass(frozen=True)
class FedSwitch:
    """`config.fedswitch`, of FedSwitch and FedSwitch-SL."""

    mode: str = option(
        'switch',
        "who labels: 'switch': by the skew of a client's labels | 'teacher' | 'student'",
        choices=switching.MODES,
    )
    beta_iid: float = option(
        0.5, 'switch: skew (nats, 0 .. log of classes) up to which a client trusts the student', at_least=0
    )


def fedswitch(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds FedSwitch.

    One round: K_s steps of cross-entropy at the server, each followed by the teacher's average; the student goes to the
    cohort, and the teacher to those who label with it; each client makes its steps of FixMatch, its teacher following
    every one of them (`ema_decay`); the server averages the students. The clients' teachers are dropped, and the
    server's learns of unlabeled data in the supervised steps of later rounds. It is what the method is judged by.

    Who labels, `fedswitch.mode`:
      'teacher', 'student': the client's teacher, or its own model.
      'switch': the student where the confident pseudo-labels that the received student gives to the images of the
        round have a skew of at most `beta_iid`, else the teacher (`switching`).

    Arguments as of `semisfl`; the model runs whole.
    """
    server = phases.build_server(model, views, hparams)
    rule = pseudo_label.fixmatch(hparams.threshold)
    objective = phases.semi_supervised(model, views, hparams, rule)
    mode = hparams.options.mode

    def count(inputs: phases.ClientInput, student: SplitParams, federation: Federation) -> Array:
        """Confident pseudo-labels under `student` [K], over all unlabeled images that the client will read."""

        def of_batch(t):
            batch = phases.read(federation, inputs, t)
            x = views.normalize(views.weak(rng.fold(inputs.key, 'skew', t), batch.images))
            logits, _ = phases.forward(model, student, x, None, False)
            labels, confident = pseudo_label.guess(logits, hparams.threshold)
            return switching.histogram(labels, confident & ~batch.labeled, logits.shape[-1])

        empty = jnp.zeros(jax.eval_shape(of_batch, 0).shape)
        return jax.lax.fori_loop(0, inputs.steps, lambda t, counts: counts + of_batch(t), empty)

    def client(
        inputs: phases.ClientInput, client_state, state: phases.State, federation: Federation, lr: Array
    ) -> phases.ClientOutput:
        trusts_student = jnp.array(mode == 'student')
        if mode == 'switch':
            counts = count(inputs, state.student, federation)
            trusts_student = ~switching.by_teacher(counts, hparams.options.beta_iid)

        def loss(parameters, student, teacher, t):
            labeler = jax.tree.map(lambda own, other: jnp.where(trusts_student, own, other), student, teacher)
            batch = phases.read(federation, inputs, t)
            return objective(parameters, student, labeler, batch, rng.fold(inputs.key, t), jnp.float32(0))

        def follow(teacher, student):
            return ema.update(teacher, student, hparams.ema_decay)

        sgd = optimizer(hparams, lr)
        student, client_state, means, counts = phases.local_sgd(
            loss, state.student, client_state, sgd, inputs.steps, companion=state.teacher, follow=follow
        )
        return phases.ClientOutput(
            student, client_state, {**means, 'student_labels': trusts_student.astype(jnp.float32)}, counts
        )

    local = phases.skip_during_warmup(hparams, phases.build_local(client, hparams, axis))

    def init(key: Array) -> phases.State:
        clients = phases.init_clients(key, model, hparams)
        return phases.init_state(key, model, memory=(), projection=False, clients=clients)

    def round_(
        key: Array, state: phases.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[phases.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        state, metrics = server(key, state, federation, k_s, lr)
        student, clients, client_metrics = local(key, state, federation, cohort, lr)
        state = state.replace(round=state.round + 1, student=student, clients=clients)
        return state, {'lr': lr, **metrics, **client_metrics}

    def predict(state: phases.State, images: Array) -> dict[str, Array]:
        return {
            'teacher': phases.predict(model, views, state.teacher, images),
            'student': phases.predict(model, views, state.student, images),
        }

    return Algorithm(init, round_, predict, headline='teacher')


def price(context: costs.CostContext) -> costs.ClientCost:
    """The student down, the teacher as well to those who label with it, the student up.

    In 'switch' a client first labels the images of its round with the student, and sends one number to say that it
    needs the teacher, or not. Who does is not recorded, only how many: every client is billed the same share of a
    teacher. Before the round, and where nobody survived to tell, a whole one.
    """
    h, cost = context.hparams, costs.whole_model(context)
    if h.options.mode != 'switch':
        return cost._replace(download=(2 if h.options.mode == 'teacher' else 1) * context.whole)
    images = h.batch_size * np.asarray(context.steps)
    return cost._replace(
        download=(2 - context.mean('student_labels', otherwise=0.0)) * context.whole,
        setup_upload=costs.NUMBER,
        setup_work=images * context.pieces.whole_work.forward,
    )


def check(flat: Flat) -> None:
    """Raises UserError for a threshold that nothing is compared with."""
    key, mode = 'fedswitch.beta_iid', flat['fedswitch.mode']
    if mode != 'switch' and flat[key] != FedSwitch.beta_iid:
        raise UserError(
            f"config.{key}={flat[key]} needs fedswitch.mode='switch', which is '{mode}'; leave it at "
            f'{FedSwitch.beta_iid}'
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
        uses=('teacher', 'local', 'kept optimizers', 'consistency', 'pre-rounds', 'sampling'),
        check=check,
        official='only the abstract of its paper was at hand, so no value of it is known',
        price=price,
        metrics={'student_labels': STUDENT_LABELS},
        look=Look('#009E73', '^', '-.'),
    )
)
