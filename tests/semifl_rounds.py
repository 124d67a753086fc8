"""SemiFL on the toy model: programs, first states and rounds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from semisfl_jax import algorithms
from semisfl_jax.algorithms.semifl import SemiFL
from semisfl_jax.core import rng
from semisfl_jax.core.types import LOCAL_CLIENTS
from tests import toy

FEDERATION = toy.federation()
PASS = {'pass_batch_size': 8}  # several batches to label a client, and the last one filled up
SMALL = dataclasses.replace(toy.HPARAMS, k_u=2, num_clients=5, threshold=0.55, lr_min=0.02, options=SemiFL(**PASS))
MODEL = toy.model(split_index=1, top_norm=True)


@functools.cache
def program(name, axis, hparams, model):
    algorithm = algorithms.build(name, model, toy.VIEWS, hparams, axis)
    return algorithm, jax.jit(algorithm.round)


def build(name='semifl', axis=LOCAL_CLIENTS, model=MODEL, **changes):
    """Method and compiled round."""
    return program(name, axis, dataclasses.replace(SMALL, **changes), model)


def first(algorithm, louder=2.5):
    """The first state, its logits `louder` than they come, so that some are confident."""
    state = algorithm.init(rng.root(0))
    return state.replace(student=state.student._replace(top=jax.tree.map(lambda w: louder * w, state.student.top)))


def play(ids, state=None, k_s=1, weight=None, federation=FEDERATION, **changes):
    """One round; state and metrics."""
    algorithm, run = build(**changes)
    cohort = toy.cohort(ids)
    cohort = cohort if weight is None else cohort._replace(weight=jnp.asarray(weight, jnp.float32))
    return run(rng.root(0), first(algorithm) if state is None else state, federation, cohort, jnp.int32(k_s))
