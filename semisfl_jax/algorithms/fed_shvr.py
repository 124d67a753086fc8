"""Fed-SHVR (Wang et al., arXiv 2111.00010): sharpened labels, normalized averaging and variance reduction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import Flat, Look, Method, protocol
from semisfl_jax.algorithms.ranges import LR, WEIGHT, linear
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core import losses, rng, sampling, trees
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams, optimizer, plain_steps
from semisfl_jax.core.keys import key as option
from semisfl_jax.core.objectives import Rule
from semisfl_jax.core.state import statistics, trainable, with_parameters
from semisfl_jax.core.teacher import hard_labels, label_logits
from semisfl_jax.core.types import (
    LOCAL_CLIENTS,
    Algorithm,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    LossValue,
    SplitParams,
    Views,
)
from semisfl_jax.models import SplitModel


@dataclasses.dataclass(frozen=True)
class FedShvr:
    """`config.fed_shvr`, for Fed-SHVR, Fed-SH and Fed-SVR."""

    alpha0: float = option(
        1.0,
        'weight of the cross-entropy with pseudo-labels, after the ramp',
        at_least=0,
        idle={'pseudo_labels': 'none'},
    )
    ramp_rounds: int = option(
        25,
        'rounds in which `alpha0` rises from 0 in the first one to its value, linearly; 0: no ramp. 25 are the 50 '
        'epochs of the paper',
        at_least=0,
        idle={'pseudo_labels': 'none', 'fed_shvr.alpha0': 0},
    )
    alpha1: float = option(
        0.75,
        'regularization of the pseudo-labels, which are predictions to the power of `alpha0` / `alpha1`; 0: one-hot',
        at_least=0,
        idle={'pseudo_labels': 'none'},
    )
    alpha2: float = option(0.1, 'weight of the confidence penalty on predictions for unlabeled images', at_least=0)


# --- the local objective: soft pseudo-labels that are sharpened, and regularized predictions (Section II)


def sharpen(logits: Array, exponent: Array | float) -> Array:
    """Predictions to a power, normalized (Eq. 8): logits [B, K] -> p_j^exponent / sum_i p_i^exponent [B, K].

    0 gives the uniform distribution, 1 the prediction itself, infinity one-hot labels (of the first of equal classes).
    """
    hard = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
    finite = jnp.where(jnp.isinf(exponent), 1.0, exponent)
    return jnp.where(jnp.isinf(exponent), hard, jax.nn.softmax(finite * jax.nn.log_softmax(logits)))


def divergence_from_uniform(probabilities: Array) -> Array:
    """KL(p || u) of rows [B, K] from the uniform distribution [B]: log K minus the entropy."""
    return jnp.log(probabilities.shape[-1]) - jnp.sum(jax.scipy.special.entr(probabilities), axis=-1)


def confidence_rows(logits: Array) -> Array:
    """KL(f || u) of the predictions f = softmax(logits) [B, K]: [B]. Its gradient in the logits is
    f (log f - sum f log f)."""
    log_f = jax.nn.log_softmax(logits)
    return jnp.log(logits.shape[-1]) + jnp.sum(jnp.exp(log_f) * log_f, axis=-1)


def sharpened_rows(hparams: HParams, received: Array, logits: Array, risen: Array | float = 1.0) -> Array:
    """The unlabeled terms of a client's objective by rows [B] (Eq. 5a, 6 and 9):

    alpha0 CE(f(u), v) + alpha1 KL(v || uniform) + alpha2 KL(f(u) || uniform), with the labels
    v = f'(u)^(alpha0 / alpha1), normalized, that minimize the first two terms at the received model f' (Eq. 8).

    `alpha1` 0 is the limit of one-hot labels. The second term has no gradient, and is part of the objective's value.
    Logits [B, K] are those of the received model and of the model in training; the ramp has reached the share `risen`
    of alpha0.
    """
    options = hparams.options
    confidence = options.alpha2 * confidence_rows(logits)
    if hparams.pseudo_labels == 'none':  # the penalty on confidence needs no label
        return confidence
    alpha0, alpha1 = options.alpha0 * risen, options.alpha1
    targets = sharpen(received, jnp.asarray(alpha0) / alpha1 if alpha1 else jnp.inf)
    rows = -alpha0 * jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
    return rows + alpha1 * divergence_from_uniform(targets) + confidence


# --- the method


class Form(NamedTuple):
    """What sets Fed-SHVR apart from its two ablations."""

    corrected: bool  # clients correct their gradients by d_k
    normalized: bool  # the server averages updates per step (FedNova), not models


class Upload(NamedTuple):
    """What the server averages."""

    update: SplitParams  # theta - theta_k of the parameters; divided by `steps` if normalized
    steps: Array  # [], tau_k
    statistics: SplitParams  # BatchNorm's: the model without parameters


def build(
    form: Form,
    model: SplitModel,
    views: Views,
    hparams: HParams,
    axis: ClientAxis = LOCAL_CLIENTS,
    objective_in: Callable[[Array], core.Objective] | None = None,
) -> Algorithm:
    """Builds Fed-SHVR or an ablation of it.

    One round: K_s steps of cross-entropy at the server, if it has labels; theta goes to the cohort; each client labels
    its unlabeled images with theta, once, and takes tau_k steps of SGD on its objective (`sharpened_objective`),
    whose gradients g are corrected to g + d_k; the server averages.

    Algorithm 1 defines d_k by recursion, from the last two models of the server and the client's last result. That is
    the same as

      d_k = c - c_k in Fed-SHVR, with c = sum_k w_k c_k;  d_k = sum_j w_j tau_j c_j / tau_k - c_k in Fed-SVR,

    where c_k is the mean gradient of the client's last round, before correction, and w_k its share of all images. So
    clients keep one model each, c_k (`State.clients`), and the server the sum (`State.server`). Both start at 0: the
    first round is not corrected. With all clients in every round this is Algorithm 1, except that its first round,
    which changes nothing, is left out. A client that is absent or fails keeps its c_k, so sum_k w_k d_k remains 0
    (Fed-SVR: sum_k w_k tau_k d_k), as in SCAFFOLD; the paper has no such clients.

    With momentum, tau_k is the number of plain steps that move a model as far (`hparams.plain_steps`), as in FedNova.

    The headline model is the averaged model. `Algorithm.client_losses` are the terms of the paper's F (Eq. 5a), with
    alpha0 after the ramp, so that rounds compare.
    `objective_in` maps the round [] to what clients minimize in it, by default the paper's objective on weak views.
    Other arguments as in `semisfl`; the model is not split.
    """
    in_round = objective_in or partial(sharpened_objective, model, views, hparams)
    server = core.build_server(model, views, hparams)

    def client(
        inputs: core.ClientInput, control: Any, state: core.State, federation: Federation, lr: Array
    ) -> core.ClientOutput:
        start, steps, tx = trainable(state.student), plain_steps(hparams, inputs.steps), optimizer(hparams, lr)
        objective = in_round(state.round)
        if form.corrected:
            factor = 1.0 if form.normalized else 1.0 / jnp.maximum(steps, 1.0)
            correction = jax.tree.map(lambda c, c_k: factor * c - c_k, state.server, control)  # d_k
            tx = optax.chain(optax.stateless(lambda gradient, _: jax.tree.map(jnp.add, gradient, correction)), tx)

        def loss(parameters: SplitParams, student: SplitParams, _: Any, t: Array) -> LossValue:
            batch = core.read(federation, inputs, t)
            return objective(parameters, student, state.student, batch, rng.fold(inputs.key, t), state.round)

        student, _, means, counts = core.local_sgd(loss, state.student, (), tx, inputs.steps)
        update = jax.tree.map(jnp.subtract, start, trainable(student))
        if form.corrected:
            means['correction_norm'] = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(correction)))
            scale = lr * steps

            def mean_gradient(x: Array, d: Array, old: Array) -> Array:  # the old one where nothing could move
                return jnp.where(scale > 0, x / jnp.where(scale > 0, scale, 1.0) - d, old)

            control = jax.tree.map(mean_gradient, update, correction, control)
        if form.normalized:
            update = jax.tree.map(lambda x: x / jnp.maximum(steps, 1.0), update)
        return core.ClientOutput(Upload(update, steps, statistics(student)), control, means, counts)

    def received(state: core.State) -> Upload:
        nothing = jax.tree.map(jnp.zeros_like, trainable(state.student))
        return Upload(nothing, jnp.zeros(()), statistics(state.student))

    local = core.build_local(client, hparams, axis, received)

    def init(key: Array) -> core.State:
        state = core.init_state(key, model, teacher=False)
        if not form.corrected:
            return state
        nothing = jax.tree.map(jnp.zeros_like, trainable(state.student))
        return state.replace(clients=trees.replicate(nothing, hparams.num_clients), server=nothing)

    def update(state: core.State, average: Upload, federation: Federation) -> core.State:
        mean_steps = average.steps if form.normalized else 1.0
        parameters = jax.tree.map(lambda x, update: x - mean_steps * update, trainable(state.student), average.update)
        control = _average_control(form, state.clients, federation, hparams) if form.corrected else ()
        return state.replace(student=with_parameters(average.statistics, parameters), server=control)

    round_ = core.server_then_clients(hparams, server, local, update)
    predict = core.predict_by(model, views, 'student')

    def client_losses(state: core.State, images: Array, labels: Array) -> tuple[Array, Array]:
        logits = predict(state, images)['student']
        received = label_logits(hparams, logits, labels)
        return losses.cross_entropy_rows(logits, labels), sharpened_rows(hparams, received, logits)

    return Algorithm(init, round_, predict, headline='student', client_losses=client_losses)


def sharpened_objective(model: SplitModel, views: Views, hparams: HParams, round_index: Array) -> core.Objective:
    """CE of labeled images plus `sharpened_rows` of the others, in weak views. The received model is the labeler."""
    ramp_rounds = hparams.options.ramp_rounds
    risen = jnp.minimum(round_index / ramp_rounds, 1.0) if ramp_rounds else 1.0
    return core.semi_supervised(model, core.plain(views), hparams, sharpened_rule(hparams, risen))


def sharpened_rule(hparams: HParams, risen: Array | float) -> Rule:
    """The mean of the terms of unlabeled images; `risen` as in `sharpened_rows`."""

    def rule(received: Array, logits: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, every = hard_labels(received, 0.0)
        counted = every if hparams.pseudo_labels != 'none' else ~every
        return losses.row_mean(sharpened_rows(hparams, received, logits, risen), weight), labels, counted

    return rule


def _average_control(form: Form, controls: Any, federation: Federation, hparams: HParams) -> SplitParams:
    """sum_k w_k c_k, or sum_k w_k tau_k c_k if models are averaged, over all N clients; w_k sum to 1."""
    everyone = jnp.arange(hparams.num_clients)
    cohort = Cohort(everyone, jnp.ones(everyone.shape), jnp.zeros_like(everyone))
    share = core.weigh(federation, cohort, hparams).share
    share = share / jnp.maximum(jnp.sum(share), 1.0)
    if not form.normalized:
        steps = sampling.client_steps(federation, cohort, hparams.batches)
        share = share * jax.vmap(partial(plain_steps, hparams))(steps)
    return jax.tree.map(lambda c: jnp.tensordot(share, c, axes=1), controls)


def fed_shvr(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds Fed-SHVR; see `build`."""
    return build(Form(corrected=True, normalized=True), model, views, hparams, axis)


