"""The architectures at the sizes of their images, how many weights they have, and narrow ones of the same layers."""

import jax
import numpy as np

from semisfl_jax import models
from semisfl_jax.models import layers, zoo

SHAPES = {  # of all others (32, 32, 3)
    'small_cnn': (8, 8, 1),
    'vgg13': (96, 96, 3),
    'vgg16': (144, 144, 3),
    'mlp5000': (28, 28, 1),
    'mlp200': (28, 28, 1),
}
CLASSES = {'vgg16': 100}
NARROW = {
    'alexnet': {'channels': (6, 4, 4, 4, 8), 'dense': 96},
    'vgg13': {'channels': (4, 4, 4, 4, 8), 'dense': 96},
    'resnet9': {'channels': (3, 4, 5, 6)},
    'resnet9_plain': {'channels': (3, 4, 5, 6)},
    'wresnet28x2': {'channels': (4, 4, 6, 8), 'depth': 2},
    'cnn13': {'channels': (3, 4, 5, 4, 3)},
    'resnet50': {'depths': (2, 1), 'stem': 3, 'widths': (2, 3)},
}


def count(variables):
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def shapes(name, **options):
    model = models.build(name, CLASSES.get(name, 10), SHAPES.get(name, (32, 32, 3)), **options)
    return model, jax.eval_shape(model.init, jax.random.key(0))


def narrow(name, index=None, shape=(16, 16, 3), compute=layers.FLOAT32):
    architecture = zoo.ARCHITECTURES[name](4, compute, **NARROW.get(name, {}))
    return models.cut(architecture, shape, index, 'none', 0, compute)


def drawn(name, index=None, shape=(16, 16, 3)):
    """Variables of a narrow model, with scales, shifts and statistics unlike those it starts with."""
    draw = np.random.default_rng(1)

    def changed(path, leaf):
        of_norm = path[-1].key in ('scale', 'mean', 'var') or any('norm' in getattr(part, 'key', '') for part in path)
        return np.float32(draw.uniform(0.5, 1.5, leaf.shape)) if of_norm else np.asarray(leaf)

    return jax.tree_util.tree_map_with_path(changed, jax.jit(narrow(name, index, shape).init)(jax.random.key(0)))
