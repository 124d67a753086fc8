"""Fed-SHVR (Wang et al., arXiv 2111.00010): sharpened labels, normalized averaging and variance reduction."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Flat, Look, Method, option, protocol, ranges, register
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import losses, objectives, rng, sampling, trees


class Form(NamedTuple):
    """The switches that set Fed-SHVR, which has both, apart from its two ablations.

    Fed-SH has d_k = 0, so it is FedNova (Wang et al., 2020) on the same objective. Fed-SVR averages models, with
    VRL-SGD's correction (Liang et al., 2019) for unequal numbers of steps.
    """

    corrected: bool  # clients correct their gradients by d_k
    normalized: bool  # the server averages updates per step (FedNova), not models


class Upload(NamedTuple):
    """The values that the server averages."""

    update: core.SplitParams  # theta - theta_k of the parameters; divided by `steps` if normalized
    steps: Array  # [], tau_k
    statistics: core.SplitParams  # BatchNorm's: the model without its parameters


def build(
    form: Form,
    model: core.SplitModel,
    views: core.Views,
    hparams: core.HParams,
    axis: core.ClientAxis = core.LOCAL_CLIENTS,
    objective_in: Callable[[Array], core.Objective] | None = None,
) -> core.Algorithm:
    """Builds Fed-SHVR or an ablation of it.

    One round: K_s steps of cross-entropy at the server, if it has labels; theta goes to the cohort; each client labels
    its unlabeled images with theta, once, and takes tau_k steps of SGD on its objective (`sharpened_objective`), whose
    gradients g are corrected to g + d_k; the server averages.

    Algorithm 1 defines d_k by recursion, from the last two models of the server and the client's last result.
    Equivalently,

      d_k = c - c_k in Fed-SHVR, with c = sum_k w_k c_k;  d_k = sum_j w_j tau_j c_j / tau_k - c_k in Fed-SVR,

    where c_k is the mean gradient of the client's last round, before correction, and w_k its share of all images. So
    every client keeps one model, c_k (`State.clients`), and the server keeps the sum (`State.server`). Both start at 0:
    the first round is not corrected. With all clients in every round this is Algorithm 1 without its first round, which
    changes nothing. A client that is absent or fails keeps its c_k, so sum_k w_k d_k remains 0 (Fed-SVR: sum_k w_k
    tau_k d_k), as in SCAFFOLD; the paper has no such clients.

    With momentum, tau_k is the number of plain steps that move a model as far (`hparams.plain_steps`), as in FedNova.

    `Algorithm.client_losses` are the terms of the paper's F (Eq. 5a), with alpha0 after the ramp, so that rounds
    compare.

    Args:
      form: Fed-SHVR or one of its ablations.
      model: the model, which is not split.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `FedShvr` as options.
      axis: the clients of a round; by default, all are local.
      objective_in: maps the round [] to the objective of its clients; None: the paper's, on weak views.

    Returns:
      The method as pure functions. Its headline model is the averaged model.
    """
    in_round = objective_in or partial(sharpened_objective, model, views, hparams)
    server = core.build_server(model, views, hparams)

    def client(
        inputs: core.ClientInput, control: Any, state: core.State, federation: core.Federation, lr: Array
    ) -> core.ClientOutput:
        start, steps = core.trainable(state.student), core.plain_steps(hparams, inputs.steps)
        tx, objective = core.optimizer(hparams, lr), in_round(state.round)
        if form.corrected:
            factor = 1.0 if form.normalized else 1.0 / jnp.maximum(steps, 1.0)
            correction = jax.tree.map(lambda c, c_k: factor * c - c_k, state.server, control)  # d_k
            tx = optax.chain(optax.stateless(lambda gradient, _: jax.tree.map(jnp.add, gradient, correction)), tx)

        def loss(parameters: core.SplitParams, student: core.SplitParams, _: Any, t: Array) -> core.LossValue:
            batch = core.read(federation, inputs, t)
            return objective(parameters, student, state.student, batch, rng.fold(inputs.key, t), state.round)

        student, _, means, counts = core.local_sgd(loss, state.student, (), tx, inputs.steps)
        update = jax.tree.map(jnp.subtract, start, core.trainable(student))
        if form.corrected:
            means['correction_norm'] = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(correction)))
            scale = lr * steps

            def mean_gradient(x: Array, d: Array, old: Array) -> Array:  # the old one if no step could move the model
                return jnp.where(scale > 0, x / jnp.where(scale > 0, scale, 1.0) - d, old)

            control = jax.tree.map(mean_gradient, update, correction, control)
        if form.normalized:
            update = jax.tree.map(lambda x: x / jnp.maximum(steps, 1.0), update)
        return core.ClientOutput(Upload(update, steps, core.statistics(student)), control, means, counts)

    def received(state: core.State) -> Upload:
        nothing = jax.tree.map(jnp.zeros_like, core.trainable(state.student))
        return Upload(nothing, jnp.zeros(()), core.statistics(state.student))

    local = core.build_local(client, hparams, axis, received)

    def init(key: Array) -> core.State:
        state = core.init_state(key, model, teacher=False)
        if not form.corrected:
            return state
        nothing = jax.tree.map(jnp.zeros_like, core.trainable(state.student))
        return state.replace(clients=trees.replicate(nothing, hparams.num_clients), server=nothing)

    def update(state: core.State, average: Upload, federation: core.Federation) -> core.State:
        mean_steps = average.steps if form.normalized else 1.0
        parameters = jax.tree.map(
            lambda x, update: x - mean_steps * update, core.trainable(state.student), average.update
        )
        control = _average_control(form, state.clients, federation, hparams) if form.corrected else ()
        return state.replace(student=core.with_parameters(average.statistics, parameters), server=control)

    round_ = core.server_then_clients(hparams, server, local, update)
    predict = core.predict_by(model, views, 'student')

    def client_losses(state: core.State, images: Array, labels: Array) -> tuple[Array, Array]:
        logits = predict(state, images)['student']
        received = core.teacher.label_logits(hparams, logits, labels)
        return losses.cross_entropy_rows(logits, labels), sharpened_rows(hparams, received, logits)

    return core.Algorithm(init, round_, predict, headline='student', client_losses=client_losses)


def sharpened_objective(
    model: core.SplitModel, views: core.Views, hparams: core.HParams, round_index: Array
) -> core.Objective:
    """Builds a client's objective: cross-entropy of labeled images, `sharpened_rows` of unlabeled ones, in weak views.

    Args:
      model: the model.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `FedShvr` as options.
      round_index: [], 0-based, which sets the ramp of alpha0.

    Returns:
      The objective; the received model labels.
    """
    ramp_rounds = hparams.options.ramp_rounds
    risen = jnp.minimum(round_index / ramp_rounds, 1.0) if ramp_rounds else 1.0
    return core.semi_supervised(model, core.plain(views), hparams, sharpened_rule(hparams, risen))


def sharpened_rule(hparams: core.HParams, risen: Array | float) -> objectives.Rule:
    """Builds the rule for unlabeled images: the mean of their terms.

    Args:
      hparams: the hyper-parameters, with `FedShvr` as options.
      risen: share of alpha0 that the ramp has reached.

    Returns:
      A function (received logits [B, K], logits [B, K], weight [B]) -> loss [], labels [B], whether they count [B].
    """

    def rule(received: Array, logits: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, every = core.hard_labels(received, 0.0)
        counted = every if hparams.pseudo_labels != 'none' else ~every
        return losses.row_mean(sharpened_rows(hparams, received, logits, risen), weight), labels, counted

    return rule


def sharpened_rows(hparams: core.HParams, received: Array, logits: Array, risen: Array | float = 1.0) -> Array:
    """Computes the unlabeled terms of a client's objective by rows (Eq. 5a, 6 and 9).

        alpha0 CE(f(u), v) + alpha1 KL(v || uniform) + alpha2 KL(f(u) || uniform)

    The labels v = f'(u)^(alpha0 / alpha1), normalized, minimize the first two terms at the received model f' (Eq. 8).
    With `alpha1` 0, the limit, they are one-hot. The second term has no gradient, and is part of the objective's value.

    Args:
      hparams: the hyper-parameters, with `FedShvr` as options.
      received: logits [B, K] of the received model.
      logits: logits [B, K] of the model in training.
      risen: share of alpha0 that the ramp has reached.

    Returns:
      The sum of the terms [B]; without pseudo-labels, the third one alone.
    """
    options = hparams.options
    confidence = options.alpha2 * confidence_rows(logits)
    if hparams.pseudo_labels == 'none':  # only the confidence penalty needs no label
        return confidence
    alpha0, alpha1 = options.alpha0 * risen, options.alpha1
    targets = sharpen(received, jnp.asarray(alpha0) / alpha1 if core.nonzero(alpha1) else jnp.inf)
    rows = -alpha0 * jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
    return rows + alpha1 * divergence_from_uniform(targets) + confidence


def sharpen(logits: Array, exponent: Array | float) -> Array:
    """Raises predictions to a power and normalizes them (Eq. 8).

    0 gives the uniform distribution, 1 the prediction itself, infinity one-hot labels (of the first of equal classes).

    Args:
      logits: the predictions [B, K].
      exponent: the power, 0 to infinity.

    Returns:
      p_j^exponent / sum_i p_i^exponent [B, K].
    """
    hard = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
    finite = jnp.where(jnp.isinf(exponent), 1.0, exponent)
    return jnp.where(jnp.isinf(exponent), hard, jax.nn.softmax(finite * jax.nn.log_softmax(logits)))


def divergence_from_uniform(probabilities: Array) -> Array:
    """Computes KL(p || u) of rows p [B, K] from the uniform distribution [B]: log K minus the entropy."""
    return jnp.log(probabilities.shape[-1]) - jnp.sum(jax.scipy.special.entr(probabilities), axis=-1)


def confidence_rows(logits: Array) -> Array:
    """Computes KL(f || u) [B] of the predictions f = softmax(logits) [B, K].

    Its gradient in the logits is f (log f - sum f log f).
    """
    log_f = jax.nn.log_softmax(logits)
    return jnp.log(logits.shape[-1]) + jnp.sum(jnp.exp(log_f) * log_f, axis=-1)


def _average_control(form: Form, controls: Any, federation: core.Federation, hparams: core.HParams) -> core.SplitParams:
    """Computes sum_k w_k c_k, or sum_k w_k tau_k c_k if models are averaged, over all N clients; the w_k sum to 1."""
    everyone = jnp.arange(hparams.num_clients)
    cohort = core.Cohort(everyone, jnp.ones(everyone.shape), jnp.zeros_like(everyone))
    share = core.weigh(federation, cohort, hparams).share
    share = share / jnp.maximum(jnp.sum(share), 1.0)
    if not form.normalized:
        steps = sampling.client_steps(federation, cohort, hparams.batches)
        share = share * jax.vmap(partial(core.plain_steps, hparams))(steps)
    return jax.tree.map(lambda c: jnp.tensordot(share, c, axes=1), controls)


# --- the record


# fmt: off
@dataclasses.dataclass(frozen=True)
class FedShvr:
    """The keys of `config.fed_shvr`, for Fed-SHVR, Fed-SH and Fed-SVR."""

    alpha0: float = option(1.0, at_least=0, idle={'pseudo_labels': 'none'}, help='weight of the cross-entropy with '
        'pseudo-labels, after the ramp')
    ramp_rounds: int = option(25, at_least=0, idle={'pseudo_labels': 'none', 'fed_shvr.alpha0': 0}, help='rounds in '
        'which `alpha0` rises from 0 in the first one to its value, linearly; 0: no ramp. 25 are the 50 epochs of the '
        'paper')
    alpha1: float = option(0.75, at_least=0, idle={'pseudo_labels': 'none'}, help='regularization of the '
        'pseudo-labels, which are predictions to the power of `alpha0` / `alpha1`; 0: one-hot')
    alpha2: float = option(0.1, at_least=0, help='weight of the confidence penalty on predictions for unlabeled images')
# fmt: on


def fed_shvr_protocol(flat: Flat) -> dict[str, Any]:
    """Returns the protocol of Fed-SHVR's experiments (Wang et al., 2021, Section V), equal for all its methods.

    Data sets other than MNIST and CIFAR-10 get MNIST's values. On MNIST the sizes of clients are bounded so that tau_k
    lies in 270 to 500, the range that the paper gives. On CIFAR-10 they have no bound, because such a draw from 20,000
    images leaves some clients with one image or none (docs/ledger.md).

    The paper does not mention momentum, weight decay and augmentation, so there is none, except flips and crops on
    CIFAR-10.
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
        bounds = {'mnist': (4320, 8015), 'cifar10': (0, 0)}  # other data sets keep the configuration's
        if flat['data.name'] in bounds:
            values['federation.min_images'], values['federation.max_images'] = bounds[flat['data.name']]
    return values


