"""FedDure (Bai et al., AAAI 2024): two regulators at every client weight its pseudo-labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Flat, Look, Method, Parts, option, protocol, ranges, register
from semisfl_jax.algorithms.method import DIGITS
from semisfl_jax.core import losses, objectives, rng
from semisfl_jax.models.layers import torch_uniform


def feddure(model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis) -> core.Algorithm:
    """Builds FedDure.

    One round: K_s steps of cross-entropy at the server, if it has labels (an addition to the method: K_s is 0 in its
    paper); the model theta goes to the cohort; each client trains it, and the server averages the results. A client
    starts from the received model: it sets theta and, for C-reg, phi to it. It keeps the w of F-reg from its last
    round; the first one is random. One iteration, on labeled images (x, y) and unlabeled images u:

      1. Labels: the class that theta predicts for the weak view of u, in evaluation mode.
      2. F-reg (Eq. 6, 7): a step of w on the labeled loss of phi after a plain gradient step on the weighted unlabeled
        images (`fine_gradient`).
      3. C-reg (Eq. 4, 5): a step of phi on the unlabeled images in a strong view, weighted by the new w. d is the fall
        of phi's labeled loss by this step.
      4. theta (Eq. 8 to 12): a step on the cross-entropy of labeled images, plus the mean over unlabeled ones of (m_i +
        d) times their cross-entropy in the strong view, where m_i is the factor that the new w gives to theta's
        prediction there.

    Each of the three has a fresh optimizer in every round. Weight decay applies to theta alone. Factors and d are
    constants: no gradient flows through them. For phi, labeled and unlabeled images are separate batches in training
    mode; for theta they are one, as in `core.semi_supervised`, with the same random streams and `consistency_weight`.
    Without `coarse`, theta takes the place of phi in step 2, and d is 0; without `fine`, the factors are 1 for labels
    that reach the threshold, else 0.

    At a client without labels w does not change and d is 0.

    Args:
      model: the model, which is not split.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `FedDure` as options.
      axis: the clients of a round.

    Returns:
      The method as pure functions. Its headline model is the averaged model.
    """
    parts, options = Parts(model, views, hparams), hparams.options
    server = core.build_server(model, views, hparams)
    local = core.build_local(partial(train_client, parts), hparams, axis, rates=rates)

    def init(key: Array) -> core.State:
        state = core.init_state(key, model, teacher=False)
        if not options.fine:
            return state
        classes = core.num_classes(model, state.student.top)

        def fine(client: Array) -> Fine:  # one for each client, leaves [N, ...]
            return init_fine(rng.fold(key, 'fine', client), classes, options.hidden)

        return state.replace(clients=jax.vmap(fine)(jnp.arange(hparams.num_clients)))

    round_ = core.server_then_clients(hparams, server, local)
    return core.Algorithm(init, round_, core.predict_by(model, views, 'student'), headline='student')


class Optimizers(NamedTuple):
    """The optimizers of a client, or their states."""

    student: Any
    coarse: Any
    fine: Any


class Training(NamedTuple):
    """The state that a client's iterations change."""

    student: core.SplitParams
    coarse: Any  # parameters phi of C-reg, () without it
    fine: Fine  # w of F-reg, () without it
    moments: Optimizers  # states of the optimizers


def train_client(
    parts: Parts, inputs: core.ClientInput, fine: Fine, state: core.State, federation: core.Federation, lr: Array
) -> core.ClientOutput:
    """Trains one client for a round.

    Args:
      parts: model, views and hyper-parameters.
      inputs: the client and its batches.
      fine: the client's w of F-reg, () without it.
      state: the state of the round.
      federation: the data.
      lr: [], the learning rate of the round.

    Returns:
      The client's model, its new w, means and counts.
    """
    hparams, options = parts.hparams, parts.options
    plain = dataclasses.replace(hparams, weight_decay=0.0)
    regulators = (core.optimizer(plain, rate * lr) for rate in (options.coarse_rate, options.fine_rate))
    optimizers = Optimizers(core.optimizer(hparams, lr), *regulators)

    def iteration(t: Array, training: Training) -> tuple[Training, core.Reported]:
        batch = core.read(federation, inputs, t)
        return step(parts, optimizers, training, batch, rng.fold(inputs.key, t), options.coarse_rate * lr)

    parameters = core.trainable(state.student)
    coarse = parameters if options.coarse else ()
    moments = Optimizers(*(o.init(w) for o, w in zip(optimizers, (parameters, coarse, fine), strict=True)))
    start = Training(state.student, coarse, fine, moments)
    training, means, counts = core.iterate(iteration, start, inputs.steps)
    return core.ClientOutput(training.student, training.fine, means, by_visit(counts, inputs.participations + 1))


