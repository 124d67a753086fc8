"""Operations and memory of a client against numbers worked out by hand."""

import pytest

from semisfl_jax.costs.prices import ModelSpec, measure


def conv(side, kernel, inputs, outputs, padded):
    """Multiplications and additions of a convolution, the kernel's place off the image left out."""
    hits = (3 * side - 2) ** 2 if padded else side**2 * kernel**2
    return 2 * hits * inputs * outputs


ALEXNET = [
    conv(32, 3, 3, 64, True),
    conv(16, 3, 64, 192, True),
    conv(8, 3, 192, 384, True),
    conv(8, 3, 384, 256, True),
    conv(8, 3, 256, 256, True),
    2 * 4096 * 4096,
    2 * 4096 * 4096,
]
CNN = [conv(28, 5, 3, 32, False), conv(10, 5, 32, 64, False), 2 * 1600 * 512]


# Numbers that leave each layer, and whether it pools: bias and ReLU on each, three comparisons for a window.
ALEXNET_OUT = [
    (16**2 * 64, 1),
    (8**2 * 192, 1),
    (8**2 * 384, 0),
    (8**2 * 256, 0),
    (4**2 * 256, 1),
    (4096, 0),
    (4096, 0),
]
CNN_OUT = [(14**2 * 32, 1), (5**2 * 64, 1), (512, 0)]


@pytest.mark.parametrize(
    ('name', 'products', 'out', 'cuts'),
    [('alexnet', ALEXNET, ALEXNET_OUT, (1, 5, 7)), ('cnn', CNN, CNN_OUT, (1, 2, 3))],
)
def test_operations_of_a_client_by_hand(name, products, out, cuts):
    for cut in cuts:
        pieces = measure(ModelSpec(name, 10, (32, 32, 3), cut, 'linear', 16))
        forward = sum(products[:cut]) + sum((2 + 3 * pools) * size for size, pools in out[:cut])
        assert pieces.bottom_work.forward == pytest.approx(forward, rel=1e-6)
        # Backward: the gradient of each kernel and of each input but the images, as many products as forward each.
        train = 3 * sum(products[:cut]) - products[0]
        assert train <= pieces.bottom_work.train <= train + 25 * sum(size for size, _ in out[:cut])
        assert pieces.feature_size == out[cut - 1][0]


def test_operations_of_the_top_and_the_head():
    pieces = measure(ModelSpec('cnn', 10, (32, 32, 3), 2, 'mlp', 128))
    products = 2 * (1600 * 512 + 512 * 10)
    assert products <= pieces.top_work.forward <= 1.001 * products
    assert 3 * products <= pieces.top_work.train <= 1.01 * 3 * products  # with the gradient of the features
    head = 2 * (1600 * 1600 + 1600 * 128)
    assert head <= pieces.head_work.forward <= 1.01 * head
    assert 2 * 128 <= pieces.pair_work.forward <= 2 * 128 + 20
    assert 4 * 128 <= pieces.pair_work.train <= 4 * 128 + 40


def test_activations_are_those_of_the_convolutions():
    """What the backward pass needs at least: images, the input of the second layer, who won each pool."""
    pieces = measure(ModelSpec('cnn', 10, (32, 32, 3), 2, 'mlp', 128))
    needed = 4 * 32 * 32 * 3 + 4 * 14 * 14 * 32 + 14 * 14 * 32 + 5 * 5 * 64
    assert needed <= pieces.bottom_activations <= 3 * needed