def of_fed_shvr(flat: Flat) -> dict[str, Any]:
    """The protocol of Fed-SHVR's experiments (Wang et al., 2021, Section V), equal for all its methods.

    Data sets other than MNIST and CIFAR-10 get MNIST's values. On MNIST the sizes of clients are bounded so that tau_k
    lies in 270 to 500, the range that the paper gives; on CIFAR-10 there is no bound, because of 20,000 images some
    clients get none or one by such a draw (docs/ledger.md).

    The paper does not mention momentum, weight decay and augmentation: there is none, but flips and crops on CIFAR-10.
    """
    cifar = flat['data.name'] == 'cifar10'
    clients, rounds = (40, 1000) if cifar else (10, 100)
    values = protocol(clients, clients, rounds, lr=0.01, momentum=0.0, batch_size=64, epochs=2) | {
        'federation.mu': 1,
        'data.labeled_split': 'balanced',
        'data.client_labels': flat['data.num_labeled'],
        'k_s': 0,
        'optimizer': 'sgd',
        'local.weighting': 'samples',
        'model.batch_norm_variance': 'unbiased',  # PyTorch's
    }
    values |= {'augment.flip': cifar, 'augment.crop': 0.125 if cifar else 0.0}
    if cifar:
        values['data.num_unlabeled'] = 20_000
    if flat['federation.partition'] in ('dirichlet', 'dirichlet_class'):
        values |= {
            'federation.partition': 'dirichlet_class',
            'federation.alpha': 0.025 if cifar else 0.1,
            'federation.labeled_partition': 'classes',
            'federation.classes_per_client': 6 if cifar else 2,
        }
        bounds = {'mnist': (4320, 8015), 'cifar10': (0, 0)}  # on others, the configuration's
        if flat['data.name'] in bounds:
            values['federation.min_images'], values['federation.max_images'] = bounds[flat['data.name']]
    return values