def step(
    parts: Parts, optimizers: Optimizers, training: Training, batch: core.Batch, key: Array, rate: Array
) -> tuple[Training, core.Reported]:
    """Runs one iteration, as described in `feddure`, for `core.iterate`.

    Args:
      parts: model, views and hyper-parameters.
      optimizers: those of theta, phi and w.
      training: the state before the iteration.
      batch: labeled and unlabeled images.
      key: the key of the iteration.
      rate: [], the size of the virtual step.

    Returns:
      The state after the iteration, and its means and counts.
    """
    model, views, hparams = parts
    options, head = parts.options, hparams.labeled_rows
    received, coarse, fine, moments = training
    x, weak = objectives.both_views(views, head, batch, key)
    guesses, _ = core.forward(model, received, weak, None, False)
    labels, confident = core.assign_pseudo_labels(hparams, guesses, batch.labels)
    guessed, effect = core.guessed_rows(hparams, batch), jnp.zeros(())

    def logits(parameters: core.SplitParams, images: Array, name: str) -> Array:
        variables = core.with_parameters(received, parameters)
        return core.forward(model, variables, images, rng.fold(key, name), True)[0]

    def unlabeled_rows(parameters: core.SplitParams) -> tuple[Array, Array]:
        predicted = logits(parameters, x[head:], 'unlabeled_dropout')
        return losses.cross_entropy_rows(predicted, labels[head:]), jax.nn.softmax(predicted)

    def labeled(
        parameters: core.SplitParams,
    ) -> Array:  # 0 without labels, when the head of the batch is also unlabeled
        predicted = logits(parameters, x[:head], 'labeled_dropout')
        return losses.cross_entropy(predicted, batch.labels[:head], batch.labeled[:head].astype(jnp.float32))

    if head and (options.coarse or options.fine):
        before = coarse if options.coarse else core.trainable(received)
        unlabeled = differentiate(unlabeled_rows, before)
        factors = confident[head:].astype(jnp.float32)
        if options.fine:
            gradient = fine_gradient(fine, unlabeled, labeled, before, rate)
            fine, moment = descend(optimizers.fine, moments.fine, fine, gradient)
            moments, factors = moments._replace(fine=moment), weigh(fine, unlabeled.probabilities)
        if options.coarse:
            coarse, moment = descend(optimizers.coarse, moments.coarse, before, unlabeled.gradient(factors))
            moments, effect = moments._replace(coarse=moment), labeled(before) - labeled(coarse)

    def loss(parameters: core.SplitParams) -> core.LossValue:
        logits, updated = core.forward(
            model, core.with_parameters(received, parameters), x, rng.fold(key, 'dropout'), True
        )
        weight = confident.astype(jnp.float32)
        if options.fine:
            weight = jax.lax.stop_gradient(weigh(fine, jax.nn.softmax(logits)))
        rows = losses.cross_entropy_rows(logits, labels) * (weight + effect)
        consistency = losses.row_mean(rows, guessed.astype(jnp.float32))
        value, means = objectives.with_labels(hparams, consistency, logits, batch, jnp.float32(0))
        return value, (updated, means, count(labels, confident, batch.labels, guessed, weight))

    gradient, (student, means, counts) = jax.grad(loss, has_aux=True)(core.trainable(received))
    parameters, moment = descend(optimizers.student, moments.student, core.trainable(received), gradient)
    training = Training(core.with_parameters(student, parameters), coarse, fine, moments._replace(student=moment))
    return training, (means | ({'coarse_effect': effect} if options.coarse else {}), counts)


# --- the two regulators

