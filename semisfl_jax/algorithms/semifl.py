"""SemiFL (Diao et al., NeurIPS 2022): server and clients alternate; pseudo-labels are fixed per round; mixup."""

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
from semisfl_jax.algorithms.ranges import LR, THRESHOLD, linear, log
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core import losses, rng, sampling
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from semisfl_jax.core.keys import key as option
from semisfl_jax.core.state import trainable, with_parameters
from semisfl_jax.core.teacher import assign_pseudo_labels, count_pseudo_labels
from semisfl_jax.core.types import (
    Algorithm,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    LossValue,
    Metrics,
    SplitParams,
    Views,
)
from semisfl_jax.models import SplitModel
from semisfl_jax.models.layers import MOMENTUM


@dataclasses.dataclass(frozen=True)
class SemiFL:
    """`config.semifl`."""

    order: str = option(
        'clients_first',
        "'clients_first', as in the authors' code: clients, average, the server's steps, evaluation | 'server_first': "
        "evaluation right after the average, a few points lower; the model after the server's steps is then also "
        'evaluated (after_server_accuracy), and stored for this, which takes the memory of one more model',
        choices=('server_first', 'clients_first'),
    )
    mixup_alpha: float = option(0.75, 'a of the distribution Beta(a, a) of the mixup weights', above=0)
    clip_norm: float = option(
        1.0, 'maximum norm of gradients, at server and clients; larger ones are scaled down; 0: no limit', at_least=0
    )
    global_momentum: float = option(
        0.5,
        "momentum across rounds of the server's step toward the clients' average; 0: it takes the average itself",
        at_least=0,
        below=1,
    )
    max_passes: int = option(
        5,
        "limits the k_u iterations to this many passes over a client's confident images, the paper's epochs, up to the "
        'next full batch; otherwise a client with only a few such images would memorize them. 0: no limit',
        at_least=0,
    )
    batch_norm_data: str = option(
        'all',
        "whose images the BatchNorm statistics are computed from: 'all' | 'server'",
        choices=('all', 'server'),
        ignorable=True,  # a data set's configuration sets it where its images stay on the host
    )
    pass_batch_size: int = option(
        250,
        'batch size of passes over whole sets of images: for labeling and for BatchNorm statistics',
        at_least=1,
    )


# --- the images that a client trains on


class Sets(NamedTuple):
    """The images a client trains on in one round, FIX and MIX, as indices into its S images."""

    fix: Array  # [S] int32, the first `num_confident`: its confident images, each once
    mix: Array  # [S] int32, the first `num_confident`: drawn from all its images, with replacement
    num_confident: Array  # [] int32


def draw_sets(key: Array, confident: Array, size: Array) -> Sets:
    """FIX and MIX of a client with `size` [] images; `confident` [S] is False from `size` on."""
    # A separate key per draw, so that no draw depends on S, the size of the largest client.
    keys = jax.vmap(lambda place: rng.fold(key, place))(jnp.arange(confident.shape[0]))
    mix = jax.vmap(lambda place_key: jax.random.randint(place_key, (), 0, jnp.maximum(size, 1)))(keys)
    return Sets(jnp.argsort(~confident, stable=True).astype(jnp.int32), mix, jnp.sum(confident, dtype=jnp.int32))


def pair(key: Array, sets: Sets, offset: Array) -> tuple[Array, Array]:
    """Elements `offset` [B] int32 of the endless sequences over FIX and over MIX, each epoch in a new order."""

    def read(name: str, places: Array) -> Array:
        return places[sampling.read(jax.random.bits(rng.fold(key, name)), offset, sets.num_confident)]

    return read('fix', sets.fix), read('mix', sets.mix)


def of_epochs(key: Array, sets: Sets, size: Array, t: Array, batch_size: int) -> tuple[Array, Array, Array]:
    """Batch `t` [] of passes over FIX whose last batch may be short, with as many new draws from all `size` images.

    Returns:
      fix [B], mix [B] and valid [B] bool. MIX is redrawn at every access, so no two passes share it.
    """
    offset, valid = sampling.of_pass(t, batch_size, sets.num_confident)
    fix = sets.fix[sampling.read(jax.random.bits(rng.fold(key, 'fix')), offset, sets.num_confident)]
    return fix, jax.random.randint(rng.fold(key, t, 'mix'), (batch_size,), 0, jnp.maximum(size, 1)), valid


# --- static BatchNorm: statistics are recomputed over a data set before a model is evaluated or sent out; training uses
# those of each batch alone


