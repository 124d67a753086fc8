"""FedMatch (Jeong et al., ICLR 2021): disjoint learning of sigma + psi, inter-client consistency, agreement labels."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from semisfl_jax import core, costs
from semisfl_jax.algorithms.fedmatch import disjoint
from semisfl_jax.algorithms.fedmatch.client import Record, Sent, sent_out, train_client
from semisfl_jax.algorithms.fedmatch.options import FedMatch, Parts, check, official
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.ranges import LR, THRESHOLD, log
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core import trees
from semisfl_jax.core.hparams import HParams, learning_rate
from semisfl_jax.core.state import num_classes, trainable, with_parameters
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, Array, ClientAxis, Cohort, Federation, Metrics, Views
from semisfl_jax.models import SplitModel


def fedmatch(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds FedMatch. Parameters are theta = sigma + psi: `State.student` has sigma, `State.server` is psi.

    One round, labels at the server: K_s steps of sigma on lambda_s times the cross-entropy of f(sigma + psi), psi
    fixed; both go to the cohort; each client takes its steps of psi on L_u (`disjoint.build_agreement_loss`), sigma
    fixed; the server averages psi. With labels at the clients, each of their iterations is a step of sigma on labeled
    images, then one of psi on the others, and the server averages both, after K_s steps of its own if K_s is not 0.

    With `delta_threshold`, an entry that a client trains is sent only if it changed by more than that; otherwise the
    average, and the server's copy of the client's psi, use the value that the server had sent out. Downloads are always
    complete.

    In every `helper_every`-th round, a client that has participated before is sent the last psi of the H other clients
    whose models give the most similar predictions for one noise image. Combined with the sigma it has received, they
    are its helpers: only in that round, as in the authors' code, or with `helpers_persist` until it is sent new ones.
    If fewer than H others are known, only those help (the authors' search fails in that case).

    The headline model is sigma + psi, with entries of psi of magnitude up to `l1_threshold` set to zero. BatchNorm
    statistics, which the authors' model does not have, are updated by every training step and averaged. Arguments as in
    `semisfl`; the model is not split.
    """
    label_loss = disjoint.build_label_loss(model, views, hparams)
    agreement_loss = disjoint.build_agreement_loss(model, views, hparams)
    parts = Parts(model, views, hparams, label_loss, agreement_loss)

    def round_(
        key: Array, state: core.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[core.State, Metrics]:
        lr, label_weight = learning_rate(hparams, state.round), hparams.options.lambda_s
        server = core.build_server(disjoint.shifted(model, state.server), views, hparams, label_weight)
        state, metrics = server(key, state, federation, k_s, lr)
        received = partial(sent_out, parts)
        local = core.build_local(partial(train_client, parts, key), hparams, axis, received)
        mean, clients, client_metrics = core.skip_pre_rounds(hparams, local, received)(
            key, state, federation, cohort, lr
        )
        student = with_parameters(mean['statistics'], mean.get('sigma', trainable(state.student)))
        state = state.replace(round=state.round + 1, student=student, server=mean['psi'], clients=clients)
        return state, {'lr': lr, **metrics, **client_metrics}

    return Algorithm(partial(init, parts), round_, partial(predict, parts), headline='student')


def init(parts: Parts, key: Array) -> core.State:
    """The state before the first round; with helpers, the server has no psi of any client yet."""
    model, hparams, options = parts.model, parts.hparams, parts.options
    state = core.init_state(key, model, teacher=False)
    psi = jax.tree.map(lambda w: options.psi_start * w, trainable(state.student))
    trained = ('sigma', 'psi') if parts.labels_at_clients else ('psi',)
    records = Record({name: core.init_clients(key, model, hparams) for name in trained})
    if options.helpers:
        classes = num_classes(model, state.student.top)
        zeros = jax.tree.map(jnp.zeros_like, psi)
        sent = Sent(trees.replicate(zeros, options.helpers), jnp.zeros(options.helpers, bool))
        unknown = zeros, jnp.zeros(classes), jnp.array(False), sent if options.helpers_persist else ()
        records = Record(records.momentum, *trees.replicate(unknown, hparams.num_clients))
    return state.replace(server=psi, clients=records)


def predict(parts: Parts, state: core.State, images: Array) -> dict[str, Array]:
    """Logits [B, K] of sigma + psi, without the small entries of psi."""
    psi = jax.tree.map(lambda w: jnp.where(jnp.abs(w) > parts.options.l1_threshold, w, 0.0), state.server)
    whole = with_parameters(state.student, disjoint.total(trainable(state.student), psi))
    return {'student': core.predict(parts.model, parts.views, whole, images)}


def price(context: costs.CostContext) -> costs.ClientCost:
    """sigma + psi down, psi up, and sigma as well where clients have labels; in helper rounds the psi of helpers down.

    The number of helpers is a mean over clients (`helpers_used`); before the round, the maximum. With
    `delta_threshold` only the entries sent are billed, averaged over the clients (`psi_sent`, `sigma_sent`); their
    indices are free, as in the authors' count. Downloads are billed in full. BatchNorm statistics, which the authors'
    model does not have, are included once in each direction.
    """
    h, pieces = context.hparams, context.pieces
    work = pieces.whole_work
    part = context.whole_bytes - pieces.statistics
    sends = (context.index + 1) % h.options.helper_every == 0
    helpers = context.mean('helpers_used', otherwise=float(h.options.helpers))
    helping = helpers if sends or h.options.helpers_persist else 0.0
    agreement_work = work.train + (work.train if helping else work.forward) + helping * work.forward

    def sent(name: str) -> float:
        if not h.options.delta_threshold:
            return part
        entries = part / costs.NUMBER
        return costs.NUMBER * context.mean(f'{name}_sent', otherwise=entries, scale=entries)

    return costs.ClientCost(
        download=context.whole_bytes + part + (helpers if sends else 0) * part,
        upload=sent('psi') + (sent('sigma') if h.labeled_rows else 0) + pieces.statistics,
        step_work=h.batch_size * agreement_work + h.labeled_rows * work.train,
    )


METHOD = register(
    Method(
        name='fedmatch',
        build=fedmatch,
        title='FedMatch',
        source='Jeong et al., Federated Semi-Supervised Learning with Inter-Client Consistency & Disjoint Learning, '
        'ICLR 2021',
        options=FedMatch,
        uses=('pseudo-labels', 'local', 'steps', 'kept optimizers', 'pre-rounds', 'sampling'),
        server='optional',
        in_parts=True,
        check=check,
        official=official,
        price=price,
        metrics={
            'loss_agreement': 'cross-entropy of agreement labels: mean over confident images, before its weight',
            'loss_inter_client': 'divergence from the helpers: mean over confident images, before its weight',
            'helpers_used': 'helpers of a client, on average',
            'psi_sent': 'with `fedmatch.delta_threshold`: share of the entries of psi that a client sends, on average',
            'sigma_sent': 'likewise of sigma, where clients have labels',
        },
        look=Look('#CC79A7', 'D', ':'),
        ranges={
            'lr': LR,
            'threshold': THRESHOLD,
            # from a tenth of the code's 0.01 to the 1 that labels weigh
            'fedmatch.lambda_a': log(1e-3, 1.0),
            'fedmatch.lambda_i': log(1e-3, 1.0),
            # from where psi keeps what it learned from unlabeled images to ten times the default
            'fedmatch.lambda_l2': log(1e-4, 0.5),
        },
    )
)
