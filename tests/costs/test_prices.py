"""Operations, memory and parameters of models against numbers worked out by hand."""

import types

import jax
import jax.numpy as jnp
import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.costs import prices
from semisfl_jax.costs.prices import ModelSpec, measure
from tests.helpers import toy_scenes


def conv(side, kernel, inputs, outputs, padded):
    """Multiplications and additions of a convolution, the kernel's place off the image left out."""
    hits = (3 * side - 2) ** 2 if padded else side**2 * kernel**2
    return 2 * hits * inputs * outputs


# Of each layer: products, numbers that leave it (bias and ReLU on each), whether it pools (three comparisons a window)
ALEXNET = [
    (conv(32, 3, 3, 64, True), 16**2 * 64, 1),
    (conv(16, 3, 64, 192, True), 8**2 * 192, 1),
    (conv(8, 3, 192, 384, True), 8**2 * 384, 0),
    (conv(8, 3, 384, 256, True), 8**2 * 256, 0),
    (conv(8, 3, 256, 256, True), 4**2 * 256, 1),
    (2 * 4096 * 4096, 4096, 0),
    (2 * 4096 * 4096, 4096, 0),
]
CNN = [(conv(28, 5, 3, 32, False), 14**2 * 32, 1), (conv(10, 5, 32, 64, False), 5**2 * 64, 1), (2 * 1600 * 512, 512, 0)]


@pytest.mark.slow
def test_a_model_registered_anew_is_measured_anew(monkeypatch):
    """Under the name of another one, as in a notebook whose cell runs again: 3 * 6 + 6 + 6 * 6 + 6 parameters of two
    dense layers and 2 * 6 of a BatchNorm, in place of the 83,824 of scene_net's encoder."""
    spec = prices.DenseSpec('scene_net', 3, (16, 16, 3), 8)
    before = prices.measure(spec).bottom_parameters
    toy_scenes.small_model(monkeypatch)
    assert (before, prices.measure(spec).bottom_parameters) == (4 * 83_824, 4 * 78)


def test_operations_are_counted_on_the_cpu_wherever_a_run_is(monkeypatch):
    """GPUs and TPUs count none of a program that is not compiled."""
    seen = []

    def product(x):
        seen.append(jax.config.jax_default_device)
        return x @ x

    assert prices._operations(product, jnp.ones((3, 3))) == 2 * 3**3
    assert [device.platform for device in seen] == ['cpu']
    monkeypatch.setattr(jax, 'local_devices', lambda backend: jax.devices('no such platform'))
    with pytest.raises(UserError, match='leaves out the CPU'):
        prices._operations(product, jnp.ones((3, 3)))


@pytest.mark.parametrize(
    ('name', 'layers', 'cuts'),
    [pytest.param('alexnet', ALEXNET, (1, 5, 7), marks=pytest.mark.slow), ('cnn', CNN, (1, 2, 3))],
)
def test_operations_of_a_client_by_hand(name, layers, cuts):
    for cut in cuts:
        pieces = measure(ModelSpec(name, 10, (32, 32, 3), cut, 'linear', 16))
        products = [product for product, _, _ in layers[:cut]]
        forward = sum(products) + sum((2 + 3 * pools) * size for _, size, pools in layers[:cut])
        assert pieces.bottom_work.forward == pytest.approx(forward, rel=1e-6)
        # Backward: the gradient of each kernel and of each input but the images, as many products as forward each.
        train = 3 * sum(products) - products[0]
        assert train <= pieces.bottom_work.train <= train + 25 * sum(size for _, size, _ in layers[:cut])
        assert pieces.feature_size == layers[cut - 1][1]


def test_operations_of_the_top_and_the_head():
    pieces = measure(ModelSpec('cnn', 10, (32, 32, 3), 2, 'mlp', 128))
    products = 2 * (1600 * 512 + 512 * 10)
    assert products <= pieces.top_work.forward <= 1.001 * products
    assert 3 * products <= pieces.top_work.train <= 1.01 * 3 * products  # with the gradient of the features
    head = 2 * (1600 * 1600 + 1600 * 128)
    assert head <= pieces.head_work.forward <= 1.01 * head
    assert 2 * 128 <= pieces.pair_work.forward <= 2 * 128 + 20
    assert 4 * 128 <= pieces.pair_work.train <= 4 * 128 + 40


def test_a_client_holds_weights_gradient_and_momentum():
    """Of 100 bytes with 20 of statistics, which have neither; the teacher's part, and 3 images."""
    pieces = types.SimpleNamespace(bottom=100, bottom_parameters=80, bottom_activations=7)
    assert prices.client_memory(pieces, 3, teacher=False) == 100 + 80 + 80 + 3 * 7
    assert prices.client_memory(pieces, 3, teacher=True) == 100 + 80 + 80 + 100 + 3 * 7


def test_activations_are_those_of_the_convolutions():
    """What the backward pass needs at least: images, the input of the second layer, who won each pool."""
    pieces = measure(ModelSpec('cnn', 10, (32, 32, 3), 2, 'mlp', 128))
    needed = 4 * 32 * 32 * 3 + 4 * 14 * 14 * 32 + 14 * 14 * 32 + 5 * 5 * 64
    assert needed <= pieces.bottom_activations <= 3 * needed
