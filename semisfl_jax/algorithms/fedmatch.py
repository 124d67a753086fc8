"""FedMatch (Jeong et al., ICLR 2021): disjoint learning of sigma + psi, inter-client consistency, agreement labels."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Flat, Look, Method, Parts, option, protocol, ranges, register
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import losses, rng, trees


def fedmatch(model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis) -> core.Algorithm:
    """Builds FedMatch. Parameters are theta = sigma + psi: `State.student` has sigma, `State.server` is psi.

    One round, labels at the server: K_s steps of sigma on lambda_s times the cross-entropy of f(sigma + psi), psi
    fixed; both go to the cohort; each client takes its steps of psi on L_u (`agreement_loss`), sigma fixed; the server
    averages psi. With labels at the clients, each of their iterations is a step of sigma on labeled images, then one of
    psi on unlabeled ones, and the server averages both, after K_s steps of its own if K_s is not 0.

    With `delta_threshold`, an entry that a client trains is sent only if it changed by more than that; otherwise the
    average, and the server's copy of the client's psi, use the value that the server had sent out. Downloads are always
    complete.

    In every `helper_every`-th round, a client that has participated before is sent the last psi of the H other clients
    whose models give the most similar predictions for one noise image. Combined with the sigma it has received, they
    are its helpers: only in that round, as in the authors' code, or with `helpers_persist` until it is sent new ones.
    If fewer than H other clients are known, only those help (the authors' search fails in that case).

    The headline model is sigma + psi, with entries of psi of magnitude up to `l1_threshold` set to zero. BatchNorm
    statistics, which the authors' model does not have, are updated by every training step and averaged.

    Args:
      model: the model, which is not split.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `FedMatch` as options.
      axis: the clients of a round.

    Returns:
      The method as pure functions.
    """
    parts, options = Parts(model, views, hparams), hparams.options

    def init(key: Array) -> core.State:
        state = core.init_state(key, model, teacher=False)
        psi = jax.tree.map(lambda w: options.psi_start * w, core.trainable(state.student))
        trained = ('sigma', 'psi') if hparams.labeled_rows else ('psi',)
        records = Record({name: core.init_clients(key, model, hparams) for name in trained})
        if options.helpers:  # the server has no psi of any client yet
            classes = core.num_classes(model, state.student.top)
            zeros = jax.tree.map(jnp.zeros_like, psi)
            sent = Sent(trees.replicate(zeros, options.helpers), jnp.zeros(options.helpers, bool))
            unknown = zeros, jnp.zeros(classes), jnp.array(False), sent if options.helpers_persist else ()
            records = Record(records.momentum, *trees.replicate(unknown, hparams.num_clients))
        return state.replace(server=psi, clients=records)

    def server(key: Array, state: core.State, *rest: Any) -> tuple[core.State, core.Metrics]:
        train = core.build_server(shifted(model, state.server), views, hparams, label_weight=options.lambda_s)
        return train(key, state, *rest)

    def clients(key: Array, *rest: Any) -> tuple[Any, Any, core.Metrics]:
        local = core.build_local(partial(train_client, parts, key), hparams, axis, partial(sent_out, parts))
        return local(key, *rest)

    def update(state: core.State, mean: dict[str, core.SplitParams], federation: core.Federation) -> core.State:
        student = core.with_parameters(mean['statistics'], mean.get('sigma', core.trainable(state.student)))
        return state.replace(student=student, server=mean['psi'])

    def predict(state: core.State, images: Array) -> dict[str, Array]:
        psi = jax.tree.map(lambda w: jnp.where(jnp.abs(w) > options.l1_threshold, w, 0.0), state.server)
        whole = core.with_parameters(state.student, total(core.trainable(state.student), psi))
        return {'student': core.predict(model, views, whole, images)}

    round_ = core.server_then_clients(hparams, server, clients, update)
    return core.Algorithm(init, round_, predict, headline='student')


# BatchNorm's running statistics belong to the sum: `statistics` are variables without parameters, which
# `with_parameters` fills in.
SigmaPsi = dict[str, core.SplitParams]  # the parameters 'sigma' and 'psi'


class Record(NamedTuple):
    """The values that a client keeps, and those that the server stores for it; `State.clients` has a leading [N].

    All fields but `momentum` are () if `fedmatch.helpers` is 0: every psi together take N times the model's memory.
    """

    momentum: dict[str, Any]  # optimizer state of each part that the client trains, () with fresh optimizers
    psi: Any = ()  # SplitParams, the client's last upload
    embedding: Any = ()  # [K], class probabilities that its model then assigned to the noise image
    known: Any = ()  # [] bool, whether it ever uploaded
    sent: Any = ()  # with `helpers_persist`, the helpers last sent to it: H times the memory of `psi`


class Sent(NamedTuple):
    """The helper models sent to a client."""

    psi: core.SplitParams  # leaves [H, ...]
    valid: Array  # [H] bool, False for rows without a known helper


def shifted(model: core.SplitModel, psi: core.SplitParams) -> core.SplitModel:
    """Returns `model` with `psi` added to all parameters that its functions receive, to train sigma with psi fixed.

    Args:
      model: the model.
      psi: the fixed part.
    """

    def plus(variables: core.Variables, shift: core.Variables) -> core.Variables:
        return {**variables, 'params': jax.tree.map(jnp.add, variables['params'], shift)}

    return model._replace(
        bottom=lambda variables, *arguments: model.bottom(plus(variables, psi.bottom), *arguments),
        top=lambda variables, *arguments: model.top(plus(variables, psi.top), *arguments),
    )


def train_client(
    parts: Parts,
    key: Array,
    inputs: core.ClientInput,
    record: Record,
    state: core.State,
    federation: core.Federation,
    lr: Array,
) -> core.ClientOutput:
    """Trains one client for a round, with or without helpers, and records what the server learns from the upload.

    Args:
      parts: model, views and hyper-parameters.
      key: the root key.
      inputs: the client and its batches.
      record: the client's record.
      state: the state of the round.
      federation: the data.
      lr: [], the learning rate of the round.

    Returns:
      The upload, the new record, means and counts.
    """
    options = parts.options
    train = partial(train_parts, parts, inputs, record, state, federation, lr)

    def choose() -> Sent:
        """Selects the psi of the H other clients whose predictions are most like this client's."""
        records = state.clients
        ids, valid = nearest(records.embedding, records.known, inputs.id, options.helpers)
        return Sent(trees.gather(records.psi, ids), valid)

    # The conditions depend only on the round, so that rounds without helpers skip the helpers' predictions.
    sent, due = (), (state.round + 1) % options.helper_every == 0
    if not options.helpers:
        both, batch_stats, momentum, means, counts = train(None)
    elif options.helpers_persist:
        sent = jax.lax.cond(due, choose, lambda: record.sent)
        helped = state.round + 1 >= options.helper_every
        both, batch_stats, momentum, means, counts = jax.lax.cond(helped, lambda: train(sent), lambda: train(None))
    else:
        both, batch_stats, momentum, means, counts = jax.lax.cond(due, lambda: train(choose()), lambda: train(None))
    uploaded, received = upload(parts, both, batch_stats), sent_out(parts, state)
    if core.nonzero(options.delta_threshold):
        for name, smallest in {'psi': options.l1_threshold, 'sigma': 0.0}.items():
            if name in uploaded:
                uploaded[name], means[f'{name}_sent'] = only_changes(
                    uploaded[name], received[name], options.delta_threshold, smallest
                )
    record = Record(momentum)
    if options.helpers:
        image = noise(rng.fold(key, 'noise'), federation.client_images.shape[1:])
        whole = core.with_parameters(batch_stats, total(uploaded.get('sigma', both['sigma']), uploaded['psi']))
        embedding = jax.nn.softmax(core.predict(parts.model, parts.views, whole, image[None])[0])
        record = Record(momentum, uploaded['psi'], embedding, jnp.array(True), sent)
    return core.ClientOutput(uploaded, record, means, counts)


def nearest(embeddings: Array, known: Array, client: Array, count: int) -> tuple[Array, Array]:
    """Finds the helpers of a client: the other known clients whose embeddings are nearest by Euclidean distance.

    Ties go to the lowest client number. The authors use a KD-tree for the same search.

    Args:
      embeddings: a row for each client [N, K]; rows of unknown clients are ignored.
      known: whether a client has reported before [N] bool.
      client: [], the client to help; an unknown one gets no helpers.
      count: H, the number of helpers.

    Returns:
      ids [H] int32, nearest first, and valid [H] bool: False where no known client is left.
    """
    distance = jnp.sum((embeddings - embeddings[client]) ** 2, axis=-1)
    other_clients = known & (jnp.arange(known.shape[0]) != client)
    near, ids = jax.lax.top_k(-jnp.where(other_clients, distance, jnp.inf), count)
    return ids.astype(jnp.int32), jnp.isfinite(near) & known[client]


def train_parts(
    parts: Parts,
    inputs: core.ClientInput,
    record: Record,
    state: core.State,
    federation: core.Federation,
    lr: Array,
    sent: Sent | None,
) -> tuple[SigmaPsi, core.SplitParams, dict[str, Any], dict[str, Array], dict[str, Array]]:
    """Runs a client's iterations, in each a step of sigma, if clients have labels, then one of psi.

    Args:
      parts: model, views and hyper-parameters.
      inputs: the client and its batches.
      record: the client's record.
      state: the state of the round.
      federation: the data.
      lr: [], the learning rate of the round.
      sent: the helpers sent to the client; None: no helpers.

    Returns:
      sigma and psi, statistics, optimizer states (() where they are fresh in every round), means over the iterations,
      sums of counts. Values that both losses report under one name are added.
    """
    sigma, batch_stats = core.trainable(state.student), core.statistics(state.student)
    has_labels = federation.labeled_size[inputs.id] > 0  # without any, sigma is unchanged
    tx = {'sigma': core.optimizer(parts.hparams, lr * has_labels), 'psi': core.optimizer(parts.hparams, lr)}
    helpers = sent and Helpers(total(sigma, sent.psi), batch_stats, sent.valid)
    terms: dict[str, Callable] = {'sigma': partial(label_loss, parts)} if parts.hparams.labeled_rows else {}
    terms['psi'] = partial(agreement_loss, parts, helpers)

    def iteration(t: Array, training: Any) -> tuple[Any, core.Reported]:
        both, batch_stats, momenta = training
        batch, key = core.read(federation, inputs, t), rng.fold(inputs.key, t)
        means: dict[str, Array] = {}
        counts: dict[str, Array] = {}
        for name, loss in terms.items():
            gradient, (batch_stats, *reported) = jax.grad(loss, has_aux=True)(both[name], both, batch_stats, batch, key)
            updates, momentum = tx[name].update(gradient, momenta[name], both[name])
            both = both | {name: optax.apply_updates(both[name], updates)}
            momenta = momenta | {name: momentum}
            for sums, new in zip((means, counts), reported, strict=True):
                sums |= {metric: sums.get(metric, 0) + value for metric, value in new.items()}
        return (both, batch_stats, momenta), (means, counts)

    both, recorded = {'sigma': sigma, 'psi': state.server}, record.momentum
    fresh = {name: not jax.tree.leaves(recorded[name]) for name in terms}
    momenta = {name: tx[name].init(both[name]) if fresh[name] else recorded[name] for name in terms}
    (both, batch_stats, momenta), means, counts = core.iterate(iteration, (both, batch_stats, momenta), inputs.steps)
    momenta = {name: recorded[name] if fresh[name] else momenta[name] for name in terms}
    means['helpers_used'] = jnp.sum(sent.valid, dtype=jnp.float32) if sent else jnp.zeros(())
    return both, batch_stats, momenta, means, counts


class Helpers(NamedTuple):
    """Models of other clients, which label together with the client's own model."""

    parameters: core.SplitParams  # leaves [H, ...], sigma + psi
    statistics: core.SplitParams  # shared by all helpers
    valid: Array  # [H] bool, False: ignored


def label_loss(
    parts: Parts, sigma: core.SplitParams, both: SigmaPsi, batch_stats: core.SplitParams, batch: core.Batch, key: Array
) -> core.LossValue:
    """Computes the loss of sigma at a client: lambda_s times the cross-entropy of the labeled images in a batch.

    Without a labeled image it is 0, and the statistics are unchanged.

    Args:
      parts: model, views and hyper-parameters.
      sigma: the part to differentiate.
      both: sigma and psi; only psi is read.
      batch_stats: statistics before the step.
      batch: labeled images first.
      key: the key of the iteration.

    Returns:
      The loss [], (statistics, means, counts).
    """
    head, views, scale = parts.hparams.labeled_rows, parts.views, parts.options.lambda_s
    x = views.normalize(views.supervised(rng.fold(key, 'supervised'), batch.images[:head]))
    logits, updated = _run(parts.model, total(sigma, both['psi']), batch_stats, x, rng.fold(key, 'sigma_dropout'))
    rows = losses.cross_entropy_rows(logits, batch.labels[:head])
    value = losses.row_mean(rows, batch.labeled[:head].astype(jnp.float32))
    updated = jax.tree.map(lambda new, old: jnp.where(jnp.any(batch.labeled), new, old), updated, batch_stats)
    return scale * value, (updated, {'loss_local': scale * value, 'loss_client_labels': value}, {})


def agreement_loss(
    parts: Parts,
    helpers: Helpers | None,
    psi: core.SplitParams,
    both: SigmaPsi,
    batch_stats: core.SplitParams,
    batch: core.Batch,
    key: Array,
) -> core.LossValue:
    """Computes the loss of psi at a client, FedMatch's L_u.

        lambda_a CE(label, f(strong u)) + lambda_i mean_j KL(p_j(u) || p(u))
        + lambda_l2 ||sigma - psi||^2 + lambda_l1 |psi|

    The first two terms are means over the unlabeled u whose p reaches the threshold, 0 without any, as in the authors'
    code. p is the client's own prediction for the unaugmented image, in evaluation mode, and the p_j are the helpers'
    predictions. The label is their majority vote, or p's class if there is no helper.

    Args:
      parts: model, views and hyper-parameters.
      helpers: the helpers' models; None: no helpers.
      psi: the part to differentiate.
      both: sigma and psi; only sigma is read.
      batch_stats: statistics before the step.
      batch: the images.
      key: the key of the iteration.

    Returns:
      The loss [], (statistics, means, counts).
    """
    model, views, hparams, options = *parts, parts.options
    theta, x = total(both['sigma'], psi), views.normalize(batch.images)
    logits, _ = _run(model, theta, batch_stats, x)
    labels, confident = core.assign_pseudo_labels(hparams, logits, batch.labels)
    divergence = jnp.zeros(labels.shape)
    if helpers is not None:
        helper_logits = jax.lax.map(lambda w: _run(model, w, helpers.statistics, x)[0], helpers.parameters)
        divergence = divergence_from_helpers(helper_logits, logits, helpers.valid)
        if hparams.pseudo_labels == 'method':  # other settings fix the labels, so there is no vote
            labels = vote(labels, jnp.argmax(helper_logits, axis=-1), helpers.valid, logits.shape[-1])
    strong = views.normalize(views.strong(rng.fold(key, 'strong'), batch.images))
    guessed = core.guessed_rows(hparams, batch)
    rows = guessed if hparams.labeled_rows else None
    logits, batch_stats = _run(model, theta, batch_stats, strong, rng.fold(key, 'psi_dropout'), rows)
    counted = (confident & guessed).astype(jnp.float32)
    agreed = losses.row_mean(losses.cross_entropy_rows(logits, labels), counted)
    inter_client = losses.row_mean(divergence, counted)
    unlabeled = options.lambda_a * agreed + options.lambda_i * inter_client
    value = unlabeled + options.lambda_l2 * trees.squared_distance(both['sigma'], psi)
    value = value + options.lambda_l1 * sum(jnp.sum(_size(leaf)) for leaf in jax.tree.leaves(psi))
    means = {'loss_local': value, 'loss_unlabeled': unlabeled}
    means |= {'loss_agreement': agreed, 'loss_inter_client': inter_client}
    return value, (batch_stats, means, core.count_pseudo_labels(labels, confident, batch.labels, guessed))


def vote(predicted: Array, votes: Array, valid: Array, classes: int) -> Array:
    """Returns agreement labels [B] int32: the class with the most votes; ties go to the lowest class.

    Args:
      predicted: the client's classes [B].
      votes: the helpers' classes [H, B].
      valid: whether a helper's votes count [H].
      classes: K.
    """
    by_helpers = jnp.tensordot(valid.astype(jnp.float32), jax.nn.one_hot(votes, classes), 1)
    return jnp.argmax(jax.nn.one_hot(predicted, classes) + by_helpers, axis=-1).astype(jnp.int32)


def divergence_from_helpers(helpers: Array, logits: Array, valid: Array) -> Array:
    """Computes inter-client consistency: the mean of KL(p_h || p) over the valid helpers, or 0 without any.

    Args:
      helpers: logits of the helpers [H, B, K]; no gradient flows through them.
      logits: logits of the client [B, K].
      valid: whether a helper counts [H].

    Returns:
      The divergence of every row [B], in nats.
    """
    target = jax.lax.stop_gradient(jax.nn.log_softmax(helpers))
    rows = jnp.sum(jnp.exp(target) * (target - jax.nn.log_softmax(logits)), axis=-1)  # [H, B]
    return jnp.sum(rows * valid[:, None], axis=0) / jnp.maximum(jnp.sum(valid), 1)


def total(sigma: core.SplitParams, psi: core.SplitParams) -> core.SplitParams:
    """Returns theta = sigma + psi. An extra leading axis of either one is broadcast."""
    return jax.tree.map(jnp.add, sigma, psi)


def _run(
    model: core.SplitModel,
    theta: core.SplitParams,
    batch_stats: core.SplitParams,
    x: Array,
    key: Array | None = None,
    rows: Array | None = None,
) -> tuple[Array, core.SplitParams]:
    """Returns logits [B, K] of normalized images, and the statistics.

    With a key the model is in training mode, and the statistics are those of `rows` [B] bool (None: all).
    """
    logits, variables = core.forward(model, core.with_parameters(batch_stats, theta), x, key, key is not None, rows)
    return logits, core.statistics(variables)


def _size(x: Array) -> Array:
    """Returns |x| with gradient 0 at 0, so that entries at 0, such as initial biases, stay there (`jnp.abs` has 1)."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def upload(parts: Parts, trained: SigmaPsi, batch_stats: core.SplitParams) -> dict[str, core.SplitParams]:
    """Returns the values that a client sends and the server averages.

    Args:
      parts: model, views and hyper-parameters.
      trained: sigma and psi.
      batch_stats: the statistics.

    Returns:
      psi and statistics; sigma as well if clients have labels.
    """
    sigma = {'sigma': trained['sigma']} if parts.hparams.labeled_rows else {}
    return sigma | {'psi': trained['psi'], 'statistics': batch_stats}


def sent_out(parts: Parts, state: core.State) -> dict[str, core.SplitParams]:
    """Returns what the server sends to the clients, structured as an upload."""
    return upload(parts, {'sigma': core.trainable(state.student), 'psi': state.server}, core.statistics(state.student))


def only_changes(
    trained: core.SplitParams, received: core.SplitParams, threshold: float, smallest: float = 0.0
) -> tuple[core.SplitParams, Array]:
    """Returns a part as it arrives at the server when a client sends only the entries that it changed.

    An entry is sent, unmodified, if it differs from the received one by more than `threshold`. An entry that is not
    sent keeps the received value.

    Args:
      trained: the part after the client's training.
      received: the part that the client received.
      threshold: the largest change that is not sent.
      smallest: for the comparison alone, trained entries of at most this magnitude count as 0.

    Returns:
      The part, and the share [] of its entries that were sent.
    """

    def differs(new: Array, old: Array) -> Array:
        return jnp.abs(jnp.where(jnp.abs(new) > smallest, new, 0.0) - old) > threshold

    changed = jax.tree.map(differs, trained, received)
    part = jax.tree.map(jnp.where, changed, trained, received)
    leaves = jax.tree.leaves(changed)
    return part, sum(jnp.sum(leaf) for leaf in leaves) / sum(leaf.size for leaf in leaves)


_MEAN, _DEVIATION, _HIGHEST = 125.0, 125.0, 255.0


def noise(key: Array, shape: tuple[int, ...]) -> Array:
    """Draws the image on which models are compared: uint8 pixels, Gaussian (mean 125, sd 125), truncated to 0 .. 255.

    Args:
      key: the key of the draw.
      shape: of the image, (H, W, C).
    """
    low, high = -_MEAN / _DEVIATION, (_HIGHEST - _MEAN) / _DEVIATION
    pixels = _MEAN + _DEVIATION * jax.random.truncated_normal(key, low, high, shape)
    return jnp.round(pixels).astype(jnp.uint8)


# --- the record


# fmt: off
@dataclasses.dataclass(frozen=True)
class FedMatch:
    """The keys of `config.fedmatch`. Parameters are sigma + psi: labels train sigma, unlabeled images train psi."""

    helpers: int = option(2, at_least=0, help="H, the number of other clients whose models help to label a client's "
        'images; the server then stores the psi of every client (num_clients times the memory of the model). 0: no '
        'helpers, and no such memory')
    helper_every: int = option(10, at_least=1, idle={'fedmatch.helpers': 0}, help='interval in rounds at which helpers '
        'are selected and sent')
    helpers_persist: bool = option(False, idle={'fedmatch.helpers': 0, 'fedmatch.helper_every': 1},
        help='True: clients keep their helpers until they are sent new ones (H times that memory in addition); False: '
        "helpers are used only in the round in which they are sent, as in the authors' code")
    lambda_s: float = option(1.0, at_least=0, help='weight of the cross-entropy of labeled images')
    lambda_a: float = option(1e-2, at_least=0, idle={'pseudo_labels': 'none'}, help='weight of the cross-entropy of '
        "agreement labels, as in the authors' code")
    lambda_i: float = option(1e-2, at_least=0, idle={'fedmatch.helpers': 0}, help='weight of the inter-client '
        "consistency, as in the authors' code")
    lambda_l2: float = option(0.05, at_least=0, help='weight of || sigma - psi ||^2. The authors use 10 with an '
        'effective step size (lr / (1 - momentum)) 200 times smaller; 0.05 pulls psi at the same rate. With 10, psi '
        'would follow all of the movement of sigma within one round, and overshoot')
    lambda_l1: float = option(1e-5, at_least=0, help='weight of | psi |')
    l1_threshold: float = option(1e-5, at_least=0, help='entries of psi of at most this magnitude count as 0 in '
        'evaluation')
    delta_threshold: float = option(0.0, at_least=0, help='entries that a client changed by at most this much are not '
        'sent, and the server averages its own value instead; in this comparison, entries of psi of at most '
        'l1_threshold count as 0. 0: all entries are sent')
    psi_start: float = option(0.2, at_least=0, help='psi before the first round, as a share of sigma')
# fmt: on


# What the settings of FedMatch's authors' code have wherever the labels are
OFFICIAL = protocol(clients=100, active=5, rounds=200, lr=1e-3, momentum=0.0, batch_size=100, epochs=1) | {
    'data.labeled_split': 'balanced',
    'lr_rounds': 200,
    'k_s_rule': 'fixed',
    'threshold': 0.85,
    'server_batch_size': 100,
    'augment.randaugment': 'fedmatch',
    'augment.operations': 6,
    'augment.cutout': 0,
    'augment.flip': False,  # without both, the weak view is the image itself
    'augment.crop': 0.0,
    'fedmatch.lambda_s': 10.0,
    'fedmatch.lambda_a': 1e-2,
    'fedmatch.lambda_i': 1e-2,
    'fedmatch.lambda_l2': 10.0,
    'fedmatch.lambda_l1': 1e-5,
    'fedmatch.l1_threshold': 1e-5,
    'fedmatch.delta_threshold': 1e-5,
}
OFFICIAL_AT_CLIENTS = OFFICIAL | {
    'batch_size': 110,
    'federation.mu': 10,
    'fedmatch.lambda_l1': 1e-4,
    'fedmatch.l1_threshold': 5e-6,
    'fedmatch.delta_threshold': 5e-5,
}


def official(flat: Flat) -> dict[str, Any]:
    """Returns the settings of FedMatch's authors' code, with the labels where the configuration puts them.

    Their weight decay is declared but never added; the threshold is the paper's (the code has 0.75). Labels at the
    server: one pass over them per round, in batches of 100. Labels at the clients: 10 per batch along with 100
    unlabeled images. In their code all labels are on one side; if the server keeps some here, it trains on them.

    Departures: they divide the learning rate by 3 when a validation loss has not improved for 5 or 20 evaluations; here
    no images are held out for that, so it is constant. One pass of a client is over its unlabeled images, in full
    batches. Images are normalized as in every method; theirs are divided by 255. docs/ledger.md lists each departure.
    """
    server_labels = flat['data.num_labeled'] - max(flat['data.client_labels'], 0)
    values = OFFICIAL_AT_CLIENTS if flat['data.client_labels'] > 0 else OFFICIAL
    return values | {'k_s': -(-server_labels // 100)}


def check(flat: Flat) -> None:
    """Raises UserError if there are fewer other clients than helpers."""
    helpers, clients = flat['fedmatch.helpers'], flat['federation.num_clients']
    if helpers >= clients:
        limit = f'the number of other clients (federation.num_clients={clients})'
        raise UserError(f'config.fedmatch.helpers={helpers} is more than {limit}; use at most {clients - 1}')


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills sigma + psi down, and psi up, with sigma where clients have labels; in helper rounds the helpers' psi down.

    The number of helpers is a mean over clients (`helpers_used`); before the round, the maximum. With `delta_threshold`
    only the entries sent are billed, averaged over the clients (`psi_sent`, `sigma_sent`); their indices are free, as
    in the authors' count. Downloads are billed in full. BatchNorm statistics, which the authors' model does not have,
    are included once in each direction.
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


METHOD = Method(
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
        'sigma_sent': 'the same share for sigma, where clients have labels',
    },
    look=Look('#CC79A7', 'D', ':'),
    ranges={
        'lr': ranges.LR,
        'threshold': ranges.THRESHOLD,
        # from a tenth of the code's 0.01 to the 1 that labels weigh
        'fedmatch.lambda_a': ranges.log(1e-3, 1.0),
        'fedmatch.lambda_i': ranges.log(1e-3, 1.0),
        # from where psi keeps what it learned from unlabeled images to ten times the default
        'fedmatch.lambda_l2': ranges.log(1e-4, 0.5),
    },
)
register(METHOD)