def official(flat: Flat) -> dict[str, Any]:
    """Fed-SHVR's own experiments: `of_fed_shvr`, with its alpha1 and alpha2.

    alpha0 rises during the first 50 epochs, which are 25 rounds; the paper does not give its last value
    (docs/ledger.md).
    """
    return of_fed_shvr(flat) | {'fed_shvr.alpha1': 0.75, 'fed_shvr.alpha2': 0.1, 'fed_shvr.ramp_rounds': 25}


def price(context: costs.CostContext) -> costs.ClientCost:
    """One model down, one up. A client predicts each of its unlabeled images once a round.

    With all clients in every round and no labels at the server, a client knows the corrections from two models that it
    received one after the other (Algorithm 1, Eq. 15). If some may be absent, or if the server trains between the two,
    it also sends its average gradient, as large as the parameters.
    """
    cost = costs.whole_model(context, pseudo_labels=False)
    known = context.everyone and not context.hparams.server_trains
    control = 0 if known else context.whole_bytes - context.pieces.statistics
    return cost._replace(
        download=context.whole_bytes + control, setup_work=context.unlabeled * context.pieces.whole_work.forward
    )


def check(flat: Flat) -> None:
    """Raises UserError for an optimizer whose steps are not sums of gradients."""
    if flat['optimizer'] != 'sgd':
        why = f"{flat['algorithm']} divides each client's update by its number of steps of SGD"
        raise UserError(f"config.optimizer='{flat['optimizer']}': {why}; use 'sgd'")


