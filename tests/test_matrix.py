"""Every algorithm with every model family and partition, one whole round on made-up data, built as the command does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from semisfl_jax import algorithms, experiment
from semisfl_jax import config as config_lib

# VGG16 differs from VGG13 in the number of layers alone, the plain ResNet-9 from the other by what it lacks.
FAMILIES = ('small_cnn', 'cnn', 'alexnet', 'vgg13', 'resnet9', 'wresnet28x2')


def small(algorithm, model, partition):
    """Two clients of four, two images each, two iterations: true layers, tiny counts."""
    config = default.get_config()
    config.algorithm = algorithm
    config.model.name = model
    config.model.projection = 'linear' if model.startswith('vgg') else 'mlp'
    config.data.name = 'cifar10'
    config.data.fake, config.data.fake_size, config.data.num_labeled = True, 200, 20
    config.federation.num_clients, config.federation.num_active = 4, 2
    config.federation.partition, config.federation.alpha = partition, 0.5
    config.k_s, config.k_u, config.batch_size, config.server_batch_size = 2, 2, 2, 4
    config.queue_size = 16
    config_lib.check(config)
    return experiment.build(config_lib.resolve(config))


@pytest.mark.parametrize('partition', ['uniform', 'dirichlet'])
@pytest.mark.parametrize('model', FAMILIES)
@pytest.mark.parametrize('algorithm', algorithms.NAMES)
def test_one_round(algorithm, model, partition):
    built = small(algorithm, model, partition)
    method = built.algorithm
    state = jax.jit(method.init)(built.key)
    before = jax.device_get(state)
    federation, cohort = next(experiment.inputs(built, 0))
    state, metrics = jax.jit(method.round)(built.key, state, federation, cohort, jnp.int32(2))

    assert (int(state.round), int(state.step)) == (1, 2)
    averages = bool(before.teacher)  # methods with a teacher
    assert averages == (algorithm not in ('fedavg', 'fedprox'))
    for value in jax.tree.leaves((state.student, state.teacher)):
        assert np.all(np.isfinite(value))
    for who in ('student', 'teacher')[: 1 + averages]:
        for piece in ('bottom', 'top'):
            old, new = (getattr(getattr(s, who), piece)['params'] for s in (before, state))
            for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
                assert not np.array_equal(a, b), f'{who} {piece} stood still'
    heads = [jax.tree.leaves(s.student.proj['params']) for s in (before, state)]
    assert bool(heads[0]) == (algorithm == 'semisfl')  # without contrastive terms there is no projection head
    for a, b in zip(*heads, strict=True):
        assert not np.array_equal(a, b)

    assert np.isfinite(metrics['loss_supervised'])
    assert np.isfinite(metrics['loss_unlabeled']) == (algorithm != 'supervised_only')
    logits = method.predict(state, jnp.asarray(built.dataset.test_images[:3]))
    assert method.headline in logits
    assert {name: value.shape for name, value in logits.items()} == dict.fromkeys(
        ('teacher', 'student') if averages else ('student',), (3, 10)
    )
