"""SemiFL (Diao et al., NeurIPS 2022): server and clients alternate; pseudo-labels are fixed per round; mixup."""

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
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import losses, rng, sampling
from semisfl_jax.models.layers import MOMENTUM


def semifl(model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis) -> core.Algorithm:
    """Builds SemiFL.

    One round: K_s steps of cross-entropy at the server, whose model goes to the cohort. Each client labels all its
    images once, in a weak view, with the model it received. FIX is the set of images whose label reaches the threshold,
    MIX an equal number of draws from all images, labeled regardless of confidence; without a confident image the client
    sits out. It trains on strong views of FIX and on mixtures of weak views of FIX and MIX, for K_u iterations, but
    only until a full batch completes `semifl.max_passes` over FIX, in one endless sequence over both sets. With
    `local.epochs` it makes that many passes, like the loaders of the authors' code: the last batch of each may be
    short, and MIX is redrawn at every access. The server's passes over its labels then end the same way. The server
    moves to the average of the models by a step of SGD, with momentum across rounds (`semifl.global_momentum`).

    BatchNorm's statistics are recomputed whenever a model is about to label or to be evaluated, and never otherwise.
    With `semifl.order` 'clients_first', as in the authors' code, the clients start from the model of the previous
    round, and the server trains on their average. With 'server_first' the server trains first, and the round ends with
    the average. The headline model is the one at the end of the round; if that is the average, the model after the
    server's steps is also evaluated. With `local.optimizer_state` 'kept', as in the authors' code, clients and server
    continue with their optimizer states.

    Args:
      model: the model, which is not split.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `SemiFL` as options.
      axis: the clients of a round.

    Returns:
      The method as pure functions.
    """
    options = hparams.options
    hparams = dataclasses.replace(hparams, clip_norm=options.clip_norm, short_batches=hparams.local.epochs > 0)
    server_first, global_step = options.order == 'server_first', optax.sgd(1.0, momentum=options.global_momentum)
    server = core.build_server(model, views, hparams)
    statistics = build_statistics(model, views, options.batch_norm_data, options.pass_batch_size)
    local = core.build_local(partial(train_client, Parts(model, views, hparams)), hparams, axis, reads='sets')

    def init(key: Array) -> core.State:
        clients = core.init_clients(key, model, hparams)
        state = core.init_state(key, model, teacher=False, clients=clients)
        start = core.trainable(state.student)
        if hparams.local.optimizer_state == 'kept':
            state = state.replace(opt_state=core.optimizer(hparams, jnp.float32(hparams.lr)).init(start))
        trained = jax.tree.map(jnp.copy, state.student) if server_first else ()
        return state.replace(server=AtServer(global_step.init(start), trained))

    def round_(
        key: Array, state: core.State, federation: core.Federation, cohort: core.Cohort, k_s: Array
    ) -> tuple[core.State, core.Metrics]:
        lr = core.learning_rate(hparams, state.round)

        def refresh(state: core.State) -> core.State:
            return state.replace(student=statistics(key, state.student, federation))

        def clients(state: core.State) -> tuple[core.State, core.Metrics]:
            average, client_states, metrics = local(key, state, federation, cohort, lr)

            def step() -> tuple[core.SplitParams, Any]:
                start = core.trainable(state.student)
                gradient = jax.tree.map(jnp.subtract, start, core.trainable(average))
                updates, momentum = global_step.update(gradient, state.server.momentum)
                student = core.with_parameters(state.student, optax.apply_updates(start, updates))
                return statistics(key, student, federation) if server_first else student, momentum

            any_trained = metrics['clients_sitting_out'] < 1  # False in pre-rounds, whose metric is NaN
            student, momentum = jax.lax.cond(any_trained, step, lambda: (state.student, state.server.momentum))
            at_server = state.server._replace(momentum=momentum)
            return state.replace(student=student, server=at_server, clients=client_states), metrics

        if server_first:
            state, metrics = server(key, state, federation, k_s, lr)
            state = refresh(state)
            state = state.replace(server=state.server._replace(trained=state.student))
            state, client_metrics = clients(state)
        else:
            if not hparams.pre_rounds:  # rounds after the first have statistics from the previous evaluation
                state = jax.lax.cond(state.round == 0, refresh, lambda same: same, state)
            state, client_metrics = clients(state)
            state, metrics = server(key, state, federation, k_s, lr)
            state = refresh(state)
        return state.replace(round=state.round + 1), {'lr': lr, **metrics, **client_metrics}

    def predict(state: core.State, images: Array) -> dict[str, Array]:
        predictions = {'student': core.predict(model, views, state.student, images)}
        if server_first:  # the student is then the average
            predictions['after_server'] = core.predict(model, views, state.server.trained, images)
        return predictions

    return core.Algorithm(init, round_, predict, headline='student')


