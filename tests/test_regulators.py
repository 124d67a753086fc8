"""FedDure's regulators: F-reg by hand, and its gradient against differentiation through the virtual step."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.algorithms import feddure
from semisfl_jax.core import losses, rng
from semisfl_jax.models import lowerings
from semisfl_jax.models.layers import Compute, ConvLayer, DenseLayer
from tests import toy
from tests.marks import slow_but

RATE = 0.3


def test_f_reg_has_the_papers_1537_parameters_as_pytorch_draws_them():
    w = feddure.init_fine(rng.root(0), 10, 128)
    assert sum(x.size for x in jax.tree.leaves(w)) == 10 * 128 + 128 + 128 + 1 == 1_537
    for name, inputs in (('hidden', 10), ('out', 128)):
        values = np.abs(np.concatenate([np.ravel(x) for x in w[name].values()]))
        assert 0.9 / np.sqrt(inputs) < values.max() <= 1 / np.sqrt(inputs)


def test_factors_by_hand():
    """Of (0.2, 0.8): ReLU(0.2 - 0.8 + 0.1, 0.4 + 0.8) = (0, 1.2), sigmoid(1.2 * 2 - 0.4) = sigmoid(2)."""
    hidden = {'kernel': jnp.array([[1.0, 2.0], [-1.0, 1.0]]), 'bias': jnp.array([0.1, 0.0])}
    w = {'hidden': hidden, 'out': {'kernel': jnp.array([[5.0], [2.0]]), 'bias': jnp.array([-0.4])}}
    factors = feddure.weigh(w, jnp.array([[0.2, 0.8], [1.0, 0.0]]))
    np.testing.assert_allclose(factors, 1 / (1 + np.exp([-2.0, -(5 * 1.1 + 2 * 2.0 - 0.4)])), rtol=1e-6)


class Network(nn.Module):
    """The package's layers with BatchNorm, pooling and dropout, all in float64."""

    @nn.compact
    def __call__(self, x):
        compute = Compute('float64', 'direct')
        x = ConvLayer(4, norm=True, pool='floor', compute=compute)(x, True)
        x = ConvLayer(5, norm=True, compute=compute)(x, True)
        return DenseLayer(toy.CLASSES, dropout=0.3, activation=False, compute=compute)(x, True)


def scene():
    """Parameters, three labeled images, four with pseudo-labels, and F-reg."""
    draw, data = np.random.default_rng(1), toy.federation()
    images = jnp.asarray(np.asarray(data.client_images[:7]) / 32.0 - 4.0)
    labels = jnp.array([2, 0, 1, 0, 1, 2, 1])
    shapes = jax.eval_shape(lambda: Network().init(rng.root(1), images[:2]))
    variables = jax.tree.map(lambda x: jnp.asarray(draw.normal(scale=0.3, size=x.shape)), shapes)
    w = jax.tree.map(lambda x: jnp.asarray(3.0 * x, jnp.float64), feddure.init_fine(rng.root(2), toy.CLASSES, 16))

    def logits(parameters, x, name):
        dropout = {'dropout': rng.fold(rng.root(3), name)}
        return Network().apply(variables | {'params': parameters}, x, rngs=dropout, mutable=['batch_stats'])[0]

    def rows(parameters):
        predicted = logits(parameters, images[3:], 'u')
        return losses.cross_entropy_rows(predicted, labels[3:]), jax.nn.softmax(predicted)

    def labeled(parameters):
        return jnp.mean(losses.cross_entropy_rows(logits(parameters, images[:3], 'x'), labels[:3]))

    return variables['params'], rows, labeled, w


def after_virtual_step(w, parameters, rows, labeled):
    """The labeled loss in which the step is taken by differentiation of the weighted loss, its factors numbers."""

    def weighted(parameters):
        values, probabilities = rows(parameters)
        return jnp.mean(feddure.weigh(w, jax.lax.stop_gradient(probabilities)) * values)

    gradient = jax.grad(weighted)(parameters)
    return labeled(jax.tree.map(lambda phi, g: phi - RATE * g, parameters, gradient))


def test_its_gradient_is_that_of_the_whole_step():
    """Against JAX, which takes second derivatives, and against differences."""
    with jax.enable_x64():
        parameters, rows, labeled, w = scene()

        def own(w):
            return feddure.fine_gradient(w, feddure.differentiate(rows, parameters), labeled, parameters, RATE)

        def through(w):
            return after_virtual_step(w, parameters, rows, labeled)

        got, expected, value = jax.device_get((jax.jit(own)(w), jax.jit(jax.grad(through))(w), jax.jit(through)))
        largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(expected))
        assert largest > 1e-4
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12 * largest)
        draw = np.random.default_rng(5)
        for _ in range(3):
            direction = jax.tree.map(lambda x: draw.normal(size=x.shape), w)
            above, below = (
                value(jax.tree.map(lambda x, d, step=step: x + step * d, w, direction)) for step in (1e-5, -1e-5)
            )
            slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: np.sum(g * d), got, direction)))
            np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-5)


