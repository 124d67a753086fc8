"""The PyTorch reference does the same work as the package, the arithmetic is counted right, and the command runs."""

import dataclasses
import functools
import json
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from semisfl_jax import models
from semisfl_jax.algorithms.semisfl import semisfl
from semisfl_jax.augment import variants
from semisfl_jax.core.clients import client_map
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import ClientAxis, Cohort, Federation, Views
from semisfl_jax.models.layers import Compute, DenseLayer
from semisfl_jax.models.zoo import ARCHITECTURES, Architecture
from tests.helpers.pillow_operations import pillow_operation
from tests.helpers.runs import HANGS, ROOT

torch = pytest.importorskip('torch', reason="the benchmark needs PyTorch: pip install -e '.[benchmark]'")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from benchmarks import arithmetic, pillow_views, torch_reference  # noqa: E402

CLIENTS, BATCH, LABELED = 3, 4, 5
STEPS = 2  # of each phase: the second sees momentum, a moved teacher and a filled queue
MAP = (5, 5, 64)  # the CNN's feature map (H, W, C) at the cut
VIEWS = Views(*(lambda key, images: images,) * 3, lambda images: (images / 255.0 - 0.5) / 0.5)


def as_torch(variables):
    """Weights and biases of a Flax SplitParams in the order and layout of `torch_reference.networks`."""
    arrays = []
    for piece in variables:
        names = sorted(piece['params'])  # layer_0 …, or hidden, out
        for name in names:
            layer = piece['params'][name]
            kernel, bias = (np.asarray(layer.get('dense', layer)[key]) for key in ('kernel', 'bias'))
            if kernel.ndim == 4:
                kernel = kernel.transpose(3, 2, 0, 1)
            elif piece is not variables.bottom and name == names[0]:  # features: H, W, C here and C, H, W there
                kernel = kernel.reshape(*MAP, -1).transpose(3, 2, 0, 1).reshape(-1, kernel.shape[0])
            else:
                kernel = kernel.T
            arrays += [kernel, bias]
    return arrays


def load(networks, arrays):
    with torch.no_grad():
        for parameter, array in zip(networks.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(array.copy()))


def assert_close(networks, arrays):
    for (name, parameter), array in zip(networks.named_parameters(), arrays, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), array, rtol=1e-4, atol=1e-5, err_msg=name)