# F-reg, the fine-grained regulator, is a small network f_w with parameters w. It gives every unlabeled image a factor
# in (0, 1), from the class probabilities that a model predicts for it. C-reg, the coarse-grained regulator, is a second
# model with parameters phi that learns from the pseudo-labels alone; the change d of its cross-entropy on labeled
# images says whether they helped. Equation numbers are those of the paper.


def differentiate(rows: Callable[[core.SplitParams], tuple[Array, Array]], parameters: core.SplitParams) -> Unlabeled:
    """Computes a model's predictions and gradient for the unlabeled images.

    Args:
      rows: parameters -> cross-entropies [R] of the images against their pseudo-labels, and probabilities [R, K].
      parameters: those of the model.

    Returns:
      The probabilities, and the gradient as a function of the images' factors.
    """
    values, pullback, probabilities = jax.vjp(rows, parameters, has_aux=True)
    return Unlabeled(probabilities, lambda factors: pullback((factors / values.size).astype(values.dtype))[0])


class Unlabeled(NamedTuple):
    """The R unlabeled images of a batch, as seen by a model that learns from their pseudo-labels."""

    probabilities: Array  # [R, K], its predictions
    # factors [R] -> mean over the images of factor times gradient of the cross-entropy; linear in the factors
    gradient: Callable[[Array], core.SplitParams]


Fine = Any  # w: {'hidden': {'kernel': [K, hidden], 'bias': [hidden]}, 'out': {'kernel': [hidden, 1], 'bias': [1]}}


def init_fine(key: Array, classes: int, hidden: int) -> Fine:
    """Initializes F-reg, a network K -> `hidden` -> 1, like PyTorch's linear layers.

    Args:
      key: the client's key.
      classes: K.
      hidden: width of the hidden layer.
    """
    w = {}
    for name, inputs, outputs in (('hidden', classes, hidden), ('out', hidden, 1)):
        uniform, layer_key = torch_uniform(inputs), rng.fold(key, name)
        w[name] = {
            'kernel': uniform(rng.fold(layer_key, 'kernel'), (inputs, outputs)),
            'bias': uniform(rng.fold(layer_key, 'bias'), (outputs,)),
        }
    return w


def weigh(w: Fine, probabilities: Array) -> Array:
    """Computes F-reg's factors of images.

    Args:
      w: F-reg's parameters.
      probabilities: the images' class probabilities [R, K].

    Returns:
      The factors [R], in (0, 1).
    """
    features = jax.nn.relu(probabilities @ w['hidden']['kernel'] + w['hidden']['bias'])
    return jax.nn.sigmoid(features @ w['out']['kernel'] + w['out']['bias'])[:, 0]


def fine_gradient(
    w: Fine,
    unlabeled: Unlabeled,
    labeled: Callable[[core.SplitParams], Array],
    parameters: core.SplitParams,
    rate: Array,
) -> Fine:
    """Computes the gradient of F-reg (Eq. 6, 7): of the labeled loss after a step on the weighted unlabeled images.

        phi-(w) = phi - rate mean_i H_i(w) grad CE_i(phi),    H_i(w) = f_w(probabilities_i)
        d CE(y, f(x; phi-(w))) / d w

    The gradient is exact, and needs no second derivatives: H_i is a factor and not differentiated in phi, so phi- is
    linear in the factors, and its derivative by H_i is -rate / R times the gradient of CE_i. Reverse-mode
    differentiation transposes that linear map, which takes about as long as the map.

    Args:
      w: F-reg's parameters.
      unlabeled: the unlabeled images, as seen by the model with `parameters`.
      labeled: parameters -> cross-entropy [] of the labeled images.
      parameters: phi.
      rate: [], the step size.

    Returns:
      The gradient, structured as `w`.
    """

    def loss(w: Fine) -> Array:
        gradient = unlabeled.gradient(weigh(w, unlabeled.probabilities))
        return labeled(jax.tree.map(lambda phi, g: phi - rate * g, parameters, gradient))

    return jax.grad(loss)(w)


def descend(tx: optax.GradientTransformation, moments: Any, parameters: Any, gradient: Any) -> tuple[Any, Any]:
    """Takes one step of an optimizer.

    Args:
      tx: the optimizer.
      moments: its state.
      parameters: where the step starts.
      gradient: the gradient there.

    Returns:
      The new parameters and the new state.
    """
    updates, moments = tx.update(gradient, moments, parameters)
    return optax.apply_updates(parameters, updates), moments