def official(flat: Flat) -> dict[str, Any]:
    """Returns the settings of Fed-SHVR's own experiments: `fed_shvr_protocol`, with its alpha1 and alpha2.

    alpha0 rises during the first 50 epochs, which are 25 rounds; the paper does not give its last value
    (docs/ledger.md).
    """
    return fed_shvr_protocol(flat) | {'fed_shvr.alpha1': 0.75, 'fed_shvr.alpha2': 0.1, 'fed_shvr.ramp_rounds': 25}


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills one model down and one up; a client predicts each of its unlabeled images once a round.

    With all clients in every round and no labels at the server, a client knows the corrections from two consecutive
    models of the server (Algorithm 1, Eq. 15). If some clients may be absent, or if the server trains between the two,
    the server also sends its average gradient, as large as the parameters.
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


METHOD = Method(
    name='fed_shvr',
    build=partial(build, Form(corrected=True, normalized=True)),
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
        'lr': ranges.LR,
        'fed_shvr.alpha0': ranges.WEIGHT,
        'fed_shvr.alpha1': ranges.linear(0.0, 1.0),  # from one-hot labels to plain predictions
        'fed_shvr.alpha2': ranges.linear(0.0, 0.5),  # from no penalty to five times the paper's 0.1
    },
)
register(METHOD)
register(
    dataclasses.replace(
        METHOD,
        name='fed_sh',
        build=partial(build, Form(corrected=False, normalized=True)),
        title='Fed-SH',
        source=f'an ablation of {METHOD.source}',
        group='fed_shvr',
        price=lambda context: price(context)._replace(download=context.whole_bytes),
        metrics={},
        look=Look('#99BB66', 'h', ':'),
    )
)
register(
    dataclasses.replace(
        METHOD,
        name='fed_svr',
        build=partial(build, Form(corrected=True, normalized=False)),
        title='Fed-SVR',
        source=f'an ablation of {METHOD.source}',
        group='fed_shvr',
        look=Look('#AA0011', '*', '-.'),
    )
)