def recompute_statistics(
    model: SplitModel, variables: SplitParams, images: Callable[[Array], Array], count: Array | int, key: Array
) -> SplitParams:
    """`variables` with the BatchNorm statistics of bottom and top replaced by their means over `count` [] batches.

    The cumulative average of PyTorch's BatchNorm with momentum None, in training mode: each batch is normalized by its
    own statistics, so the old running ones have no effect. `images` maps t [] int32 to batch t, normalized floats
    [B, H, W, C]; `key` is for dropout that precedes a BatchNorm.
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


def build_statistics(
    model: SplitModel, views: Views, source: str, batch_size: int
) -> Callable[[Array, SplitParams, Federation], SplitParams]:
    """Builds run(root key, variables, federation) -> variables with statistics of unaugmented images.

    `source` 'all' is the labeled images of the server and the unlabeled ones of all clients, which must be on the
    device; 'server' only the server's. They are read in one fixed random order; the last batch of `batch_size` is
    filled with images from the sequence's next epoch, which repeat earlier ones.
    """

    def run(key: Array, variables: SplitParams, federation: Federation) -> SplitParams:
        labeled, batch = federation.server_index.shape[0], batch_size
        if source == 'server':
            count, batch = jnp.int32(labeled), min(batch, labeled)
        else:
            count = labeled + jnp.sum(federation.size)
        key = rng.fold(key, 'batch_norm')
        seed_bits = jax.random.bits(rng.fold(key, 'order'))

        def images(t: Array) -> Array:
            positions = sampling.read(seed_bits, t * batch + jnp.arange(batch), count)
            found = federation.server_images[federation.server_index[jnp.minimum(positions, labeled - 1)]]
            if source == 'all':
                rows = sampling.row_of_all(federation, jnp.maximum(positions - labeled, 0))
                found = jnp.where((positions < labeled)[:, None, None, None], found, federation.client_images[rows])
            return views.normalize(found)

        return recompute_statistics(model, variables, images, -(-count // batch), key)

    return run


# --- a client's round, and the method


def train_client(
    parts: Parts, inputs: core.ClientInput, client_state: Any, state: core.State, federation: Federation, lr: Array
) -> core.ClientOutput:
    """A client labels its images, draws its sets, and trains on them unless it has no confident image."""
    model, views, hparams = parts
    options, epochs, rows = parts.options, hparams.local.epochs, hparams.batch_size
    size, steps = federation.size[inputs.id], inputs.steps
    labels, confident = label_images(parts, inputs, state.student, federation)
    sets = draw_sets(rng.fold(inputs.key, 'sets'), confident, size)
    if epochs:
        steps = epochs * -(-sets.num_confident // rows)
    elif options.max_passes:
        steps = jnp.minimum(steps, -(-options.max_passes * sets.num_confident // rows))

    def loss(parameters: SplitParams, student: SplitParams, _: Any, t: Array) -> LossValue:
        """Strong views of FIX, and mixtures of weak views of FIX and MIX."""
        key, valid = rng.fold(inputs.key, t), None
        if epochs:
            fix, mix, valid = of_epochs(inputs.key, sets, size, t, rows)
        else:
            fix, mix = pair(inputs.key, sets, t * rows + jnp.arange(rows))
        weight = jnp.ones(fix.shape) if valid is None else valid.astype(jnp.float32)
        images, others = (federation.client_images[inputs.rows[positions]] for positions in (fix, mix))
        strong = views.normalize(views.strong(rng.fold(key, 'strong'), images))
        weak = views.normalize(views.weak(rng.fold(key, 'weak'), images))
        other = views.normalize(views.weak(rng.fold(key, 'other'), others))
        share = jax.random.beta(rng.fold(key, 'share'), options.mixup_alpha, options.mixup_alpha)
        variables, mixed = with_parameters(student, parameters), share * weak + (1 - share) * other
        logits, variables = core.forward(model, variables, strong, rng.fold(key, 'dropout'), True, valid)
        mixed_logits, variables = core.forward(model, variables, mixed, rng.fold(key, 'dropout_mix'), True, valid)
        loss_fix = losses.cross_entropy(logits, labels[fix], weight)
        loss_mix = mix_loss(mixed_logits, labels[fix], labels[mix], share, weight)
        value = loss_fix + loss_mix
        means = {'loss_local': value, 'loss_unlabeled': value, 'loss_fix': loss_fix, 'loss_mix': loss_mix}
        return value, (variables, means, {})

    def train() -> tuple[SplitParams, Any, dict[str, Array]]:
        tx = optimizer(hparams, lr)
        student, kept, means, _ = core.local_sgd(loss, state.student, client_state, tx, steps)
        means['client_steps'] = jnp.float32(steps)
        if epochs:
            means['client_images'] = jnp.float32(epochs * sets.num_confident)
        return student, kept, means

    def sit_out() -> tuple[SplitParams, Any, dict[str, Array]]:
        return state.student, client_state, jax.tree.map(jnp.zeros_like, jax.eval_shape(train)[2])

    participates = sets.num_confident > 0
    student, kept, means = jax.lax.cond(participates, train, sit_out)
    truth = federation.client_labels[inputs.rows]
    counts = count_pseudo_labels(labels, confident, truth, jnp.arange(labels.shape[0]) < size)
    return core.ClientOutput(student, kept, means, counts, participates)


def label_images(
    parts: Parts, inputs: core.ClientInput, student: SplitParams, federation: Federation
) -> tuple[Array, Array]:
    """Hard labels [S] of all images of a client and whether they are confident [S]; 0 and False for padding."""
    model, views, batch, size = parts.model, parts.views, parts.options.pass_batch_size, federation.size[inputs.id]

    def label_batch(t: Array, all_labels: tuple[Array, Array]) -> tuple[Array, Array]:
        positions = t * batch + jnp.arange(batch)
        rows = inputs.rows.at[positions].get(mode='clip')
        x = views.normalize(views.weak(rng.fold(inputs.key, 'label', t), federation.client_images[rows]))
        logits, _ = core.forward(model, student, x, None, False)
        labels, confident = assign_pseudo_labels(parts.hparams, logits, federation.client_labels[rows])
        batch_labels = jnp.where(positions < size, labels, 0), confident & (positions < size)
        written = {'mode': 'drop', 'unique_indices': True}
        return jax.tree.map(lambda old, new: old.at[positions].set(new, **written), all_labels, batch_labels)

    empty = jnp.zeros(inputs.rows.shape, jnp.int32), jnp.zeros(inputs.rows.shape, bool)
    return jax.lax.fori_loop(0, -(-size // batch), label_batch, empty)


def mix_loss(logits: Array, labels: Array, others: Array, share: Array, rows: Array) -> Array:
    """`share` CE(logits [B, K], labels [B]) + (1 - `share`) CE(logits, others [B]) [], means weighted by `rows` [B]."""
    return share * losses.cross_entropy(logits, labels, rows) + (1 - share) * losses.cross_entropy(logits, others, rows)


class AtServer(NamedTuple):
    """`State.server`."""

    momentum: Any  # state of the SGD steps toward the clients' average
    trained: SplitParams | tuple[()]  # with 'server_first', the model after the server's steps of this round


def semifl(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds SemiFL.

    One round: K_s steps of cross-entropy at the server, whose model goes to the cohort. Each client labels all its
    images once, in a weak view, with the model it received. FIX is the set of images whose label reaches the threshold,
    MIX an equal number of draws from all images, labeled regardless of confidence; without a confident image the client
    sits out. It trains on strong views of FIX and on mixtures of weak views of FIX and MIX: K_u iterations, but only
    until a full batch completes `semifl.max_passes` over FIX, in one endless sequence over both sets. With
    `local.epochs` it makes that many passes, like the loaders of the authors' code: the last batch of each may be
    short, and MIX is redrawn at every access. The server's passes over its labels then end the same way. The server
    moves to the average of the models by a step of SGD, with momentum across rounds (`semifl.global_momentum`).

    BatchNorm's statistics are recomputed whenever a model is about to label or to be evaluated, and never otherwise.
    With `semifl.order` 'clients_first', as in the authors' code, the clients start from the model of the previous
    round, and the server trains on their average. With 'server_first' the server trains first, and the round ends with
    the average. The headline model is the one at the end of the round; if that is the average, the model after the
    server's steps is also evaluated. With `local.optimizer_state` 'kept', as in the authors' code, clients and server
    continue with their optimizer states.

    Arguments as in `semisfl`; the model is not split.
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
        start = trainable(state.student)
        if hparams.local.optimizer_state == 'kept':
            state = state.replace(opt_state=optimizer(hparams, jnp.float32(hparams.lr)).init(start))
        trained = jax.tree.map(jnp.copy, state.student) if server_first else ()
        return state.replace(server=AtServer(global_step.init(start), trained))

    def round_(
        key: Array, state: core.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[core.State, Metrics]:
        lr = learning_rate(hparams, state.round)

        def refresh(state: core.State) -> core.State:
            return state.replace(student=statistics(key, state.student, federation))

        def clients(state: core.State) -> tuple[core.State, Metrics]:
            average, kept, metrics = local(key, state, federation, cohort, lr)

            def step() -> tuple[SplitParams, Any]:
                start = trainable(state.student)
                gradient = jax.tree.map(jnp.subtract, start, trainable(average))
                updates, momentum = global_step.update(gradient, state.server.momentum)
                student = with_parameters(state.student, optax.apply_updates(start, updates))
                return statistics(key, student, federation) if server_first else student, momentum

            any_trained = metrics['clients_sitting_out'] < 1  # False in pre-rounds, where it is NaN
            student, momentum = jax.lax.cond(any_trained, step, lambda: (state.student, state.server.momentum))
            at_server = state.server._replace(momentum=momentum)
            return state.replace(student=student, server=at_server, clients=kept), metrics

        if server_first:
            state, metrics = server(key, state, federation, k_s, lr)
            state = refresh(state)
            state = state.replace(server=state.server._replace(trained=state.student))
            state, client_metrics = clients(state)
        else:
            if not hparams.pre_rounds:  # later rounds start with the statistics from the previous evaluation
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

    return Algorithm(init, round_, predict, headline='student')


def official(flat: Flat) -> dict[str, Any]:
    """SemiFL as run by its authors' code, whose server makes 5 epochs, too. A Dirichlet partition draws over clients
    per class, again until every client has 10 images."""
    labels = flat['data.num_labeled'] - max(flat['data.client_labels'], 0)
    batch = 250 if labels > 1000 else 10
    values = protocol(clients=100, active=10, rounds=800, lr=0.03, momentum=0.9, batch_size=10, epochs=5) | {
        'data.labeled_split': 'balanced',
        'lr_rounds': 800,
        'k_s': 5 * -(-labels // batch),
        'k_s_rule': 'fixed',
        'server_batch_size': batch,
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
        'augment.flip': flat['data.name'] not in (*DIGITS, 'svhn_cropped'),
        'augment.crop': 0.125,
        'model.batch_norm_variance': 'unbiased',  # PyTorch's
        'semifl.order': 'clients_first',
        'semifl.mixup_alpha': 0.75,
        'semifl.clip_norm': 1.0,
        'semifl.global_momentum': 0.5,
    }
    if flat['federation.partition'] == 'dirichlet':
        values['federation.partition'] = 'dirichlet_class'
    return values


def price(context: costs.CostContext) -> costs.ClientCost:
    """One model down, its parameters up. A client first labels all its images; without a confident one it sits out.

    If BatchNorm statistics are computed over the images of all clients, every client receives the server's parameters
    once a round and sends statistics back, and the active clients receive the combined ones. The time of clients
    outside the cohort is not counted, nor is the second pass, for evaluation. Recorded are the share of clients sitting
    out and the means of the others' iterations and, with local epochs, images, so every client is billed the mean.
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
        # of the iterations planned, `context.steps`, a client makes fewer when few of its images are confident
        made = metrics['client_images'] if h.local.epochs else h.batch_size * metrics['client_steps']
        rows = float(made) / max(float(np.mean(context.steps)), 1.0)
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
        what = f'config.semifl.max_passes={passes} has no effect: local.epochs={epochs}'
        raise UserError(f'{what}; leave it at {SemiFL.max_passes}')
    if flat['data.client_labels'] > 0 and flat['federation.mu'] > 0:
        given = f'config.data.client_labels={flat["data.client_labels"]}'
        raise UserError(f'{given}: clients of semifl have no labels; use 0 (or federation.mu=0, which ignores them)')
    if flat['data.residency'] == 'host' and flat['semifl.batch_norm_data'] == 'all':
        why = "needs the images of all clients on the device; use 'server' or data.residency='device'"
        raise UserError(f"config.semifl.batch_norm_data='all' {why}")


METHOD = register(
    Method(
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
            'means over the others, 0 when there are none',
            'client_steps': 'iterations of a client that does not sit out, on average',
            'client_images': 'with `local.epochs`: images that such a client trains on, on average: its confident '
            'ones, once in each pass. The last batch of a pass may be short, so this is less than `client_steps` times '
            '`batch_size`',
        },
        look=Look('#E69F00', 'v', (0, (6.0, 1.2, 1.0, 1.2, 1.0, 1.2))),
        ranges={
            'lr': LR,
            'threshold': THRESHOLD,
            'semifl.mixup_alpha': log(0.1, 1.0),  # from hardly mixed to equally likely weights; MixMatch's is 0.75
            'semifl.global_momentum': linear(0.0, 0.9),  # from none to that of its steps; 0.5 in its code
        },
        # so that no client sits out or takes fewer steps
        variants={'': {'threshold': 0.0, 'semifl.max_passes': 0}},
    )
)
