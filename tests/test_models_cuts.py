"""Where a model may be cut, and that a cut changes nothing that it computes."""

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.core.errors import UserError
from semisfl_jax.models import layers, zoo
from semisfl_jax.models.split import Stack
from tests.architectures import SHAPES
from tests.marks import slow_but

CUTS = {'alexnet': (1, 5, 6), 'resnet9': (3, 6), 'resnet9_plain': (2,), 'wresnet28x2': (1, 6)}


@pytest.mark.parametrize('name', slow_but(['small_cnn', 'cnn', *CUTS], 'small_cnn'))
def test_any_cut_computes_the_uncut_model_and_its_gradient(name):
    """Bottom and top of every cut, glued together, are the uncut model: same logits, same gradient."""
    shape = (12, 12, 3) if 'resnet' in name else SHAPES[name]
    architecture = zoo.ARCHITECTURES[name](10, layers.FLOAT32)
    uncut = Stack(architecture.layers)
    images = jax.random.normal(jax.random.key(1), (2, *shape))
    variables = uncut.init(jax.random.key(0), images, train=False)
    parameters, statistics = variables['params'], {'batch_stats': variables.get('batch_stats', {})}
    target = jnp.arange(10.0)
    expected, gradient = jax.value_and_grad(
        lambda p: jnp.sum(uncut.apply({'params': p, **statistics}, images, train=False) @ target)
    )(parameters)
    for index in CUTS.get(name, range(1, len(architecture.layers))):
        model = models.build(name, 10, shape, split_index=index, convolution='native')
        bottom = {'params': {f'layer_{i}': parameters[f'layer_{i}'] for i in range(index)}}
        top = {'params': {f'layer_{i}': parameters[f'layer_{i}'] for i in range(index, len(architecture.layers))}}

        # the explicit exchange: features up, their gradient down
        features, client_backward = jax.vjp(
            lambda p, model=model: model.bottom({'params': p, **statistics}, images, None, False)[0], bottom['params']
        )
        assert features.shape == (2, model.feature_size)
        (value, (top_gradient, down)) = jax.value_and_grad(
            lambda p, e, model=model: jnp.sum(model.top({'params': p, **statistics}, e, None, False)[0] @ target),
            argnums=(0, 1),
        )(top['params'], features)
        (bottom_gradient,) = client_backward(down)
        np.testing.assert_allclose(value, expected, rtol=1e-4)
        flat = flax.traverse_util.flatten_dict({**bottom_gradient, **top_gradient})
        for path, leaf in flax.traverse_util.flatten_dict(gradient).items():
            np.testing.assert_allclose(
                flat[path], leaf, rtol=1e-3, atol=1e-4 * float(jnp.max(jnp.abs(leaf))), err_msg=str(path)
            )


# Where the heads of the authors' code drop half of the numbers: before the first, second and third dense layer.
# AlexNet: Dropout, Linear, ReLU, Dropout, Linear, ReLU, Linear.
# VGG: Linear, ReLU, Dropout, Linear, ReLU, Dropout, Linear.
DROPPED = {'alexnet': (0.5, 0.5, 0.0), 'vgg13': (0.0, 0.5, 0.5), 'vgg16': (0.0, 0.5, 0.5)}


@pytest.mark.parametrize('layer', [0, 1, 2])
@pytest.mark.parametrize('name', slow_but(DROPPED, 'vgg13'))
def test_dropout_stands_where_the_authors_have_it(name, layer):
    """A gradient that passes a dropout is exactly zero where the number was dropped, in half of the places. At the
    paper's cut (layer 0) this is the gradient that reaches the clients."""
    architecture = zoo.ARCHITECTURES[name](10, layers.FLOAT32, (4, 4, 4, 4, 8), dense=96)
    index = architecture.paper_split + layer
    model = models.cut(architecture, (16, 16, 3), index, 'linear', 8)
    variables = jax.jit(model.init)(jax.random.key(0))
    features = jax.random.normal(jax.random.key(1), (64, model.feature_size))

    def cross_entropy(features, key, train):
        logits, _ = model.top(variables.top, features, key, train)
        return -jnp.mean(jax.nn.log_softmax(logits)[:, 0])

    gradient = jax.jit(jax.grad(cross_entropy), static_argnums=2)
    share = float(jnp.mean(gradient(features, jax.random.key(2), True) == 0.0))
    dropped = DROPPED[name][layer]
    deviation = (0.25 / features.size) ** 0.5  # of the share of heads in so many tosses of a coin
    assert abs(share - dropped) <= (5 * deviation if dropped else 0.0)

    plain = gradient(features, jax.random.key(2), False)
    np.testing.assert_array_equal(plain, gradient(features, jax.random.key(3), False))  # evaluation draws nothing
    assert not jnp.any(plain == 0.0)


@pytest.mark.parametrize('index', [0, 4, -1, 17])
def test_cut_out_of_range(index):
    with pytest.raises(UserError, match=rf'split_index={index}: .* use 1 to 3'):
        models.build('small_cnn', 10, (8, 8, 1), split_index=index)