def count(labels: Array, confident: Array, truth: Array, guessed: Array, weight: Array) -> dict[str, Array]:
    """Counts pseudo-labels of a batch for `rates`: those of `count_pseudo_labels`, and right and wrong ones.

    Args:
      labels: the pseudo-labels [B].
      confident: whether they reach the threshold [B].
      truth: true labels [B]; negative: unknown.
      guessed: True for unlabeled rows [B].
      weight: factors of the rows [B].

    Returns:
      Counts [] by name. `right` and `wrong` cover unlabeled rows whose truth is known; `right_weight` and
      `wrong_weight` are sums of their factors.
    """
    right, wrong = (guessed & (truth >= 0) & hit for hit in (truth == labels, truth != labels))
    return core.count_pseudo_labels(labels, confident, truth, guessed) | {
        'right': jnp.sum(right),
        'wrong': jnp.sum(wrong),
        'right_weight': jnp.sum(weight * right),
        'wrong_weight': jnp.sum(weight * wrong),
    }


def by_visit(counts: dict[str, Array], visit: Array) -> dict[str, Array]:
    """Adds the counts of right and wrong pseudo-labels once more, under the group of the client's round in VISITS.

    Args:
      counts: the result of `count` for a client's round.
      visit: [], the number of that round, from 1.

    Returns:
      The counts, and those of each group; they are 0 in all groups but one.
    """
    group = jnp.sum(visit >= jnp.array(list(VISITS)))
    return counts | {
        f'{name}_visit_{first}': jnp.where(group == number, counts[name], 0)
        for number, first in enumerate(VISITS, start=1)
        for name in ('right', 'wrong', 'right_weight', 'wrong_weight')
    }


# Groups of a client's rounds, by the first one of each. Metrics report weights by group, since F-reg learns only in the
# rounds in which its client takes part.
VISITS = {1: '1', 2: '2 to 3', 4: '4 to 7', 8: '8 to 15', 16: '16 or more'}


def rates(counts: dict[str, Array]) -> core.Metrics:
    """Computes the metrics of a round from the results of `by_visit`, summed over batches and clients."""
    groups = '', *(f'_visit_{first}' for first in VISITS)
    return core.teacher.pseudo_label_rates(counts) | {
        f'weight_{kind}{group}': counts[f'{kind}_weight{group}'] / counts[f'{kind}{group}']  # NaN without labels
        for kind in ('right', 'wrong')
        for group in groups
    }


# --- the record


# fmt: off
@dataclasses.dataclass(frozen=True)
class FedDure:
    """The keys of `config.feddure`."""

    coarse: bool = option(True, help='C-reg: a second model learns from the pseudo-labels alone, and they count more '
        'the more it improves on the labeled images. False: "w/o C-reg", where F-reg is updated with the local model')
    fine: bool = option(True, help='F-reg: a small network at each client weights every pseudo-label. False: "w/o '
        'F-reg", where pseudo-labels that reach `threshold` count 1 and all others 0. Without both regulators, the '
        'method is FedAvg with FixMatch')
    hidden: int = option(128, at_least=1, idle={'feddure.fine': False}, help='width of the hidden layer of F-reg')
    coarse_rate: float = option(1.0, at_least=0, help="learning rate of C-reg, and of the virtual step in F-reg's "
        'gradient, as a multiple of `lr`; 0: C-reg does not change')
    fine_rate: float = option(1.0, at_least=0, idle={'feddure.fine': False}, help='learning rate of F-reg, as a '
        'multiple of `lr`')
# fmt: on


FIXMATCH = {'batch_size': 10 + 10, 'federation.mu': 1, 'threshold': 0.85}  # from the comparison in FedDure's paper


PROTOCOL = protocol(clients=100, active=5, rounds=200, lr=5e-4, momentum=0.9, batch_size=10, epochs=1) | {
    'data.labeled_split': 'balanced',
    'lr_rounds': 200,
    'k_s': 0,
    'optimizer': 'adam',
    'local.weighting': 'samples',
    'model.batch_norm_variance': 'unbiased',  # PyTorch's
    'augment.crop': 0.125,
}


