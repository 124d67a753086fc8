"""FedAvg and its kin on the toy model: settings, first states and rounds."""

import dataclasses

import jax
import jax.numpy as jnp

from semisfl_jax import algorithms
from semisfl_jax.core import rng
from semisfl_jax.core.types import LOCAL_CLIENTS
from tests import toy

FEDERATION = toy.federation(labels_at_clients=True)
# The server does nothing, so that a twin needs clients alone. Some rows reach this threshold, some do not.
CLIENTS = dataclasses.replace(toy.HPARAMS, k_u=2, num_clients=5, server_trains=False, threshold=0.7, labeled_rows=1)
ROUNDS = (([0, 2, 4], [0, 0, 0]), ([1, 2, 4], [0, 1, 1]))  # cohort and its visits; client 0 has no label


def start(name='fedavg', axis=LOCAL_CLIENTS, louder=3.0, **changes):
    """Method, key and first state, its logits `louder` than they come."""
    hparams = dataclasses.replace(CLIENTS, **changes)
    algorithm = algorithms.build(name, toy.model(), toy.VIEWS, hparams, axis)
    state = algorithm.init(rng.root(0))
    student = state.student._replace(top=jax.tree.map(lambda w: louder * w, state.student.top))
    teacher = jax.tree.map(lambda w: 1.1 * w, student) if state.teacher else ()
    return algorithm, rng.root(0), state.replace(student=student, teacher=teacher), hparams


def two_rounds(name, changes):
    algorithm, key, state, _ = start(name, **changes)
    run, results = jax.jit(algorithm.round), []
    for ids, visits in ROUNDS:
        state, metrics = run(key, state, FEDERATION, toy.cohort(ids, visits), jnp.int32(0))
        results.append((state, metrics))
    return results
