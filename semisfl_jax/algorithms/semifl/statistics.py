"""BatchNorm statistics recomputed from the federation's images, as in SemiFL."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from semisfl_jax.core import rng, sampling
from semisfl_jax.core.types import Array, Federation, SplitParams, Views
from semisfl_jax.models import SplitModel, static_batch_norm


def build_statistics(
    model: SplitModel, views: Views, whose: str, batch_size: int
) -> Callable[[Array, SplitParams, Federation], SplitParams]:
    """Builds the pass over unaugmented images that computes a model's statistics.

    Args:
      model: the model; without BatchNorm its variables are returned unchanged.
      views: for normalization.
      whose: 'all': the labeled images of the server and the unlabeled ones of all clients, which must be on the
        device; 'server': only the server's.
      batch_size: B, images at a time. Every batch has the same weight; the images are in one fixed random order, and
        the last batch is filled with images from the sequence's next epoch, which repeat earlier ones.

    Returns:
      run(key, variables, federation) -> the variables with new statistics; `key` is the root key.
    """

    def run(key: Array, variables: SplitParams, federation: Federation) -> SplitParams:
        if not any(piece.get('batch_stats') for piece in (variables.bottom, variables.top)):
            return variables
        labeled_rows = federation.server_index
        labeled, batch = labeled_rows.shape[0], batch_size
        if whose == 'server':
            count, most, batch = jnp.int32(labeled), labeled, min(batch, labeled)
        else:
            count, most = labeled + jnp.sum(federation.size), labeled + federation.index.size
        key = rng.fold(key, 'batch_norm')
        seed_bits = jax.random.bits(rng.fold(key, 'order'))

        def images(t: Array) -> Array:
            positions = sampling.read(seed_bits, t * batch + jnp.arange(batch), count)
            batch_images = federation.server_images[labeled_rows[jnp.minimum(positions, labeled - 1)]]
            if whose == 'all':
                client_images = federation.client_images[
                    sampling.row_of_all(federation, jnp.maximum(positions - labeled, 0))
                ]
                batch_images = jnp.where((positions < labeled)[:, None, None, None], batch_images, client_images)
            return views.normalize(batch_images)

        batches = jnp.arange(-(-most // batch))
        return static_batch_norm.recompute(model, variables, batches, key, images, count=-(-count // batch))

    return run