def feddure_protocol(flat: Flat) -> dict[str, Any]:
    """Returns the protocol of the comparison in FedDure's paper (Bai et al., 2024), equal for all its methods.

    A Dirichlet partition draws over clients per class, as FedDure's code does. If labels would follow it, they get
    their own draw, as in the paper's (DIR, DIR). The paper pads labeled images with zeros, crops, flips and cuts out;
    here they use the weak view.
    """
    values = PROTOCOL | {'augment.flip': flat['data.name'] not in DIGITS}
    by_dirichlet = ('dirichlet', 'dirichlet_class')
    if flat['federation.partition'] in by_dirichlet:
        values |= {'federation.partition': 'dirichlet_class', 'federation.alpha': 0.5}
        if flat['federation.labeled_partition'] in ('same', *by_dirichlet):
            values['federation.labeled_partition'] = 'dirichlet_class'
    return values


def official(flat: Flat) -> dict[str, Any]:
    """Returns the settings of FedDure's paper (`feddure_protocol`), with the labels at the clients.

    We read one local iteration as one pass over a client's unlabeled images, in batches of 10 labeled and 10 unlabeled
    ones. Its authors' code has 9 unlabeled images per labeled one (`federation.mu=9`, `batch_size=100`); docs/ledger.md
    lists the other differences.
    """
    return feddure_protocol(flat) | FIXMATCH | {'data.client_labels': flat['data.num_labeled']}


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills one model down and one up: C-reg starts from the received model, and F-reg stays at the client.

    A client with labels also computes the regulators. In units of one image these are a forward pass and a gradient of
    C-reg's unlabeled rows; with F-reg two more forward passes for its gradient's transpose, and training with the
    labeled rows after the virtual step; with C-reg two forward passes of the labeled rows for d; with both a second
    gradient, by the new factors. F-reg itself is not counted.
    """
    h, work, cost = context.hparams, context.pieces.whole_work, costs.whole_model(context)
    coarse, fine = h.options.coarse, h.options.fine
    unlabeled = labeled = 0.0
    if coarse or fine:
        gradient = work.train - work.forward
        unlabeled = work.train + fine * 2 * work.forward + (coarse and fine) * gradient
        labeled = fine * work.train + coarse * 2 * work.forward
    rows = h.labeled_rows * labeled + (h.batch_size - h.labeled_rows) * unlabeled
    return cost._replace(step_work=cost.step_work + np.asarray(context.labels) * rows)


WITH_LABELS = {'data.client_labels': 20, 'federation.mu': 1}  # the regulators learn from labels at the clients
METHOD = Method(
    name='feddure',
    build=feddure,
    title='FedDure',
    source='Bai et al., Combating Data Imbalances in Federated Semi-supervised Learning with Dual Regulators, '
    'AAAI 2024',
    options=FedDure,
    uses=('pseudo-labels', 'local', 'steps', 'consistency', 'pre-rounds', 'sampling'),
    server='optional',
    by_images=True,
    official=official,
    price=price,
    metrics={
        'coarse_effect': 'with `feddure.coarse`: d, the fall of the labeled loss of C-reg by a step on '
        'pseudo-labels, on average',
        'weight_right': 'mean weight m of right pseudo-labels, whatever their confidence, where the truth is known',
        'weight_wrong': 'mean weight m of wrong pseudo-labels (each mean is `null` without such labels)',
        **{
            f'weight_{kind}_visit_{first}': f'`weight_{kind}` at clients in their round {rounds}'
            for first, rounds in VISITS.items()
            for kind in ('right', 'wrong')
        },
    },
    look=Look('#4422DD', 'd', '--'),
    ranges={
        'lr': ranges.LR,
        'consistency_weight': ranges.WEIGHT,
        # a decade to either side of 1, the rate of the model itself
        'feddure.coarse_rate': ranges.WEIGHT,
        'feddure.fine_rate': ranges.WEIGHT,
    },
    variants={
        '': WITH_LABELS,
        'no_coarse': {**WITH_LABELS, 'feddure.coarse': False},
        'no_fine': {**WITH_LABELS, 'feddure.fine': False},
    },
)
register(METHOD)
