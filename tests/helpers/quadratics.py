"""Four clients that minimize quadratics, for methods built with an objective: what is reached can be computed.

F_k(x) = (x - b_k)' A_k (x - b_k) / 2 with two variables. Images of client k have the value k in all pixels, from which
the objective knows the client. Clients have 13, 20, 35 and 17 images in batches of four: 3, 5, 8 and 4 steps.
"""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.algorithms.fed_shvr import Form
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import HParams, Local
from semisfl_jax.core.types import Federation, SplitParams
from semisfl_jax.models import SplitModel
from tests.helpers import toy

A = np.array([[[2.0, 0.3], [0.3, 0.5]], [[0.4, 0.0], [0.0, 3.0]], [[1.0, -0.4], [-0.4, 0.6]], [[3.0, 0.5], [0.5, 2.0]]])
B = np.array([[1.0, -1.0], [-2.0, 0.5], [0.5, 2.0], [-1.0, -1.5]])
IMAGES, STEPS = [13, 20, 35, 17], [3, 5, 8, 4]
WEIGHTS = np.array(IMAGES) / np.sum(IMAGES)
HPARAMS = HParams(
    batch_size=4,
    server_trains=False,
    num_clients=4,
    lr=0.05,
    lr_min=0.05,
    momentum=0.0,
    nesterov=False,
    weight_decay=0.0,
    local=Local(epochs=1, steps='longest', weighting='samples'),
)
FORMS = {
    'Fed-SHVR': Form(corrected=True, normalized=True),
    'Fed-SVR': Form(corrected=True, normalized=False),
    'Fed-SH': Form(corrected=False, normalized=True),
    'FedAvg': Form(corrected=False, normalized=False),
}


def minimizer(weights):
    """Of sum_k weights_k F_k: sum_k w_k A_k x = sum_k w_k A_k b_k."""
    return np.linalg.solve(np.einsum('k,kij->ij', weights, A), np.einsum('k,kij,kj->i', weights, A, B))


def objective_in(round_index):
    """The objective of every round."""

    def objective(parameters, student, labeler, batch, key, progress):
        k = batch.images[0, 0, 0, 0].astype(jnp.int32)
        aside = parameters.bottom['x'] - jnp.asarray(B)[k]
        value = 0.5 * aside @ jnp.asarray(A)[k] @ aside
        return value, (student, {'loss_local': value}, {})

    return objective


def model():
    """Two variables and nothing else."""

    def init(key):
        return SplitParams(bottom={'params': {'x': jnp.zeros(2)}}, top={'params': {}}, proj={'params': {}})

    return SplitModel(init, *[None] * 4, 0, 0)


def federation():
    images = np.repeat(np.arange(4), IMAGES).astype(np.uint8)[:, None, None, None]
    index = np.zeros((4, max(IMAGES)), np.int32)
    for k, start in enumerate(np.cumsum([0, *IMAGES[:-1]])):
        index[k, : IMAGES[k]] = start + np.arange(IMAGES[k])
    none = np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.int32)
    clients = images, np.zeros(len(images), np.int32)
    tables = np.zeros(1, np.int32), index, np.array(IMAGES, np.int32), np.zeros((4, 0), np.int32), np.zeros(4, np.int32)
    return Federation(*map(jnp.asarray, (*none, *clients, *tables)))


def path(build, form, rounds):
    """The model before every round and after the last, [rounds + 1, 2], of `algorithms.fed_shvr.build` in a form."""
    algorithm = build(form, model(), toy.VIEWS, HPARAMS, objective_in=objective_in)
    state, run, data = algorithm.init(rng.root(0)), jax.jit(algorithm.round), federation()
    found = [state.student.bottom['params']['x']]
    for visit in range(rounds):
        state, _ = run(rng.root(0), state, data, toy.cohort([0, 1, 2, 3], [visit] * 4), jnp.int32(0))
        found.append(state.student.bottom['params']['x'])
    return np.asarray(found, np.float64)