def pictures(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def normalized(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def reference(name, mode='loop'):
    """With batches of all that a client, or the server, has, so that no order of drawing matters."""
    sizes = {'clients': CLIENTS, 'batch_size': BATCH, 'server_batch_size': LABELED}
    options = torch_reference.Options(model=name, dropout=0.0, **sizes)
    return torch_reference.SemiSFL(options, torch.device('cpu'), mode)


def flax_method(**changes):
    """The package's method and model, without dropout, whose random numbers are not PyTorch's."""
    architecture = ARCHITECTURES['cnn'](10, Compute(convolution='native'))
    layers = tuple(partial(m, dropout=0.0) if m.func is DenseLayer else m for m in architecture.layers)
    model = models.cut(Architecture(layers, architecture.paper_split), (32, 32, 3), None, 'mlp', 128)
    hparams = HParams(k_u=STEPS, batch_size=BATCH, server_batch_size=LABELED, lr_min=0.02, **changes)
    return semisfl(model, VIEWS, hparams, ClientAxis(map=client_map(how='vmap')))


@functools.cache
def flax_start():
    return jax.jit(flax_method().init)(jax.random.key(0))


@functools.cache
def flax_round(threshold):
    """State and metrics after one round of the package."""
    federation = Federation(
        jnp.asarray(pictures(LABELED)),
        jnp.arange(LABELED) % 3,
        jnp.asarray(pictures(CLIENTS * BATCH, seed=1)),
        jnp.full(CLIENTS * BATCH, -1),
        jnp.arange(LABELED),
        jnp.arange(CLIENTS * BATCH).reshape(CLIENTS, BATCH),
        jnp.full(CLIENTS, BATCH),
        jnp.zeros((CLIENTS, 0), jnp.int32),
        jnp.zeros(CLIENTS, jnp.int32),
    )
    cohort = Cohort(jnp.arange(CLIENTS), jnp.ones(CLIENTS), jnp.zeros(CLIENTS, jnp.int32))
    round_ = jax.jit(flax_method(threshold=threshold).round)
    return round_(jax.random.key(0), flax_start(), federation, cohort, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize('mode', torch_reference.MODES)
def test_a_round_gives_the_same_losses_and_weights(mode):
    theirs = reference('cnn', mode)
    for networks in (theirs.student, theirs.teacher):
        load(networks, as_torch(flax_start().student))
    labeled, unlabeled = (
        normalized(images).to(memory_format=theirs.format)
        for images in (pictures(LABELED), pictures(CLIENTS * BATCH, seed=1))
    )
    supervised_loss = theirs.supervised([(labeled, labeled, torch.arange(LABELED) % 3)] * STEPS)
    bottom, top, _ = theirs.teacher
    confidence = top(bottom(unlabeled)).softmax(1).amax(1).sort().values
    threshold = round(confidence[5:7].mean().item(), 5)  # between two rows, so that it tells rows apart
    state, metrics = flax_round(threshold)
    np.testing.assert_allclose(metrics['mask_rate'], 0.5, atol=0.1)
    np.testing.assert_allclose(supervised_loss, metrics['loss_supervised'], rtol=1e-4)
    assert_close(theirs.teacher, as_torch(state.teacher))

    theirs.options = dataclasses.replace(theirs.options, threshold=threshold)
    loss = theirs.cross_entity([(unlabeled, unlabeled)] * STEPS)
    np.testing.assert_allclose(loss, metrics['loss_unlabeled'], rtol=1e-4)
    assert_close(theirs.student, as_torch(state.student))


def test_pillow_operations_are_the_authors(monkeypatch):
    image = Image.fromarray(pictures(1)[0])
    for index in range(14):
        monkeypatch.setattr(pillow_views.random, 'randrange', lambda count, index=index: index)
        for v, sign in ((1, 1), (9, 1), (9, -1)):
            ours = pillow_views._operation(image, v, sign)
            expected = pillow_operation(variants.MC.operations[index], image, v, sign)
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(expected))


@pytest.mark.parametrize('name', ['cnn', 'alexnet'])
def test_arithmetic_against_pytorchs_counter(name):
    theirs = reference(name)
    images = normalized(pictures(CLIENTS * BATCH))
    with FlopCounterMode(display=False) as counter:
        theirs.cross_entity([(images, images)])
    rows = CLIENTS * BATCH
    similarity = 2 * 2 * rows * rows * 128  # products with the batch's own keys, and their gradient
    assert counter.get_total_flops() == rows * arithmetic.cross_entity(name) + similarity
    images = normalized(pictures(LABELED))
    with FlopCounterMode(display=False) as counter:
        theirs.supervised([(images, images, torch.zeros(LABELED, dtype=torch.long))])
    similarity = 2 * 2 * LABELED**2 * 128
    assert counter.get_total_flops() == LABELED * arithmetic.supervised(name) + similarity


@pytest.mark.slow
def test_the_command_writes_figures_and_table(tmp_path):
    sizes = ('--models=cnn', '--clients=2', '--batch_size=4', '--k_s=1', '--k_u=2', '--repeats=2')
    command = [sys.executable, '-m', 'benchmarks.run', *sizes, '--augmentation=off', f'--out={tmp_path}']
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert '| CNN | no | iteration | this project |' in done.stdout
    (case,) = json.loads((tmp_path / 'results.json').read_text())['cases']
    assert case['images'] == {'iteration': 2 * 2 * 4, 'round': 2 * 2 * 4 + 4}
    assert [len(case['seconds'][side][task]) for side in ('jax', 'torch') for task in ('iteration', 'round')] == [2] * 4
    assert all(memory['peak_rss'] > 2**26 for memory in case['memory'].values())
    assert (tmp_path / 'table.md').exists()
