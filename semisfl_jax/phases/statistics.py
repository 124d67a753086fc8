"""BatchNorm's statistics, taken afresh from images that the federation holds, as in SemiFL."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from semisfl_jax import rng, sampling
from semisfl_jax.models import SplitModel, static_batch_norm
from semisfl_jax.types import Array, Federation, SplitParams, Views


def build_statistics(
    model: SplitModel, views: Views, whose: str, batch_size: int
) -> Callable[[Array, SplitParams, Federation], SplitParams]:
    """Builds the pass over un-augmented images that gives a model its statistics.

    Args:
      model: the model; without BatchNorm there is nothing to do, and nothing is done.
      views: for the normalization.
      whose: 'all': the labeled images of the server and the unlabeled ones of all clients, which must lie on the
        device; 'server': the server's alone.
      batch_size: B, images at a time. Every batch counts the same; the images stand in one fixed random order, and the
        last batch is filled up with some that were there before.

    Returns:
      run(key, variables, federation) -> the variables with new statistics; `key` is the root key.
    """

    def run(key: Array, variables: SplitParams, federation: Federation) -> SplitParams:
        if not any(piece.get('batch_stats') for piece in (variables.bottom, variables.top)):
            return variables
        held = federation.server_index
        labeled, batch = held.shape[0], batch_size
        if whose == 'server':
            count, most, batch = jnp.int32(labeled), labeled, min(batch, labeled)
        else:
            count, most = labeled + jnp.sum(federation.size), labeled + federation.index.size
        key = rng.fold(key, 'batch_norm')
        seed_bits = jax.random.bits(rng.fold(key, 'order'))

        def images(t: Array) -> Array:
            place = sampling.read(seed_bits, t * batch + jnp.arange(batch), count)
            found = federation.server_images[held[jnp.minimum(place, labeled - 1)]]
            if whose == 'all':
                others = federation.client_images[sampling.row_of_all(federation, jnp.maximum(place - labeled, 0))]
                found = jnp.where((place < labeled)[:, None, None, None], found, others)
            return views.normalize(found)

        batches = jnp.arange(-(-most // batch))
        return static_batch_norm.recompute(model, variables, batches, key, images, count=-(-count // batch))

    return run
