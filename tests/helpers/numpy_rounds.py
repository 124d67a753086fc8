"""Rounds on a model of three matrices, compared with the same rounds in NumPy (linear.py, linear_local.py)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import algorithms
from semisfl_jax.core import rng
from tests.helpers import linear, linear_local, toy

# Cohort, its visits, K_s. Client 0 has no labeled image. Beside the cohort stand a client of weight 0 and, in `ROUNDS`
# alone, one without images.
ROUNDS = (([4, 0, 2], [0, 0, 0], 3), ([1, 2, 4], [0, 1, 1], 2))
EMPTY = 3  # the client without images


@functools.cache
def federation():
    """Client `EMPTY` has no image."""
    found = toy.federation(labels_at_clients=True)
    sizes = found.size.at[EMPTY].set(0), found.labeled_size.at[EMPTY].set(0)
    return found.replace(size=sizes[0], labeled_size=sizes[1])


def start(name, changes):
    hparams = dataclasses.replace(toy.HPARAMS, **{'threshold': 0.8} | changes)
    algorithm = algorithms.build(name, linear.model(), toy.VIEWS, hparams)
    return algorithm, hparams, algorithm.init(rng.root(0))


def cohort(ids, visits):
    """With the client without images, and padding: a copy of a client, of weight 0."""
    found = toy.cohort([*ids, EMPTY, 2], [*visits, 0, 0])
    return found._replace(weight=found.weight.at[-1].set(0.0))


def check_split(name, changes):
    """Compares two rounds of a method that cuts the model, and one in which nobody takes part."""
    algorithm, hparams, state = start(name, changes)
    server = linear.Server(
        rng.root(0), hparams, state.student, hparams.options.mode if name == 'fedswitch_sl' else 'teacher'
    )
    server.contrasts = name == 'semisfl'
    run, rates, data = jax.jit(algorithm.round), [], federation()
    for ids, visits, k_s in ROUNDS:
        state, metrics = run(rng.root(0), state, data, cohort(ids, visits), jnp.int32(k_s))
        expected = server.run_round(data, ids, visits, k_s)
        for key, value in expected.items():
            np.testing.assert_allclose(metrics[key], value, rtol=2e-3, atol=1e-5, err_msg=key)
        linear.assert_close(state, server)
        rates.append(float(metrics['mask_rate']))
    assert any(0 < rate < 1 for rate in rates), rates  # rows on both sides of the threshold were compared
    padding = cohort(*ROUNDS[0][:2])
    lost = padding._replace(weight=jnp.zeros_like(padding.weight))
    state, _ = run(rng.root(0), state, data, lost, jnp.int32(1))
    assert run._cache_size() == 1, 'compiled again'
    server.run_round(data, [], [], 1)
    linear.assert_close(state, server)
    images = data.client_images[:6]
    x = np.asarray(toy.VIEWS.normalize(images), np.float64).reshape(6, -1)
    for who, logits in algorithm.predict(state, images).items():
        whole = getattr(server, who)
        np.testing.assert_allclose(logits, server.bottom(whole, x)[0] @ whole['top'], rtol=1e-3, atol=1e-3)


def check_whole(name, changes, kind=linear_local.Server, rates_vary=True, shares_vary=True):
    """Compares two rounds of a method of whole models. Client 0 has no label: it sits out where labels alone train."""
    algorithm, hparams, state = start(name, {'threshold': 0.7, 'num_clients': 5, 'k_u': 2, **changes})
    if state.teacher:
        state = state.replace(teacher=jax.tree.map(lambda w: 1.3 * w, state.teacher))
    server = kind(name, rng.root(0), hparams, state.student, state.teacher)
    run, rates, shares = jax.jit(algorithm.round), [], set()
    for ids, visits, k_s in ROUNDS:
        state, metrics = run(rng.root(0), state, federation(), cohort(ids, visits), jnp.int32(k_s))
        for key, value in server.run_round(federation(), ids, visits, k_s).items():
            np.testing.assert_allclose(metrics[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
        linear.assert_close(state, server, ('student', 'teacher') if state.teacher else ('student',))
        rates.append(float(metrics.get('mask_rate', 0.5)))
        shares.add(float(metrics.get('student_labels', 0.5)))
    assert run._cache_size() == 1, 'compiled again'
    assert not rates_vary or any(0 < rate < 1 for rate in rates), rates
    assert not shares_vary or shares - {0.0, 1.0}, 'all clients trust the same'
    images = federation().client_images[:6]
    x = np.asarray(toy.VIEWS.normalize(images), np.float64).reshape(6, -1)
    for who, logits in algorithm.predict(state, images).items():
        np.testing.assert_allclose(logits, server.logits(getattr(server, who), x), rtol=1e-3, atol=2e-3)
