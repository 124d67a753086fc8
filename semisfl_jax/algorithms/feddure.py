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

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import DIGITS, Flat, Look, Method, Parts, protocol
from semisfl_jax.algorithms.ranges import LR, WEIGHT
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core import losses, objectives, rng
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.keys import key as option
from semisfl_jax.core.state import num_classes, trainable, with_parameters
from semisfl_jax.core.teacher import assign_pseudo_labels, count_pseudo_labels, pseudo_label_rates
from semisfl_jax.core.types import (
    Algorithm,
    Array,
    ClientAxis,
    Federation,
    LossValue,
    Metrics,
    Reported,
    SplitParams,
    Views,
)
from semisfl_jax.models import SplitModel
from semisfl_jax.models.layers import torch_uniform


@dataclasses.dataclass(frozen=True)
class FedDure:
    """`config.feddure`."""

    coarse: bool = option(
        True,
        'C-reg: a second model learns from the pseudo-labels alone, and they count more the more it improves on the '
        'labeled images. False: "w/o C-reg", where F-reg is updated with the local model',
    )
    fine: bool = option(
        True,
        'F-reg: a small network, kept by each client, weights every pseudo-label. False: "w/o F-reg", where those that '
        'reach `threshold` count 1 and the others 0. With neither, the method is FedAvg with FixMatch',
    )
    hidden: int = option(128, 'width of the hidden layer of F-reg', at_least=1, idle={'feddure.fine': False})
    coarse_rate: float = option(
        1.0,
        "learning rate of C-reg, and of the virtual step in F-reg's gradient, as a multiple of `lr`; 0: C-reg stands "
        'still',
        at_least=0,
    )
    fine_rate: float = option(1.0, 'likewise of F-reg', at_least=0, idle={'feddure.fine': False})


# --- the two regulators, which decide how much unlabeled images count at a client

# F-reg, the fine-grained one, is a small network f_w with parameters w that gives every unlabeled image a factor in
# (0, 1), from the class probabilities that a model predicts for it. C-reg, the coarse-grained one, is a second model
# with parameters phi that learns from the pseudo-labels alone; the change d of its cross-entropy on labeled images
# says whether they helped. Equation numbers are those of the paper.

# The rounds of a client, by the first of each group, in which weights are told apart: F-reg learns in them alone
VISITS = {1: '1', 2: '2 to 3', 4: '4 to 7', 8: '8 to 15', 16: '16 or more'}
Fine = Any  # w: {'hidden': {'kernel': [K, hidden], 'bias': [hidden]}, 'out': {'kernel': [hidden, 1], 'bias': [1]}}


class Unlabeled(NamedTuple):
    """The unlabeled images of a batch, R of them, as seen by a model that learns from their pseudo-labels."""

    probabilities: Array  # [R, K], its predictions
    # factors [R] -> mean over the images of factor times gradient of the cross-entropy; linear in the factors
    gradient: Callable[[Array], SplitParams]


def init_fine(key: Array, classes: int, hidden: int) -> Fine:
    """F-reg before the first round, a network K -> `hidden` -> 1, initialized like PyTorch's linear layers."""
    w = {}
    for name, inputs, outputs in (('hidden', classes, hidden), ('out', hidden, 1)):
        uniform, layer_key = torch_uniform(inputs), rng.fold(key, name)
        w[name] = {
            'kernel': uniform(rng.fold(layer_key, 'kernel'), (inputs, outputs)),
            'bias': uniform(rng.fold(layer_key, 'bias'), (outputs,)),
        }
    return w


def weigh(w: Fine, probabilities: Array) -> Array:
    """F-reg's factors [R] of images with these class probabilities [R, K]."""
    features = jax.nn.relu(probabilities @ w['hidden']['kernel'] + w['hidden']['bias'])
    return jax.nn.sigmoid(features @ w['out']['kernel'] + w['out']['bias'])[:, 0]


def differentiate(rows: Callable[[SplitParams], tuple[Array, Array]], parameters: SplitParams) -> Unlabeled:
    """The predictions and the gradient of a model with these parameters for the unlabeled images.

    `rows` maps parameters to the images' cross-entropies [R] against their pseudo-labels, and probabilities [R, K].
    """
    values, pullback, probabilities = jax.vjp(rows, parameters, has_aux=True)
    return Unlabeled(probabilities, lambda factors: pullback((factors / values.size).astype(values.dtype))[0])


