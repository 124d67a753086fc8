"""What a configuration gives to the program of a round, and the weights that it begins with."""

import json
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import UserError
from semisfl_jax.models import zoo
from semisfl_jax.training import experiment
from semisfl_jax.training.driver import Driver
from tests.helpers import dense_twin, narrow, runs


def test_keys_of_the_computation_reach_the_round():
    def traced(**changes):
        config = runs.config(algorithm='fedavg', federation__num_active=4, federation__client_map='vmap', **changes)
        trial = experiment.build(config_lib.resolve(config))
        arguments = trial.key, trial.state_shapes, *next(Driver([trial]).inputs(0))[:2], np.int32(2)
        found = list(runs.equations(jax.make_jaxpr(trial.algorithm.round)(*arguments).jaxpr))
        kinds = [equation.primitive.name for equation in found]
        halves = any(variable.aval.dtype == jnp.bfloat16 for equation in found for variable in equation.outvars)
        return kinds.count('scan'), kinds.count('checkpoint') + kinds.count('remat2'), halves

    loops, parts, halves = traced()
    assert (parts, halves) == (0, False)
    assert traced(federation__client_chunk=2)[0] == loops + 1
    assert traced(model__recompute=True)[1] > 0
    assert traced(precision='bfloat16')[2]
    config = runs.config(precision='float32', deterministic=True)
    assert experiment.compile_with(config).keywords == {'precision': 'float32', 'deterministic': True}


@pytest.mark.slow
def test_the_key_reaches_the_model_of_a_run():
    """One step on two images of 8 x 8 pixels: what the first variance moved by differs by 128 / 127."""
    moves = []
    for variance in ('biased', 'unbiased'):
        changes = {'model__name': 'resnet9', 'model__batch_norm_variance': variance, 'model__projection': 'none'}
        built = experiment.build(config_lib.resolve(runs.config(**changes)))
        variables = jax.jit(built.model.init)(jax.random.key(0)).bottom
        images = jnp.asarray(built.dataset.train_images[:2], jnp.float32)
        _, moved = jax.jit(lambda v, x, run=built.model.bottom: run(v, x, None, True))(variables, images)
        moves.append(moved['batch_stats']['layer_0']['norm']['var'] - 0.9)
    np.testing.assert_allclose(moves[1] / moves[0], 128 / 127, rtol=1e-4)


def test_classification_starts_with_a_file(tmp_path, monkeypatch):
    """Student and teacher, on both sides of the cut; images are then normalized as ImageNet."""
    shape = {'stem': 3, 'widths': (3, 4, 5, 6), 'depths': (1, 1, 1, 1)}
    state = dense_twin.state_dict(np.random.default_rng(0), False, **shape, kernel=3)
    np.savez(tmp_path / 'state.npz', **state)
    monkeypatch.setitem(zoo.ARCHITECTURES, 'resnet18', partial(zoo.ARCHITECTURES['resnet18'], **shape))
    changes = narrow.ROUND | {'model.name': 'resnet18', 'model.split_index': 2}
    changes['model.weights'] = str(tmp_path / 'state.npz')
    config = runs.config(**{key.replace('.', '__'): value for key, value in changes.items()})
    built = experiment.build(config_lib.resolve(config))
    first = jax.jit(built.algorithm.init)(built.key)
    for _, top, _ in (first.student, first.teacher):
        np.testing.assert_array_equal(top['params']['fc']['dense']['kernel'], state['fc.weight'].T)
    np.testing.assert_array_equal(first.teacher.bottom['params']['conv1']['norm']['scale'], state['bn1.weight'])
    white = built.dataset.test_images[:1] * 0 + 255
    normalized = experiment.views(built.config.augment, built.dataset).normalize(white)[0, 0, 0]
    np.testing.assert_allclose(normalized, (1 - np.array([0.485, 0.456, 0.406])) / [0.229, 0.224, 0.225], rtol=1e-6)


def test_a_checksum_of_weights_is_of_their_content(tmp_path):
    """Of a file, or of the states in which the seeds of a run ended."""
    assert experiment.weights_hash('') == ''
    (tmp_path / 'a.npz').write_bytes(b'abc')
    of_abc = 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'
    assert experiment.weights_hash(str(tmp_path / 'a.npz')) == of_abc
    for seed in (0, 1):
        about = tmp_path / 'run' / f'seed_{seed}' / 'checkpoints' / '4' / 'about'
        about.mkdir(parents=True)
        (about / 'metadata').write_text(json.dumps({'sha256': 'ab'[seed]}))
        (about.parents[2] / 'summary.json').write_text('{"rounds": 4}')
    shutil.copytree(tmp_path / 'run', tmp_path / 'copy')
    first, copy = (experiment.weights_hash(str(tmp_path / name)) for name in ('run', 'copy'))
    assert first == copy
    (about / 'metadata').write_text('{"sha256": "c"}')
    assert experiment.weights_hash(str(tmp_path / 'run')) != first
    with pytest.raises(UserError, match='no finished run'):
        experiment.weights_hash(str(tmp_path))
