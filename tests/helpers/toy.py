"""Small experiments for tests: a tiny federation, a tiny model with BatchNorm and dropout, cheap random views."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import models
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Cohort, Federation, Views
from semisfl_jax.models.layers import Compute, ConvLayer, DenseLayer
from semisfl_jax.models.zoo import Architecture

SHAPE, CLASSES = (6, 6, 1), 3


def noisy(amount):
    """A view that shifts all pixels of an image by a random number up to `amount`."""

    def view(key, images):
        shift = jax.random.randint(key, (images.shape[0], 1, 1, 1), -amount, amount + 1)
        return jnp.clip(images.astype(jnp.int32) + shift, 0, 255).astype(jnp.uint8)

    return view


VIEWS = Views(*map(jax.jit, (noisy(5), noisy(40), noisy(20))), lambda images: images.astype(jnp.float32) / 32.0 - 4.0)

HPARAMS = HParams(
    k_u=3,
    batch_size=4,
    server_batch_size=5,
    lr=0.02,
    lr_min=0.005,
    lr_rounds=4,
    threshold=0.98,
    queue_size=9,
    queue_stride=2,
)


@functools.cache
def model(split_index=None, projection='mlp', axes=(), top_norm=False, variance='biased', dtype='float32'):
    """conv (BatchNorm, pool) | conv (BatchNorm if `top_norm`) | dense with dropout | dense."""
    conv = partial(ConvLayer, compute=Compute(dtype, 'patches', variance))
    layers = (
        partial(conv, 4, norm=True, pool='floor'),
        partial(conv, 5, norm=top_norm),
        partial(DenseLayer, 8, dropout=0.3),
        partial(DenseLayer, CLASSES, activation=False),
    )
    cut = models.cut(Architecture(layers, paper_split=2), SHAPE, split_index, projection, 7, axes=axes)
    return cut._replace(  # compiled, for code that calls them step by step
        bottom=jax.jit(cut.bottom, static_argnums=3),
        top=jax.jit(cut.top, static_argnums=3),
        project=jax.jit(cut.project),
    )


def federation(clients=5, labels_at_clients=False, seed=0):
    """Images whose brightness pattern tells their class; client n holds 3 + 4 n unlabeled images."""
    rng = np.random.default_rng(seed)
    sizes = [3 + 4 * n for n in range(clients)]
    labeled_sizes = list(range(clients)) if labels_at_clients else [0] * clients
    patterns = rng.integers(0, 256, (CLASSES, *SHAPE))

    def images(labels):
        return np.clip(patterns[labels] + rng.integers(-60, 61, (len(labels), *SHAPE)), 0, 255).astype(np.uint8)

    server_labels = np.arange(12, dtype=np.int32) % CLASSES
    client_labels = rng.integers(0, CLASSES, sum(sizes) + sum(labeled_sizes)).astype(np.int32)
    index = np.zeros((clients, max(sizes)), np.int32)
    labeled_index = np.zeros((clients, max(labeled_sizes)), np.int32)
    start = 0
    for table, counts in ((index, sizes), (labeled_index, labeled_sizes)):
        for n, count in enumerate(counts):
            table[n, :count] = start + np.arange(count)
            start += count
    arrays = (images(server_labels), server_labels, images(client_labels), client_labels)
    counts = (np.array(count, np.int32) for count in (sizes, labeled_sizes))
    arrays += (np.arange(12, dtype=np.int32), index, next(counts), labeled_index, next(counts))
    return Federation(*map(jnp.asarray, arrays))


def cohort(ids, visits=None):
    visits = [0] * len(ids) if visits is None else visits
    return Cohort(jnp.asarray(ids, jnp.int32), jnp.ones(len(ids)), jnp.asarray(visits, jnp.int32))
