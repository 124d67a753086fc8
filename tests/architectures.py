"""The architectures at the sizes of their images, and how many weights they have."""

import jax

from semisfl_jax import models

SHAPES = {
    'small_cnn': (8, 8, 1),
    'cnn': (32, 32, 3),
    'alexnet': (32, 32, 3),
    'vgg13': (96, 96, 3),
    'vgg16': (144, 144, 3),
    'resnet9': (32, 32, 3),
    'resnet9_plain': (32, 32, 3),
    'wresnet28x2': (32, 32, 3),
}
CLASSES = {'vgg16': 100}


def count(variables):
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def shapes(name, **options):
    model = models.build(name, CLASSES.get(name, 10), SHAPES[name], **options)
    return model, jax.eval_shape(model.init, jax.random.key(0))
