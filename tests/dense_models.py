"""Dense models narrow enough for tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import models
from semisfl_jax.models.dense_zoo import DeepLabV3, DeepLabV3Plus, ResNet, SceneDecoder, SceneEncoder

SHAPE = (18, 21, 3)


# Encoder, decoder of two outputs: the kinds of the models by name, at a fraction of their width.
NARROW = {
    'scene_net': (SceneEncoder(3, (4, 5, 6)), SceneDecoder(2, width=4)),
    'deeplabv3': (ResNet((1, 1, 1, 1), False, 16, False, 4, (4, 4, 5, 6)), DeepLabV3(2, (1, 2, 3), width=4)),
    'deeplabv3plus': (
        ResNet((1, 1, 1, 1), True, 8, True, 4, (2, 2, 3, 2)),
        DeepLabV3Plus(2, (1, 2, 3), width=4, low_width=3),
    ),
}


@functools.cache
def narrow(name):
    """A small model and its variables."""
    model = models.encoder_decoder(*NARROW[name], SHAPE)
    return model, jax.jit(model.init)(jax.random.key(0))


def images(rows, seed=1):
    return jax.random.normal(jax.random.key(seed), (rows, *SHAPE))


def assert_close(got, expected):
    for path, wanted in jax.tree_util.tree_leaves_with_path(expected):
        leaf = functools.reduce(lambda tree, key: tree[getattr(key, 'key', getattr(key, 'idx', None))], path, got)
        scale = float(jnp.max(jnp.abs(wanted)))
        np.testing.assert_allclose(leaf, wanted, rtol=1e-3, atol=1e-4 * scale + 1e-7, err_msg=str(path))