def test_it_is_minus_rate_over_rows_times_the_products_of_gradients():
    """By a factor of the rows: -rate / R <v, gradient of CE_i>, v the labeled gradient after the step. Here with
    gradients computed row by row."""
    with jax.enable_x64():
        parameters, rows, labeled, w = scene()

        @jax.jit
        def both(w):
            unlabeled = feddure.differentiate(rows, parameters)
            factors, pullback = jax.vjp(lambda w: feddure.weigh(w, unlabeled.probabilities), w)
            by_row = [jax.grad(lambda parameters, row=row: rows(parameters)[0][row])(parameters) for row in range(4)]
            mean = jax.tree.map(lambda *g: sum(factors[row] * g[row] for row in range(4)) / 4, *by_row)
            v = jax.grad(labeled)(jax.tree.map(lambda phi, g: phi - RATE * g, parameters, mean))
            products = [
                sum(jax.tree.leaves(jax.tree.map(lambda g, v: jnp.sum(g * v), gradient, v))) for gradient in by_row
            ]
            expected = mean, pullback(-RATE / 4 * jnp.stack(products))[0]
            gradient = feddure.fine_gradient(w, unlabeled, labeled, parameters, RATE)
            return (unlabeled.gradient(factors), gradient), expected

        got, expected = both(w)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize('rate', [0.0, RATE])
def test_where_nothing_can_be_learned_it_is_zero(rate):
    """A labeled loss that does not depend on the step, or no step."""
    parameters = {'a': jnp.array([1.0, -2.0]), 'b': jnp.array([0.5])}

    def rows(parameters):  # which depend on `a` alone
        return parameters['a'] ** 2, jax.nn.softmax(jnp.outer(parameters['a'], jnp.arange(3.0)))

    def labeled(parameters):
        return jnp.sum(parameters['b' if rate else 'a'] ** 2)

    w = feddure.init_fine(rng.root(0), 3, 8)
    gradient = feddure.fine_gradient(w, feddure.differentiate(rows, parameters), labeled, parameters, rate)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_counts_by_hand():
    """Row 0 is labeled; 1 is right, 2 wrong, of 3 nobody knows, 4 is right and not confident."""
    labels, truth = jnp.array([0, 1, 1, 2, 2]), jnp.array([0, 1, 0, -1, 2])
    confident, guessed = jnp.array([True, True, True, True, False]), jnp.array([False, True, True, True, True])
    counts = feddure.count(labels, confident, truth, guessed, jnp.array([9.0, 0.5, 0.25, 9.0, 0.0]))
    found = {name: float(value) for name, value in feddure.rates(counts).items()}
    assert found == {'mask_rate': 0.75, 'pseudo_label_accuracy': 0.5, 'weight_right': 0.25, 'weight_wrong': 0.25}


@pytest.mark.parametrize(
    ('size', 'padding', 'stride'),
    slow_but([(3, 1, 1), (5, 0, 1), (1, 0, 2), (3, 1, 2), (5, 2, 3)], (3, 1, 1), (3, 1, 2)),
)
def test_gradients_of_gradients_of_direct_convolutions(size, padding, stride):
    """Those of XLA's own, which JAX differentiates as often as it is asked to; and all are convolutions that stay fast
    inside loops on a CPU."""
    draw = np.random.default_rng(1)
    x, kernel = draw.normal(size=(2, 9, 8, 3)), draw.normal(size=(size, size, 3, 4))
    tangents = draw.normal(size=x.shape), draw.normal(size=kernel.shape)

    def second(convolve, x, kernel, out, tangents):
        def gradients(x, kernel, out):
            return jax.vjp(lambda x, kernel: convolve(x, kernel, padding, stride), x, kernel)[1](out)

        return jax.vjp(gradients, x, kernel, out)[1](tangents)

    with jax.enable_x64():
        out = draw.normal(size=lowerings.native(x, kernel, padding, stride).shape)
        arrays = (*map(jnp.asarray, (x, kernel, out)), tuple(map(jnp.asarray, tangents)))
        got, expected = (second(lowerings.LOWERINGS[name], *arrays) for name in ('direct', 'native'))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