def fine_gradient(
    w: Fine, unlabeled: Unlabeled, labeled: Callable[[SplitParams], Array], parameters: SplitParams, rate: Array
) -> Fine:
    """The gradient of F-reg (Eq. 6, 7): of the labeled images' loss after a step on the weighted unlabeled ones.

        phi-(w) = phi - rate mean_i H_i(w) grad CE_i(phi),    H_i(w) = f_w(probabilities_i)
        d CE(y, f(x; phi-(w))) / d w

    Exact, and without second derivatives: H_i is a factor and not differentiated in phi, so phi- is linear in the
    factors, and its derivative by H_i is -rate / R times the gradient of CE_i. Reverse-mode differentiation transposes
    that linear map, which takes about as long as the map. `parameters` is phi, `rate` [] the step size, and `labeled`
    maps parameters to the cross-entropy [] of the labeled images.
    """

    def loss(w: Fine) -> Array:
        gradient = unlabeled.gradient(weigh(w, unlabeled.probabilities))
        return labeled(jax.tree.map(lambda phi, g: phi - rate * g, parameters, gradient))

    return jax.grad(loss)(w)


def count(labels: Array, confident: Array, truth: Array, guessed: Array, weight: Array) -> dict[str, Array]:
    """Counts [] of a batch [B], for `rates`: those of `count_pseudo_labels`, and of right and wrong pseudo-labels.

    `right` and `wrong` are of unlabeled rows (`guessed`) whose truth is known, not negative; `right_weight` and
    `wrong_weight` are sums of their factors, `weight`.
    """
    right, wrong = (guessed & (truth >= 0) & hit for hit in (truth == labels, truth != labels))
    return count_pseudo_labels(labels, confident, truth, guessed) | {
        'right': jnp.sum(right),
        'wrong': jnp.sum(wrong),
        'right_weight': jnp.sum(weight * right),
        'wrong_weight': jnp.sum(weight * wrong),
    }


def by_visit(counts: dict[str, Array], visit: Array) -> dict[str, Array]:
    """`counts` of a client in its round number `visit` [], from 1, with those of its weights also under its group of
    VISITS; those under the other groups are 0."""
    group = jnp.sum(visit >= jnp.array(list(VISITS)))
    return counts | {
        f'{name}_visit_{first}': jnp.where(group == number, counts[name], 0)
        for number, first in enumerate(VISITS, start=1)
        for name in ('right', 'wrong', 'right_weight', 'wrong_weight')
    }


def rates(counts: dict[str, Array]) -> Metrics:
    """The metrics of a round from the results of `by_visit`, summed over batches and clients."""
    groups = '', *(f'_visit_{first}' for first in VISITS)
    return pseudo_label_rates(counts) | {
        f'weight_{kind}{group}': counts[f'{kind}_weight{group}'] / counts[f'{kind}{group}']  # NaN: of none
        for kind in ('right', 'wrong')
        for group in groups
    }


# --- the method


class Optimizers(NamedTuple):
    """The optimizers of a client, or their states."""

    student: Any
    coarse: Any
    fine: Any


class Training(NamedTuple):
    """What a client's iterations change."""

    student: SplitParams
    coarse: Any  # parameters phi of C-reg, () without it
    fine: Fine  # w of F-reg, () without it
    moments: Optimizers  # states of the optimizers


