"""The layers of `benchmarks.passes` are those of the models, and the command measures them."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import arithmetic, layers
from semisfl_jax.models import lowerings
from tests.runs import HANGS


@pytest.mark.parametrize('model', layers.LAYERS)
def test_layers_are_those_of_the_models(model):
    """Operations of an image, against those counted by hand; the last layer, 10 classes wide, is left out."""
    work, dense = arithmetic.FORWARD[model], {'cnn': 512, 'alexnet': 4096}[model]
    of_model = layers.LAYERS[model]
    convolutions = [layer.flops // layer.rows for layer in of_model if layer.kernel]
    assert convolutions[0] == work.first
    assert sum(convolutions) == work.bottom
    products = [layer.flops // layer.rows for layer in of_model if not layer.kernel]
    if model == 'cnn':
        assert sum(products) == work.top - 2 * dense * 10 + work.head
    else:  # the only size of which it has more than one: in the top and in the head
        assert 3 * products[0] == work.top - 2 * dense * 10 + work.head - 2 * dense * 128


def test_passes_are_of_the_forms_that_models_take():
    first, wide, dense = layers.LAYERS['cnn'][0], layers.LAYERS['alexnet'][2], layers.LAYERS['cnn'][2]
    x, weights, _ = map(jnp.asarray, layers.arrays(first._replace(rows=1)))
    assert layers.forward(first)(x, weights).shape == (1, 14, 14, 4, 32)
    x, weights, _ = map(jnp.asarray, layers.arrays(wide._replace(rows=1)))
    np.testing.assert_array_equal(layers.forward(wide)(x, weights), lowerings.winograd(x, weights, 1))
    assert layers.forward(dense) is lowerings.dense_direct


@pytest.mark.slow
def test_the_command(tmp_path):
    command = [
        sys.executable,
        '-m',
        'benchmarks.passes',
        '--no_torch',
        '--models=cnn',
        '--repeats=1',
        f'--out={tmp_path}',
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / 'passes.json').read_text())['layers']
    assert [len(layer['seconds']) for layer in measured] == [2, 3, 3, 3, 3]  # images have no gradient
    assert all(seconds['ours'] > 0 for layer in measured for seconds in layer['seconds'].values())
    assert (tmp_path / 'passes.md').read_text() in done.stdout
