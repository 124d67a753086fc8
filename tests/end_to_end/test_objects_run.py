"""Tasks of objects in rounds of M-Fed and its baselines, and in evaluations."""

import dataclasses
import functools
import os

import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax import core, data, tasks
from semisfl_jax.algorithms.task_model import part
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng
from semisfl_jax.data.partition import check_tasks, evaluated, rows_with_truth
from semisfl_jax.training import experiment
from semisfl_jax.training.driver import Driver
from tests.conftest import UNOPTIMIZED
from tests.helpers import runs, toy_objects

FLAG = '--xla_force_host_platform_device_count=2'
INSIDE = FLAG in os.environ.get('XLA_FLAGS', '')
SETTINGS = toy_objects.NEEDS | {
    'data.client_labels': -1,
    'k_s': 0,
    'augment.supervised': 'weak',
    'augment.flip': True,
    'batch_size': 2,
    'optimizer': 'sgd',
    'momentum': 0.0,
    'nesterov': False,
    'weight_decay': 0.0,
    'lr': 0.01,
    'lr_min': 0.01,
    'eval_batch_size': 4,  # of 6 images: the second batch is filled
}


@pytest.fixture(scope='module', autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        toy_objects.small_model(patch)
        yield


def config(algorithm, names, clients=1, **changes):
    made = sfl.get_config('default')
    count = clients * len(names)
    of_tasks = {'data.tasks': tuple(names), 'federation.num_clients': count, 'federation.num_active': count}
    made.update_from_flattened_dict(
        SETTINGS | {'algorithm': algorithm, **of_tasks} | {key.replace('__', '.'): x for key, x in changes.items()}
    )
    config_lib.check(made)
    return config_lib.resolve(made)


@functools.cache
def rounds(algorithm, names, count=1, **changes):
    """The states before and after each round, on the host, and the metrics of the rounds."""
    built = experiment.build(config(algorithm, names, rounds=count, **changes))
    step, state, measured = jax.jit(built.algorithm.round), built.algorithm.init(built.key), []
    states = [state]
    for (federation, cohort, _), _ in zip(Driver([built]).inputs(0), range(count), strict=False):
        state, metrics = step(built.key, state, federation, cohort, np.int32(0))
        states.append(state)
        measured.append(metrics)
    return jax.device_get(states), jax.device_get(measured)


def equal(ours, theirs):
    return jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


@pytest.mark.slow
def test_without_penalty_each_task_is_federated_alone_to_the_bit():
    names = tuple(tasks.PARTS)
    (_, together), _ = rounds('m_fed', names, mfed__weight=0.0)
    for name in names:
        (before, alone), _ = rounds('mfed_fl', (name,))
        assert equal(part(together.student, name), part(alone.student, name)), name
        assert not equal(part(before.student, name), part(alone.student, name))


@pytest.mark.slow
def test_a_task_alone_is_fedprox_on_its_encoder():
    """Of two steps of SGD, the penalty acts in the second alone: by -lr * lambda times what the first has moved."""
    name = 'persons'
    strength, lr, k_u = 3.0, SETTINGS['lr'], {'local__epochs': 0}
    (start, one), _ = rounds('mfed_fl', (name,), **k_u, k_u=1)
    (_, two), _ = rounds('mfed_fl', (name,), **k_u, k_u=2)
    (_, pulled), _ = rounds('m_fed', (name,), **k_u, k_u=2, mfed__weight=strength, mfed__max_weight=strength)
    start, one, two, pulled = (part(state.student, name) for state in (start, one, two, pulled))
    assert equal(two.top, pulled.top)

    def expected(w0, w1, w2):
        return w2 - lr * strength * (w1 - w0)

    for (path, found), wanted in zip(
        jax.tree.leaves_with_path(pulled.bottom['params']),
        jax.tree.leaves(jax.tree.map(expected, *(each.bottom['params'] for each in (start, one, two)))),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7, err_msg=str(path))
    assert not equal(two.bottom, pulled.bottom)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['panoptic', 'persons'])
def test_losses_fall(name):
    """By a third at least within twenty passes over two clients' images. Panoptic FPN has the losses of instances."""
    _, measured = rounds('mfed_fl', (name,), 20, clients=2, optimizer='adam', lr=0.01, lr_min=0.01)
    losses = [float(each[f'{name}_loss']) for each in measured]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-2:]) < 2 / 3 * losses[0]