def feddure(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds FedDure.

    One round: K_s steps of cross-entropy at the server, if it has labels (an addition to the method: K_s is 0 in its
    paper); the model theta goes to the cohort; each client trains it, and the server averages the results. A client
    starts with theta and, for C-reg, phi equal to the received model, and with the w of F-reg that it kept from its
    last round, at first a random one. One iteration, on labeled images (x, y) and unlabeled images u:

      1. Labels: the class that theta predicts for the weak view of u, in evaluation mode.
      2. F-reg (Eq. 6, 7): a step of w on the labeled loss of phi after a plain gradient step on the weighted unlabeled
         images (`fine_gradient`).
      3. C-reg (Eq. 4, 5): a step of phi on the unlabeled images in a strong view, weighted by the new w. d is the
         labeled loss of phi before it minus the one after it.
      4. theta (Eq. 8 to 12): a step on the cross-entropy of labeled images, plus the mean over unlabeled ones of
         (m_i + d) times their cross-entropy in the strong view, where m_i is the factor by the new w for what theta
         predicts there.

    Each of the three has a fresh optimizer in every round. Weight decay applies to theta alone. Factors and d are
    numbers: nothing is differentiated through them. For phi, labeled and unlabeled images are separate batches in
    training mode; for theta they are one, as in `core.semi_supervised`, whose random streams and
    `consistency_weight` this shares. Without `coarse`, theta takes the place of phi in step 2, and d is 0; without
    `fine`, the factors are 1 for labels that reach the threshold, else 0.

    At a client without labels w does not change and d is 0. The headline model is the averaged model. Arguments as in
    `semisfl`; the model is not split.
    """
    parts, options = Parts(model, views, hparams), hparams.options
    server = core.build_server(model, views, hparams)
    local = core.build_local(partial(train_client, parts), hparams, axis, rates=rates)

    def init(key: Array) -> core.State:
        state = core.init_state(key, model, teacher=False)
        if not options.fine:
            return state
        classes = num_classes(model, state.student.top)

        def fine(client: Array) -> Fine:  # every client has one of its own, leaves [N, ...]
            return init_fine(rng.fold(key, 'fine', client), classes, options.hidden)

        return state.replace(clients=jax.vmap(fine)(jnp.arange(hparams.num_clients)))

    round_ = core.server_then_clients(hparams, server, local)
    return Algorithm(init, round_, core.predict_by(model, views, 'student'), headline='student')


def train_client(
    parts: Parts, inputs: core.ClientInput, fine: Fine, state: core.State, federation: Federation, lr: Array
) -> core.ClientOutput:
    """One client's round."""
    hparams, options = parts.hparams, parts.options
    plain = dataclasses.replace(hparams, weight_decay=0.0)
    optimizers = Optimizers(
        optimizer(hparams, lr), optimizer(plain, options.coarse_rate * lr), optimizer(plain, options.fine_rate * lr)
    )

    def iteration(t: Array, training: Training) -> tuple[Training, Reported]:
        batch = core.read(federation, inputs, t)
        return step(parts, optimizers, training, batch, rng.fold(inputs.key, t), options.coarse_rate * lr)

    parameters = trainable(state.student)
    coarse = parameters if options.coarse else ()
    moments = Optimizers(*(o.init(w) for o, w in zip(optimizers, (parameters, coarse, fine), strict=True)))
    start = Training(state.student, coarse, fine, moments)
    training, means, counts = core.iterate(iteration, start, inputs.steps)
    return core.ClientOutput(training.student, training.fine, means, by_visit(counts, inputs.visits + 1))


def step(
    parts: Parts, optimizers: Optimizers, training: Training, batch: core.Batch, key: Array, rate: Array
) -> tuple[Training, Reported]:
    """One iteration, as in `feddure`, for `core.iterate`; `rate` [] is the size of the virtual step."""
    model, views, hparams = parts
    options, head = parts.options, hparams.labeled_rows
    received, coarse, fine, moments = training
    x, weak = objectives.both_views(views, head, batch, key)
    guesses, _ = core.forward(model, received, weak, None, False)
    labels, confident = assign_pseudo_labels(hparams, guesses, batch.labels)
    guessed, effect = core.guessed_rows(hparams, batch), jnp.zeros(())

    def logits(parameters: SplitParams, images: Array, name: str) -> Array:
        variables = with_parameters(received, parameters)
        return core.forward(model, variables, images, rng.fold(key, name), True)[0]

    def unlabeled_rows(parameters: SplitParams) -> tuple[Array, Array]:
        predicted = logits(parameters, x[head:], 'unlabeled_dropout')
        return losses.cross_entropy_rows(predicted, labels[head:]), jax.nn.softmax(predicted)

    def labeled(parameters: SplitParams) -> Array:  # 0 without labels: the rows are then unlabeled ones
        predicted = logits(parameters, x[:head], 'labeled_dropout')
        return losses.cross_entropy(predicted, batch.labels[:head], batch.labeled[:head].astype(jnp.float32))

    if head and (options.coarse or options.fine):
        before = coarse if options.coarse else trainable(received)
        unlabeled = differentiate(unlabeled_rows, before)
        factors = confident[head:].astype(jnp.float32)
        if options.fine:
            gradient = fine_gradient(fine, unlabeled, labeled, before, rate)
            fine, moment = descend(optimizers.fine, moments.fine, fine, gradient)
            moments, factors = moments._replace(fine=moment), weigh(fine, unlabeled.probabilities)
        if options.coarse:
            coarse, moment = descend(optimizers.coarse, moments.coarse, before, unlabeled.gradient(factors))
            moments, effect = moments._replace(coarse=moment), labeled(before) - labeled(coarse)

    def loss(parameters: SplitParams) -> LossValue:
        logits, updated = core.forward(model, with_parameters(received, parameters), x, rng.fold(key, 'dropout'), True)
        weight = confident.astype(jnp.float32)
        if options.fine:
            weight = jax.lax.stop_gradient(weigh(fine, jax.nn.softmax(logits)))
        rows = losses.cross_entropy_rows(logits, labels) * (weight + effect)
        consistency = losses.row_mean(rows, guessed.astype(jnp.float32))
        value, means = objectives.with_labels(hparams, consistency, logits, batch, jnp.float32(0))
        return value, (updated, means, count(labels, confident, batch.labels, guessed, weight))

    gradient, (student, means, counts) = jax.grad(loss, has_aux=True)(trainable(received))
    parameters, moment = descend(optimizers.student, moments.student, trainable(received), gradient)
    training = Training(with_parameters(student, parameters), coarse, fine, moments._replace(student=moment))
    return training, (means | ({'coarse_effect': effect} if options.coarse else {}), counts)


def descend(tx: optax.GradientTransformation, moments: Any, parameters: Any, gradient: Any) -> tuple[Any, Any]:
    """Parameters and optimizer state after one step of `tx` along `gradient`."""
    updates, moments = tx.update(gradient, moments, parameters)
    return optax.apply_updates(parameters, updates), moments


FIXMATCH = {'batch_size': 10 + 10, 'federation.mu': 1, 'threshold': 0.85}  # in the comparison of FedDure's paper


def of_feddure(flat: Flat) -> dict[str, Any]:
    """The protocol of the comparison of FedDure's paper (Bai et al., 2024), equal for all its methods.

    A Dirichlet partition draws over clients per class, as FedDure's code does; labels that would follow it have a draw
    of their own, as in the paper's (DIR, DIR). Its labeled images are zero-padded and cropped, flipped, and cut out;
    here they use the weak view.
    """
    values = protocol(clients=100, active=5, rounds=200, lr=5e-4, momentum=0.9, batch_size=10, epochs=1) | {
        'data.labeled_split': 'balanced',
        'lr_rounds': 200,
        'k_s': 0,
        'optimizer': 'adam',
        'local.weighting': 'samples',
        'model.batch_norm_variance': 'unbiased',  # PyTorch's
        'augment.flip': flat['data.name'] not in DIGITS,
        'augment.crop': 0.125,
    }
    by_dirichlet = ('dirichlet', 'dirichlet_class')
    if flat['federation.partition'] in by_dirichlet:
        values |= {'federation.partition': 'dirichlet_class', 'federation.alpha': 0.5}
        if flat['federation.labeled_partition'] in ('same', *by_dirichlet):
            values['federation.labeled_partition'] = 'dirichlet_class'
    return values


def official(flat: Flat) -> dict[str, Any]:
    """FedDure as in its paper (`of_feddure`), with the labels at the clients.

    One local iteration is read as one pass over a client's unlabeled images, in batches of 10 labeled and 10 unlabeled
    ones. Its authors' code has 9 unlabeled images per labeled one (`federation.mu=9`, `batch_size=100`);
    docs/ledger.md lists what else differs.
    """
    return of_feddure(flat) | FIXMATCH | {'data.client_labels': flat['data.num_labeled']}


def price(context: costs.CostContext) -> costs.ClientCost:
    """One model down, one up: C-reg starts from the received model, and F-reg stays at the client.

    A client with labels also computes the regulators, in units of one image: a forward pass and a gradient of C-reg's
    unlabeled rows; with F-reg two more forward passes for its gradient's transpose, and training with the labeled rows
    after the virtual step; with C-reg two forward passes of these for d; with both a second gradient, by the new
    factors. F-reg itself is not counted.
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


WITH_LABELS = {'data.client_labels': 20, 'federation.mu': 1}  # without them, there is nothing to regulate by
METHOD = register(
    Method(
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
            'weight_wrong': 'likewise of wrong ones (each is `null` where there are none)',
            **{
                f'weight_{kind}_visit_{first}': f'`weight_{kind}` at clients in their round {rounds}'
                for first, rounds in VISITS.items()
                for kind in ('right', 'wrong')
            },
        },
        look=Look('#4422DD', 'd', '--'),
        ranges={
            'lr': LR,
            'consistency_weight': WEIGHT,
            # a decade to either side of 1, the rate of the model itself
            'feddure.coarse_rate': WEIGHT,
            'feddure.fine_rate': WEIGHT,
        },
        variants={
            '': WITH_LABELS,
            'no_coarse': {**WITH_LABELS, 'feddure.coarse': False},
            'no_fine': {**WITH_LABELS, 'feddure.fine': False},
        },
    )
)