METHOD = register(
    Method(
        name='fed_shvr',
        build=fed_shvr,
        title='Fed-SHVR',
        source='Wang et al., Federated Semi-Supervised Learning with Class Distribution Mismatch, arXiv 2111.00010',
        options=FedShvr,
        uses=('pseudo-labels', 'local', 'steps', 'pre-rounds', 'sampling'),
        server='optional',
        steps='longest',
        by_images=True,
        counts_all=True,
        check=check,
        official=official,
        price=price,
        metrics={'correction_norm': 'norm of the correction $d_k$ of gradients, mean over clients'},
        look=Look('#117733', 'p', '-'),
        ranges={
            'lr': LR,
            'fed_shvr.alpha0': WEIGHT,
            'fed_shvr.alpha1': linear(0.0, 1.0),  # from one-hot labels to plain predictions
            'fed_shvr.alpha2': linear(0.0, 0.5),  # from no penalty to five times its 0.1
        },
    )
)


# --- its ablations


def fed_sh(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds Fed-SH, without variance reduction: d_k = 0, so FedNova (Wang et al., 2020) on the same objective."""
    return build(Form(corrected=False, normalized=True), model, views, hparams, axis)


register(
    dataclasses.replace(
        METHOD,
        name='fed_sh',
        build=fed_sh,
        title='Fed-SH',
        source=f'an ablation of {METHOD.source}',
        group='fed_shvr',
        price=lambda context: price(context)._replace(download=context.whole_bytes),
        metrics={},
        look=Look('#99BB66', 'h', ':'),
    )
)


def fed_svr(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds Fed-SVR, which averages models, with the correction of VRL-SGD (Liang et al., 2019) for clients with
    unequal numbers of steps."""
    return build(Form(corrected=True, normalized=False), model, views, hparams, axis)


register(
    dataclasses.replace(
        METHOD,
        name='fed_svr',
        build=fed_svr,
        title='Fed-SVR',
        source=f'an ablation of {METHOD.source}',
        group='fed_shvr',
        look=Look('#AA0011', '*', '-.'),
    )
)
