"""Steps of the supervised phase, many and few, and batches that a pass ends short."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.hparams import optimizer
from semisfl_jax.core.state import trainable
from semisfl_jax.core.supervised import BLOCK
from tests.helpers import linear, numpy_rounds, toy

PLAIN_SGD = {'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0}


def supervised(label_weight=1.0, rate=0.1, **changes):
    """The compiled phase without a queue, (state, K_s) -> state, metrics, and the first state."""
    hparams = dataclasses.replace(toy.HPARAMS, **changes)
    phase = core.build_supervised(linear.model(), toy.VIEWS, hparams, label_weight)
    state = core.init_state(rng.root(0), linear.model(), teacher=False)
    run = jax.jit(phase)
    return (
        lambda state, k_s: run(rng.root(0), state, numpy_rounds.federation(), jnp.int32(k_s), jnp.float32(rate)),
        state,
        hparams,
    )


def test_a_weight_of_the_labels_scales_a_step():
    """A step of plain SGD is as many times as long."""
    moves = []
    for weight in (1.0, 2.5):
        run, state, _ = supervised(weight, **PLAIN_SGD)
        after, metrics = run(state, 1)
        np.testing.assert_allclose(metrics['loss_supervised'], weight * metrics['loss_supervised_ce'], rtol=1e-6)
        moves.append(after.student.top['params']['w'] - state.student.top['params']['w'])
    np.testing.assert_allclose(moves[1], 2.5 * moves[0], rtol=1e-4, atol=1e-6)


def test_many_steps_read_what_single_steps_read():
    """More steps than are drawn at once, by an optimizer whose momentum is kept."""
    run, state, hparams = supervised(rate=1e-3)
    state = state.replace(opt_state=optimizer(hparams, jnp.float32(1e-3)).init(trainable(state.student)))
    steps = 2 * BLOCK + 3
    together, metrics = run(state, steps)
    assert 0 < metrics['loss_supervised'] < 2
    for _ in range(steps):
        state, _ = run(state, 1)
    chex.assert_trees_all_close(state, together, rtol=1e-4, atol=1e-6)


def test_rows_beyond_the_end_of_a_pass_count_nothing():
    """Of 12 images in batches of 5, the third has two: its loss and accuracy are theirs."""
    run, state, hparams = supervised(short_batches=True)
    _, metrics = run(state.replace(step=jnp.int32(2)), 1)
    rows, valid = sampling.server_pass_rows(rng.root(0), jnp.int32(2), 5, 12)
    np.testing.assert_array_equal(valid, [True, True, False, False, False])
    data, key = numpy_rounds.federation(), rng.fold(rng.root(0), 'supervised', 2)
    server = linear.Server(rng.root(0), hparams, state.student, 'student')
    x = server.pixels('supervised', rng.fold(key, 'views'), data.server_images[data.server_index[rows]])
    features, _ = server.bottom(server.student, x[:2], rng.fold(key, 'dropout', 'bottom'))
    logits = features @ server.student['top'] * linear.factor(rng.fold(key, 'dropout', 'top'))
    labels = np.asarray(data.server_labels[data.server_index[rows]])[:2]
    expected = linear.cross_entropies(logits, labels).mean()
    np.testing.assert_allclose(metrics['loss_supervised'], expected, rtol=1e-4)
    np.testing.assert_allclose(metrics['supervised_accuracy'], np.mean(logits.argmax(axis=1) == labels))