@pytest.mark.parametrize('residency', ['host', 'device'])
def test_clients_get_the_parts_of_their_own_images(residency):
    built = experiment.build(config('mfed_fl', ('persons', 'instances'), clients=2, data__residency=residency))
    federation, cohort, _ = next(Driver([built]).inputs(0))
    key, images, members = core.sampling.select_task(
        built.key, federation, cohort, ['persons', 'instances'], 'instances'
    )
    state = jax.eval_shape(built.algorithm.init, rng.root(0)).replace(round=np.int32(0))
    inputs, _ = core.plan(key, state, images, members, built.hparams)
    source = built.dataset
    for rows in np.asarray(inputs.rows).reshape(-1):
        shown = np.asarray(images.client_images[rows])
        row = np.flatnonzero((source.train_images == shown).all(axis=(1, 2, 3))).item()
        for name, array in images.client_targets['instances'].items():
            np.testing.assert_array_equal(array[rows], source.targets['instances'].train[name][row], err_msg=name)


@pytest.mark.slow
def test_local_models_are_scored_one_by_one(tmp_path):
    """The mean and the best of the scores of two clients."""
    measured = sfl.train(config('mfed_local', ('persons',), 2, rounds=1, eval_every=1), tmp_path / 'run').metrics
    assert 0 <= measured['persons_oks_ap'][0] <= measured['persons_oks_ap_best'][0]


@pytest.mark.slow
@pytest.mark.skipif(INSIDE, reason='is that process')
def test_two_devices_share_the_clients():
    """In a process of its own, in which the CPU is two devices."""
    runs.run_tests(f'{__file__}::test_devices_agree', flags=f'{FLAG} {UNOPTIMIZED}', marks='slow')


@pytest.mark.slow
@pytest.mark.skipif(not INSIDE, reason='runs in a process of its own')
@pytest.mark.parametrize('residency', ['host', 'device'])
def test_devices_agree(residency):
    names, options = ('persons', 'semseg'), {'clients': 2, 'data__residency': residency}
    (_, one), (measured,) = rounds('m_fed', names, **options)
    (_, two), (also,) = rounds('m_fed', names, **options, parallel__devices=2)
    assert also['persons_loss'] == pytest.approx(measured['persons_loss'], rel=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), one, two)


# --- data


def changed(name, part_name, change):
    dataset = toy_objects.load()
    target = dataset.targets[name]
    train = target.train | {part_name: change(target.train[part_name].copy())}
    return dataclasses.replace(dataset, targets=dataset.targets | {name: target._replace(train=train)})


@pytest.mark.parametrize(
    ('name', 'part_name', 'change', 'words'),
    [
        ('instances', 'labels', lambda x: x + 2, 'train labels has the number 4, above the largest, 2'),
        ('panoptic', 'semantic', lambda x: x + 1, 'train semantic has the number 3, above the largest, 2'),
        ('persons', 'visible', lambda x: x * 2, 'train visible has the number 4'),
        ('instances', 'boxes', lambda x: x[..., [2, 1, 0, 3]], 'train image 0 has an object whose box has no area'),
    ],
)
def test_targets_that_make_no_sense_are_refused(name, part_name, change, words):
    check_tasks(toy_objects.load(), [name])
    with pytest.raises(UserError, match=words):
        check_tasks(changed(name, part_name, change), [name])


def test_images_without_an_object_are_not_trained_on():
    def first_lacks_all(x):
        x[0] = 0
        return x

    for name, part_name in (('instances', 'labels'), ('persons', 'visible')):
        rows = rows_with_truth(changed(name, part_name, first_lacks_all), name)
        assert rows.tolist() == list(range(1, toy_objects.TRAIN)), name


def test_validation_images_have_the_parts_of_training():
    rows = np.array([3, 5])
    made = evaluated(toy_objects.load(), rows, 'validation', toy_objects.TASKS)
    for name in tasks.PARTS:
        for part_name, array in made.targets[name].test.items():
            np.testing.assert_array_equal(array, toy_objects.load().targets[name].train[part_name][rows])


def test_a_part_that_is_missing_or_has_another_shape_is_refused():
    dataset = toy_objects.load()
    arrays = dict(dataset.arrays)
    assert dataset.checksum == data.dataset.make(toy_objects.NAME, arrays, 2, outputs=toy_objects.OUTPUTS).checksum
    boxes = arrays.pop('train_target_instances.boxes')
    with pytest.raises(UserError, match=r'arrays has no train_target_instances\.boxes'):
        data.dataset.make('x', arrays, 2, outputs=toy_objects.OUTPUTS)
    arrays['train_target_instances.boxes'] = boxes[:, :-1]
    with pytest.raises(UserError, match=r'train_target_instances\.boxes is .*; use float32 \[24, 3, 4\]'):
        data.dataset.make('x', arrays, 2, outputs=toy_objects.OUTPUTS)


def test_blank_data_have_the_shapes():
    dataset = toy_objects.load()
    blank = data.blank('x', toy_objects.TRAIN, toy_objects.TEST, dataset.outline, (0.5,) * 3, (0.5,) * 3)

    def shapes(targets):
        return {name: jax.tree.map(lambda x: (x.shape, x.dtype), target[:2]) for name, target in targets.items()}

    assert shapes(blank.targets) == shapes(dataset.targets)
    assert blank.outline == dataset.outline
