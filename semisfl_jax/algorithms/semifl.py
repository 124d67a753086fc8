"""SemiFL (Diao et al., NeurIPS 2022): server and clients train in turns; labels are made once a round, and mixed."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from semisfl_jax import losses, phases, rng, sampling
from semisfl_jax.hparams import HParams, learning_rate, optimizer
from semisfl_jax.models import SplitModel
from semisfl_jax.phases import pseudo_label
from semisfl_jax.phases.state import trainable, with_parameters
from semisfl_jax.types import HERE, Algorithm, Array, Cohort, Federation, Layout, Metrics, SplitParams, Views


class Sets(NamedTuple):
    """What a client trains on in one round, as places among its S images."""

    fix: Array  # [S] int32, the first `count`: its confident images, each once
    mix: Array  # [S] int32, the first `count`: drawn from all its images, with replacement
    count: Array  # [] int32


class AtServer(NamedTuple):
    """`State.server`."""

    momentum: optax.OptState  # of the steps to the clients' average
    trained: SplitParams | tuple[()]  # under 'server_first', the model as the server's steps of this round left it


def draw_sets(key: Array, confident: Array, size: Array) -> Sets:
    """FIX and MIX of a client of `size` [] images, of which some are `confident` [S], none behind `size`."""
    # A key for each draw, so that none depends on S, which is that of the largest client.
    keys = jax.vmap(lambda place: rng.fold(key, place))(jnp.arange(confident.shape[0]))
    mix = jax.vmap(lambda own: jax.random.randint(own, (), 0, jnp.maximum(size, 1)))(keys)
    return Sets(jnp.argsort(~confident, stable=True).astype(jnp.int32), mix, jnp.sum(confident, dtype=jnp.int32))


def pair(key: Array, sets: Sets, offset: Array) -> tuple[Array, Array]:
    """Elements `offset` [B] int32 of the endless sequences over FIX and over MIX, each epoch in a new order."""
    fix, mix = (jax.random.bits(rng.fold(key, name)) for name in ('fix', 'mix'))
    return sets.fix[sampling.read(fix, offset, sets.count)], sets.mix[sampling.read(mix, offset, sets.count)]


def of_epochs(key: Array, sets: Sets, size: Array, t: Array, batch_size: int) -> tuple[Array, Array, Array]:
    """Batch `t` [] of passes over FIX that each end with a short batch, and as many new draws from all `size` images.

    Returns:
      fix [B], mix [B], and which rows are there [B] bool. MIX is drawn at every access: no two passes have the same.
    """
    offset, there = sampling.of_pass(t, batch_size, sets.count)
    fix = sets.fix[sampling.read(jax.random.bits(rng.fold(key, 'fix')), offset, sets.count)]
    return fix, jax.random.randint(rng.fold(key, t, 'mix'), (batch_size,), 0, jnp.maximum(size, 1)), there


def mix_loss(logits: Array, labels: Array, others: Array, share: Array, rows: Array) -> Array:
    """`share` CE(logits, labels) + (1 - `share`) CE(logits, others) [] of mixtures: logits [B, K], labels [B].

    A mean over `rows` [B], 1 for those that are there.
    """
    return share * losses.cross_entropy(logits, labels, rows) + (1 - share) * losses.cross_entropy(logits, others, rows)


def semifl(model: SplitModel, views: Views, hparams: HParams, layout: Layout = HERE) -> Algorithm:
    """Builds SemiFL.

    One round: K_s steps of cross-entropy at the server, whose model goes to the cohort. Each client labels all its
    images once, in a weak view, with the model that it received. FIX are those whose label reaches the threshold, MIX
    as many draws from all of them, labelled whatever their confidence; without a confident image the client sits
    out. It trains on strong views of FIX and on mixtures of weak views of FIX and MIX: K_u iterations, but at most
    `semifl.max_passes` over FIX, one endless sequence of full batches over both sets. With `local.epochs` it makes so
    many passes, as the loaders of the authors' code do: each ends with a batch as short as it comes, and MIX is drawn
    anew at every access. The server's passes over its labels then end so, too. The server takes the average of the
    models as a step of SGD, with momentum over the rounds (`semifl.global_momentum`).

    BatchNorm's statistics are taken afresh whenever a model is about to label or to be evaluated, and never otherwise.
    Under `semifl.order` 'clients_first', as in the authors' code, the clients start from the model of the round before,
    and the server trains on their average. Under 'server_first' the server trains first, and the round ends with the
    average. Judged is the model at the end of the round; where that is the average, the model that the server's steps
    had led to before is evaluated beside it. With `local.optimizer_state` 'kept' clients and server go on with their
    optimizers, as in the authors' code.

    Arguments as of `semisfl`; the model runs whole.
    """
    own = hparams.semifl
    epochs, server_first, batch = hparams.local.epochs, own.order == 'server_first', own.pass_batch_size
    hparams = dataclasses.replace(hparams, clip_norm=own.clip_norm, short_batches=epochs > 0)
    server = phases.build_server(model, views, hparams)
    statistics = phases.build_statistics(model, views, own.batch_norm_data, batch)
    global_step = optax.sgd(1.0, momentum=own.global_momentum)

    def label(visit: phases.Visit, student: SplitParams, federation: Federation) -> tuple[Array, Array]:
        """Hard labels [S] of all images of a client, and whether they are confident; behind its images, 0 and False."""
        size = federation.size[visit.id]

        def one(t, found):
            place = t * batch + jnp.arange(batch)
            images = federation.client_images[visit.rows.at[place].get(mode='clip')]
            x = views.normalise(views.weak(rng.fold(visit.key, 'label', t), images))
            labels, confident = pseudo_label.guess(phases.forward(model, student, x, None, False)[0], hparams.threshold)
            guesses = jnp.where(place < size, labels, 0), confident & (place < size)
            return jax.tree.map(lambda all_, own: all_.at[place].set(own, mode='drop'), found, guesses)

        nothing = jnp.zeros(visit.rows.shape, jnp.int32), jnp.zeros(visit.rows.shape, bool)
        return jax.lax.fori_loop(0, -(-size // batch), one, nothing)

    def client(visit: phases.Visit, kept, state: phases.State, federation: Federation, lr: Array) -> phases.Work:
        size = federation.size[visit.id]
        labels, confident = label(visit, state.student, federation)
        sets = draw_sets(rng.fold(visit.key, 'sets'), confident, size)
        steps, rows = visit.steps, hparams.batch_size
        if epochs:
            steps = epochs * -(-sets.count // rows)
        elif own.max_passes:
            steps = jnp.minimum(steps, -(-own.max_passes * sets.count // rows))

        def loss(parameters, student, _, t):
            key, there = rng.fold(visit.key, t), None
            if epochs:
                fix, mix, there = of_epochs(visit.key, sets, size, t, rows)
            else:
                fix, mix = pair(visit.key, sets, t * rows + jnp.arange(rows))
            weight = jnp.ones(fix.shape) if there is None else there.astype(jnp.float32)
            images, others = (federation.client_images[visit.rows[places]] for places in (fix, mix))
            strong = views.normalise(views.strong(rng.fold(key, 'strong'), images))
            weak = views.normalise(views.weak(rng.fold(key, 'weak'), images))
            other = views.normalise(views.weak(rng.fold(key, 'other'), others))
            share = jax.random.beta(rng.fold(key, 'share'), own.mixup_alpha, own.mixup_alpha)
            now, mixed = with_parameters(student, parameters), share * weak + (1 - share) * other
            logits, now = phases.forward(model, now, strong, rng.fold(key, 'dropout'), True, there)
            mixed_logits, now = phases.forward(model, now, mixed, rng.fold(key, 'dropout_mix'), True, there)
            loss_fix = losses.cross_entropy(logits, labels[fix], weight)
            loss_mix = mix_loss(mixed_logits, labels[fix], labels[mix], share, weight)
            value = loss_fix + loss_mix
            means = {'loss_local': value, 'loss_unlabeled': value, 'loss_fix': loss_fix, 'loss_mix': loss_mix}
            return value, (now, means, {})

        def train():
            student, kept_on, means, _ = phases.descend(loss, state.student, kept, optimizer(hparams, lr), steps)
            means['client_steps'] = jnp.float32(steps)
            if epochs:
                means['client_images'] = jnp.float32(epochs * sets.count)
            return student, kept_on, means

        def sit_out():
            return state.student, kept, jax.tree.map(jnp.zeros_like, jax.eval_shape(train)[2])

        takes_part = sets.count > 0
        work = jax.lax.cond(takes_part, train, sit_out)
        truth = federation.client_labels[visit.rows]
        counts = pseudo_label.count(labels, confident, truth, jnp.arange(labels.shape[0]) < size)
        return phases.Work(*work, counts, takes_part)

    local = phases.after_warm_up(hparams, phases.build_local(client, hparams, layout, reads='sets'))

    def clients(key: Array, state: phases.State, federation: Federation, cohort: Cohort, lr: Array):
        """The clients' part of a round and the server's step to their average, none when all sit out."""
        average, kept, metrics = local(key, state, federation, cohort, lr)

        def step():
            start = trainable(state.student)
            gradient = jax.tree.map(jnp.subtract, start, trainable(average))
            updates, momentum = global_step.update(gradient, state.server.momentum)
            student = with_parameters(state.student, optax.apply_updates(start, updates))
            return statistics(key, student, federation) if server_first else student, momentum

        somebody = metrics['clients_sitting_out'] < 1  # not in warm-up rounds, where it is no number
        student, momentum = jax.lax.cond(somebody, step, lambda: (state.student, state.server.momentum))
        return state.replace(student=student, server=state.server._replace(momentum=momentum), clients=kept), metrics

    def init(key: Array) -> phases.State:
        kept = phases.init_clients(key, model, hparams)
        state = phases.init_state(key, model, memory=(), projection=False, teacher=False, clients=kept)
        if hparams.local.optimizer_state == 'kept':
            state = state.replace(momentum=optimizer(hparams, jnp.float32(hparams.lr)).init(trainable(state.student)))
        trained = jax.tree.map(jnp.copy, state.student) if server_first else ()
        return state.replace(server=AtServer(global_step.init(trainable(state.student)), trained))

    def round_(
        key: Array, state: phases.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[phases.State, Metrics]:
        def refresh(state):
            return state.replace(student=statistics(key, state.student, federation))

        lr = learning_rate(hparams, state.round)
        if server_first:
            state, metrics = server(key, state, federation, k_s, lr)
            state = refresh(state)
            state = state.replace(server=state.server._replace(trained=state.student))
            state, found = clients(key, state, federation, cohort, lr)
        else:
            if not hparams.pre_rounds:  # later rounds begin with the statistics that the last one was evaluated with
                state = jax.lax.cond(state.round == 0, refresh, lambda same: same, state)
            state, found = clients(key, state, federation, cohort, lr)
            state, metrics = server(key, state, federation, k_s, lr)
            state = refresh(state)
        return state.replace(round=state.round + 1), {'lr': lr, **metrics, **found}

    def predict(state: phases.State, images: Array) -> dict[str, Array]:
        judged = {'student': phases.predict(model, views, state.student, images)}
        if not server_first:
            return judged
        return judged | {'after_server': phases.predict(model, views, state.server.trained, images)}

    return Algorithm(init, round_, predict, headline='student', uses_clients=True, reads='sets')