class AtServer(NamedTuple):
    """The value of `State.server`."""

    momentum: Any  # state of the SGD steps toward the clients' average
    trained: core.SplitParams | tuple[()]  # with 'server_first', the model after the server's steps of this round


# --- static BatchNorm: statistics are recomputed over a data set before a model is evaluated or sent out; training uses
# only those of each batch


def build_statistics(
    model: core.SplitModel, views: core.Views, source: str, batch_size: int
) -> Callable[[Array, core.SplitParams, core.Federation], core.SplitParams]:
    """Builds the function that recomputes statistics from unaugmented images.

    It reads them in one fixed random order. Images from the sequence's next epoch, which repeat earlier ones, fill the
    last batch.

    Args:
      model: the model, cut into bottom and top.
      views: for the normalization.
      source: 'all': the labeled images of the server and the unlabeled ones of all clients, which must be on the
        device; 'server': only the server's.
      batch_size: images in a batch.

    Returns:
      A function (root key, variables, federation) -> variables with new statistics.
    """

    def run(key: Array, variables: core.SplitParams, federation: core.Federation) -> core.SplitParams:
        labeled, batch = federation.server_index.shape[0], batch_size
        if source == 'server':
            count, batch = jnp.int32(labeled), min(batch, labeled)
        else:
            count = labeled + jnp.sum(federation.size)
        key = rng.fold(key, 'batch_norm')
        seed_bits = jax.random.bits(rng.fold(key, 'order'))

        def images(t: Array) -> Array:
            positions = sampling.read(seed_bits, t * batch + jnp.arange(batch), count)
            pixels = federation.server_images[federation.server_index[jnp.minimum(positions, labeled - 1)]]
            if source == 'all':
                rows = sampling.row_of_all(federation, jnp.maximum(positions - labeled, 0))
                pixels = jnp.where((positions < labeled)[:, None, None, None], pixels, federation.client_images[rows])
            return views.normalize(pixels)

        return recompute_statistics(model, variables, images, -(-count // batch), key)

    return run


def recompute_statistics(
    model: core.SplitModel,
    variables: core.SplitParams,
    images: Callable[[Array], Array],
    count: Array | int,
    key: Array,
) -> core.SplitParams:
    """Replaces the BatchNorm statistics of bottom and top by their means over batches.

    This is the cumulative average of PyTorch's BatchNorm with momentum None, in training mode: each batch is normalized
    by its own statistics, so the old running ones have no effect.

    Args:
      model: the model, cut into bottom and top.
      variables: its variables.
      images: t [] int32 -> batch t, normalized floats [B, H, W, C].
      count: [], the number of batches.
      key: for dropout that precedes a BatchNorm.

    Returns:
      The variables with the new statistics.
    """
    pieces = variables.bottom, variables.top
    old = tuple(piece.get('batch_stats', {}) for piece in pieces)
    if not jax.tree.leaves(old):
        return variables
    zero = jax.tree.map(jnp.zeros_like, old)
    bottom, top = ({**piece, 'batch_stats': stats} for piece, stats in zip(pieces, zero, strict=True))

    def one(t: Array, total: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        features, moved_bottom = model.bottom(bottom, images(t), rng.fold(key, 'bottom', t), True)
        _, moved_top = model.top(top, features, rng.fold(key, 'top', t), True)
        moved = tuple(piece.get('batch_stats', {}) for piece in (moved_bottom, moved_top))
        return jax.tree.map(jnp.add, total, moved)

    total = jax.lax.fori_loop(0, count, one, zero)
    # Starting from zero, one update yields this share of the batch's statistics.
    mean = jax.tree.map(lambda x: x / ((1 - MOMENTUM) * count), total)
    bottom, top = (
        {**piece, 'batch_stats': stats} if stats else piece for piece, stats in zip(pieces, mean, strict=True)
    )
    return variables._replace(bottom=bottom, top=top)


# --- a client's round


def train_client(
    parts: Parts, inputs: core.ClientInput, client_state: Any, state: core.State, federation: core.Federation, lr: Array
) -> core.ClientOutput:
    """Trains one client for a round: labels its images, draws its sets, trains on them unless no image is confident.

    Args:
      parts: model, views and hyper-parameters.
      inputs: the client and the rows of its images [S].
      client_state: the optimizer state, () if it is fresh in every round.
      state: the state of the round.
      federation: the data.
      lr: [], the learning rate of the round.

    Returns:
      The client's model and optimizer state, means and counts, and whether it took part.
    """
    model, views, hparams = parts
    options, epochs, rows = parts.options, hparams.local.epochs, hparams.batch_size
    size, steps = federation.size[inputs.id], inputs.steps
    labels, confident = label_images(parts, inputs, state.student, federation)
    sets = draw_sets(rng.fold(inputs.key, 'sets'), confident, size)
    if epochs:
        steps = epochs * -(-sets.num_confident // rows)
    elif options.max_passes:
        steps = jnp.minimum(steps, -(-options.max_passes * sets.num_confident // rows))

    def loss(parameters: core.SplitParams, student: core.SplitParams, _: Any, t: Array) -> core.LossValue:
        """Computes the loss on strong views of FIX, and on mixtures of weak views of FIX and MIX."""
        key, valid = rng.fold(inputs.key, t), None
        if epochs:
            fix, mix, valid = pair_in_epochs(inputs.key, sets, size, t, rows)
        else:
            fix, mix = pair(inputs.key, sets, t * rows + jnp.arange(rows))
        weight = jnp.ones(fix.shape) if valid is None else valid.astype(jnp.float32)
        fix_images, mix_images = (federation.client_images[inputs.rows[positions]] for positions in (fix, mix))
        strong = views.normalize(views.strong(rng.fold(key, 'strong'), fix_images))
        weak_fix = views.normalize(views.weak(rng.fold(key, 'weak'), fix_images))
        weak_mix = views.normalize(views.weak(rng.fold(key, 'other'), mix_images))
        share = jax.random.beta(rng.fold(key, 'share'), options.mixup_alpha, options.mixup_alpha)
        variables, mixed = core.with_parameters(student, parameters), share * weak_fix + (1 - share) * weak_mix
        logits, variables = core.forward(model, variables, strong, rng.fold(key, 'dropout'), True, valid)
        mixed_logits, variables = core.forward(model, variables, mixed, rng.fold(key, 'dropout_mix'), True, valid)
        loss_fix = losses.cross_entropy(logits, labels[fix], weight)
        loss_mix = mix_loss(mixed_logits, labels[fix], labels[mix], share, weight)
        value = loss_fix + loss_mix
        means = {'loss_local': value, 'loss_unlabeled': value, 'loss_fix': loss_fix, 'loss_mix': loss_mix}
        return value, (variables, means, {})

    def train() -> tuple[core.SplitParams, Any, dict[str, Array]]:
        tx = core.optimizer(hparams, lr)
        student, moments, means, _ = core.local_sgd(loss, state.student, client_state, tx, steps)
        means['client_steps'] = jnp.float32(steps)
        if epochs:
            means['client_images'] = jnp.float32(epochs * sets.num_confident)
        return student, moments, means

    def sit_out() -> tuple[core.SplitParams, Any, dict[str, Array]]:
        return state.student, client_state, jax.tree.map(jnp.zeros_like, jax.eval_shape(train)[2])

    participates = sets.num_confident > 0
    student, moments, means = jax.lax.cond(participates, train, sit_out)
    truth = federation.client_labels[inputs.rows]
    counts = core.count_pseudo_labels(labels, confident, truth, jnp.arange(labels.shape[0]) < size)
    return core.ClientOutput(student, moments, means, counts, participates)


def label_images(
    parts: Parts, inputs: core.ClientInput, student: core.SplitParams, federation: core.Federation
) -> tuple[Array, Array]:
    """Labels all images of a client.

    Args:
      parts: model, views and hyper-parameters.
      inputs: the client and the rows of its images [S].
      student: the received model.
      federation: the data.

    Returns:
      Hard labels [S], and whether they are confident [S]; 0 and False for padding.
    """
    model, views, batch, size = parts.model, parts.views, parts.options.pass_batch_size, federation.size[inputs.id]

    def label_batch(t: Array, all_labels: tuple[Array, Array]) -> tuple[Array, Array]:
        positions = t * batch + jnp.arange(batch)
        rows = inputs.rows.at[positions].get(mode='clip')
        x = views.normalize(views.weak(rng.fold(inputs.key, 'label', t), federation.client_images[rows]))
        logits, _ = core.forward(model, student, x, None, False)
        labels, confident = core.assign_pseudo_labels(parts.hparams, logits, federation.client_labels[rows])
        batch_labels = jnp.where(positions < size, labels, 0), confident & (positions < size)
        written = {'mode': 'drop', 'unique_indices': True}
        return jax.tree.map(lambda old, new: old.at[positions].set(new, **written), all_labels, batch_labels)

    empty = jnp.zeros(inputs.rows.shape, jnp.int32), jnp.zeros(inputs.rows.shape, bool)
    return jax.lax.fori_loop(0, -(-size // batch), label_batch, empty)


class Sets(NamedTuple):
    """FIX and MIX, the images a client trains on in one round, as indices into its S images."""

    fix: Array  # [S] int32, the first `num_confident`: its confident images, each once
    mix: Array  # [S] int32, the first `num_confident`: drawn from all its images, with replacement
    num_confident: Array  # [] int32


def draw_sets(key: Array, confident: Array, size: Array) -> Sets:
    """Draws FIX and MIX of a client.

    Args:
      key: the client's key.
      confident: whether its images have a confident label [S]; False from `size` on.
      size: [], the number of its images.
    """
    # Each draw has its own key, so that none depends on S, the size of the largest client.
    keys = jax.vmap(lambda place: rng.fold(key, place))(jnp.arange(confident.shape[0]))
    mix = jax.vmap(lambda place_key: jax.random.randint(place_key, (), 0, jnp.maximum(size, 1)))(keys)
    return Sets(jnp.argsort(~confident, stable=True).astype(jnp.int32), mix, jnp.sum(confident, dtype=jnp.int32))


def pair(key: Array, sets: Sets, offset: Array) -> tuple[Array, Array]:
    """Reads elements of the endless sequences over FIX and over MIX, each epoch in a new order.

    Args:
      key: the client's key.
      sets: FIX and MIX.
      offset: the places to read [B] int32.

    Returns:
      Indices from FIX [B] and from MIX [B].
    """

    def read(name: str, places: Array) -> Array:
        return places[sampling.read(jax.random.bits(rng.fold(key, name)), offset, sets.num_confident)]

    return read('fix', sets.fix), read('mix', sets.mix)


def pair_in_epochs(key: Array, sets: Sets, size: Array, t: Array, batch_size: int) -> tuple[Array, Array, Array]:
    """Reads a batch of passes over FIX whose last batch may be short, with as many new draws from all images.

    Args:
      key: the client's key.
      sets: FIX and MIX; only FIX is read.
      size: [], the number of the client's images.
      t: [], the number of the batch.
      batch_size: B.

    Returns:
      fix [B], mix [B] and valid [B] bool. MIX is redrawn at every access, so no two passes share it.
    """
    offset, valid = sampling.pass_offsets(t, batch_size, sets.num_confident)
    fix = sets.fix[sampling.read(jax.random.bits(rng.fold(key, 'fix')), offset, sets.num_confident)]
    return fix, jax.random.randint(rng.fold(key, t, 'mix'), (batch_size,), 0, jnp.maximum(size, 1)), valid


def mix_loss(logits: Array, labels: Array, others: Array, share: Array, rows: Array) -> Array:
    """Computes the cross-entropy of mixed images.

    Args:
      logits: outputs for the mixtures [B, K].
      labels: labels of the first images [B].
      others: labels of the second images [B].
      share: [], the weight of the first images.
      rows: weights of the rows [B].

    Returns:
      `share` CE(logits, labels) + (1 - `share`) CE(logits, others) [], means weighted by `rows`.
    """
    return share * losses.cross_entropy(logits, labels, rows) + (1 - share) * losses.cross_entropy(logits, others, rows)


# --- the record


# fmt: off
@dataclasses.dataclass(frozen=True)
class SemiFL:
    """The keys of `config.semifl`."""

    order: str = option('clients_first', choices=('server_first', 'clients_first'), help="'clients_first', as in the "
        "authors' code: clients, average, the server's steps, evaluation | 'server_first': evaluation right after the "
        "average, a few points lower; the model after the server's steps is then also evaluated "
        '(after_server_accuracy), and stored for this, which takes the memory of one more model')
    mixup_alpha: float = option(0.75, above=0, help='a of the distribution Beta(a, a) of the mixup weights')
    clip_norm: float = option(1.0, at_least=0, help='maximum norm of gradients, at server and clients; larger ones are '
        'scaled down; 0: no limit')
    global_momentum: float = option(0.5, at_least=0, below=1, help="momentum across rounds of the server's step toward "
        "the clients' average; 0: it takes the average itself")
    max_passes: int = option(5, at_least=0, help="limits the k_u iterations to this many passes over a client's "
        "confident images, the paper's epochs, up to the next full batch; otherwise a client with only a few such "
        'images would memorize them. 0: no limit')
    # Ignorable: a data set's configuration sets it where its images stay on the host
    batch_norm_data: str = option('all', choices=('all', 'server'), ignorable=True, help='whose images the BatchNorm '
        "statistics are computed from: 'all' | 'server'")
    pass_batch_size: int = option(250, at_least=1, help='batch size of passes over whole sets of images: for labeling '
        'and for BatchNorm statistics')
# fmt: on


# What the settings of SemiFL's authors' code have for every data set
OFFICIAL = protocol(clients=100, active=10, rounds=800, lr=0.03, momentum=0.9, batch_size=10, epochs=5) | {
    'data.labeled_split': 'balanced',
    'lr_rounds': 800,
    'k_s_rule': 'fixed',
    'local.weighting': 'uniform',
    'local.optimizer_state': 'kept',
    'optimizer': 'sgd',
    'lr_min': 0.0,
    'nesterov': True,
    'weight_decay': 5e-4,
    'threshold': 0.95,
    'augment.randaugment': 'semifl',
    'augment.operations': 2,
    'augment.cutout': 0,
    'augment.crop': 0.125,
    'model.batch_norm_variance': 'unbiased',  # PyTorch's
    'semifl.order': 'clients_first',
    'semifl.mixup_alpha': 0.75,
    'semifl.clip_norm': 1.0,
    'semifl.global_momentum': 0.5,
}


def official(flat: Flat) -> dict[str, Any]:
    """Returns the settings of SemiFL's authors' code, whose server makes 5 epochs, too.

    A Dirichlet partition draws over clients per class, again until every client has 10 images.
    """
    labels = flat['data.num_labeled'] - max(flat['data.client_labels'], 0)
    batch = 250 if labels > 1000 else 10
    values = OFFICIAL | {'k_s': 5 * -(-labels // batch), 'server_batch_size': batch}
    values['augment.flip'] = flat['data.name'] not in (*DIGITS, 'svhn_cropped')
    if flat['federation.partition'] == 'dirichlet':
        values['federation.partition'] = 'dirichlet_class'
    return values


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills one model down and its parameters up; a client labels all its images, and without a confident one sits out.

    If BatchNorm statistics are computed over the images of all clients, every client receives the server's parameters
    once a round and sends statistics back, and the active clients receive the combined ones. Two things are not
    counted: the time of clients outside the cohort, and the second pass, for evaluation. Metrics record the share of
    clients that sit out, and the means over the remaining clients of iterations and, with local epochs, images, so
    every client is billed the mean.
    """
    h, pieces, metrics = context.hparams, context.pieces, context.metrics
    work, statistics = pieces.whole_work, pieces.statistics
    parameters = context.whole_bytes - statistics
    everywhere = h.options.batch_norm_data == 'all' and statistics > 0
    trains: float = 1.0
    rows: float | np.ndarray = h.batch_size  # images in a step
    if h.local.epochs:  # the last step of a pass may have fewer
        rows = h.local.epochs * np.asarray(context.images) / np.maximum(context.steps, 1)
    if metrics is not None and context.survivors:
        trains = round((1 - float(metrics['clients_sitting_out'])) * context.survivors) / context.survivors
        # a client takes fewer steps than planned, `context.steps`, when few of its images are confident
        trained = metrics['client_images'] if h.local.epochs else h.batch_size * metrics['client_steps']
        rows = float(trained) / max(float(np.mean(context.steps)), 1.0)
    passes = 2 if everywhere else 1
    return costs.ClientCost(
        download=context.whole_bytes,
        setup_upload=statistics if everywhere else 0,
        setup_work=passes * np.asarray(context.images) * work.forward,
        upload=trains * parameters,
        step_work=trains * rows * 2 * work.train,
        inactive_download=parameters if everywhere else 0,
        inactive_upload=statistics if everywhere else 0,
    )


def check(flat: Flat) -> None:
    """Raises UserError for keys that contradict each other."""
    if flat['local.epochs'] and flat['semifl.max_passes'] != SemiFL.max_passes:
        passes, epochs = flat['semifl.max_passes'], flat['local.epochs']
        fault = f'config.semifl.max_passes={passes} has no effect: local.epochs={epochs}'
        raise UserError(f'{fault}; leave it at {SemiFL.max_passes}')
    if flat['data.client_labels'] > 0 and flat['federation.mu'] > 0:
        setting = f'config.data.client_labels={flat["data.client_labels"]}'
        raise UserError(f'{setting}: clients of semifl have no labels; use 0 (or federation.mu=0, which ignores them)')
    if flat['data.residency'] == 'host' and flat['semifl.batch_norm_data'] == 'all':
        why = "needs the images of all clients on the device; use 'server' or data.residency='device'"
        raise UserError(f"config.semifl.batch_norm_data='all' {why}")


METHOD = Method(
    name='semifl',
    build=semifl,
    title='SemiFL',
    source='Diao et al., SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training, '
    'NeurIPS 2022',
    options=SemiFL,
    uses=('pseudo-labels', 'local', 'kept optimizers', 'pre-rounds'),  # no 'sampling': passes over confident images
    keeps_optimizers=True,
    reads='sets',
    check=check,
    official=official,
    price=price,
    metrics={
        'loss_fix': 'part of `loss_local`: strong views of confident images',
        'loss_mix': 'part of `loss_local`: mixtures',
        'clients_sitting_out': 'share of active clients without a confident image; they do not train. Losses are '
        'means over the clients that train, 0 without any',
        'client_steps': 'iterations of a client that does not sit out, on average',
        'client_images': 'with `local.epochs`: images that such a client trains on, on average: its confident '
        'ones, once in each pass. The last batch of a pass may be short, so this is less than `client_steps` times '
        '`batch_size`',
    },
    look=Look('#E69F00', 'v', (0, (6.0, 1.2, 1.0, 1.2, 1.0, 1.2))),
    ranges={
        'lr': ranges.LR,
        'threshold': ranges.THRESHOLD,
        'semifl.mixup_alpha': ranges.log(0.1, 1.0),  # from hardly mixed to equally likely weights; MixMatch's is 0.75
        'semifl.global_momentum': ranges.linear(0.0, 0.9),  # from none to that of its steps; 0.5 in its code
    },
    # so that no client sits out or takes fewer steps
    variants={'': {'threshold': 0.0, 'semifl.max_passes': 0}},
)
register(METHOD)
