"""M-Fed on linear encoders and decoders, against rounds in float64 NumPy with the gradients written out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, core, costs, tasks
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import m_fed
from semisfl_jax.algorithms.m_fed import MFedOptions
from semisfl_jax.algorithms.task_model import TaskModel, part
from semisfl_jax.config import get_config
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.hparams import HParams, Local
from semisfl_jax.core.types import Cohort, Federation, SplitParams, Views
from semisfl_jax.models import SplitModel
from tests.helpers.marks import slow_but
from tests.helpers.prices import bill
from tests.helpers.rows import STUDENT, Row

# Parameters: ResNet-18 without classifier; DeepLabV3+ on its 512 channels, and 256 weights and a bias for each output
ENCODER, DECODER, OUTPUT = 11_176_512, 5_426_272, 257
# Channels of BatchNorm, each with a running mean and variance. Encoder: the stem, four stages of two blocks of two
# convolutions, three of them with a shortcut. Decoder: five branches of ASPP and their projection, each of 256, the
# low-level map's 48, two convolutions of 256
OF_ENCODER = 64 + 4 * (64 + 128 + 256 + 512) + (128 + 256 + 512)
OF_DECODER = (5 + 1) * 256 + 48 + 2 * 256
TASKS = {'semseg': 21, 'parts': 7, 'saliency': 1, 'edges': 1}  # outputs
DENSE_STATISTICS = 4 * 2 * (OF_ENCODER + OF_DECODER)  # bytes


ROWS = {
    'm_fed': Row(f'{STUDENT} server', f'{STUDENT} server', by_images=True, family='scene_net'),
    'mfed_fl': Row(STUDENT, STUDENT, by_images=True, family='scene_net'),
    'mfed_local': Row('clients', 'clients', by_images=True, family='scene_net'),
}
NAMES = ('semseg', 'depth')
SIDE, WIDTH, LR, ROUNDS = 3, 4, 0.1, 3
SIZES = (6, 4, 8, 2, 2, 6)  # images of clients 0 .. 5: of semseg 6, 8, 2, of depth 4, 2, 6
VIEWS = Views(*[None] * 3, normalize=lambda images: images.astype(jnp.float32) / 255.0)


def model(outputs):
    """Pixels x -> maps x w -> outputs x w v."""

    def init(key):
        w = 0.3 * jax.random.normal(rng.fold(key, 'bottom'), (3, WIDTH))
        v = 0.3 * jax.random.normal(rng.fold(key, 'top'), (WIDTH, outputs))
        return SplitParams({'params': {'w': w}}, {'params': {'v': v}}, {'params': {}})

    def bottom(variables, images, key, train, rows=None):
        return (images @ variables['params']['w'],), variables

    def top(variables, maps, key, train, rows=None):
        return maps[0] @ variables['params']['v'], variables

    return SplitModel(init, bottom, top, tops=None, project=None, feature_size=WIDTH, projection_size=0)


def loss(outputs, targets):
    """Half of the mean squared error, to the target as a number for every output."""
    return 0.5 * jnp.mean((outputs - targets[..., None] / 255.0) ** 2)


def task_models(names=NAMES):
    outputs = {'semseg': 2, 'depth': 1}
    return tuple(
        TaskModel(dataclasses.replace(tasks.make(name, outputs[name]), loss=loss), model(outputs[name]))
        for name in names
    )


@functools.cache
def federation(tasks_of=NAMES):
    """Six clients, or the three of one task."""
    random = np.random.default_rng(1)
    count = sum(SIZES)
    images = random.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    targets = {name: random.integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8) for name in NAMES}
    starts, size = np.cumsum([0, *SIZES[:-1]]), np.array(SIZES, np.int32)
    index = np.int32(starts[:, None] + np.arange(max(SIZES))) % count  # what is beyond a size is not read
    if len(tasks_of) == 1:
        index, size = (of_all[NAMES.index(tasks_of[0]) :: 2] for of_all in (index, size))
    none = jnp.zeros(0, jnp.int32)
    arrays = map(jnp.asarray, (images, np.zeros(count, np.int32)))
    return Federation(
        images[:0], none, *arrays, none, *map(jnp.asarray, (index, size, index, size)), client_targets=targets
    )


def hparams(clients=6, **options):
    local = Local(epochs=1, weighting='samples')
    return HParams(
        batch_size=2,
        labeled_rows=2,
        num_clients=clients,
        server_trains=False,
        lr=LR,
        lr_min=LR,
        momentum=0.0,
        nesterov=False,
        weight_decay=0.0,
        local=local,
        options=MFedOptions(**options),
    )


def cohort(clients=6, visits=0, lost=()):
    weight = np.ones(clients, np.float32)
    weight[list(lost)] = 0
    return Cohort(jnp.arange(clients), jnp.asarray(weight), jnp.full(clients, visits, jnp.int32))


def run(name, names=NAMES, rounds=ROUNDS, lost=(), **options):
    """The states before and after every round."""
    clients = 3 * len(names)
    algorithm = algorithms.build(name, task_models(names), VIEWS, hparams(clients, **options))
    key = rng.root(0)
    states, step = [algorithm.init(key)], jax.jit(algorithm.round)
    for number in range(rounds):
        state, metrics = step(key, states[-1], federation(names), cohort(clients, number, lost), jnp.int32(0))
        states.append(state)
    return jax.device_get(states), jax.device_get(metrics)


def weights(state, name):
    """w, v of a task."""
    variables = part(state.student, name)
    return np.float64(variables.bottom['params']['w']), np.float64(variables.top['params']['v'])


def rows_of_round(names, number):
    """{task: the rows [T, B] of each of its clients}: all of its own, once; in what order is not tested here."""
    state = algorithms.build('mfed_fl', task_models(names), VIEWS, hparams()).init(rng.root(0))
    planned = {}
    for name in names:
        data = sampling.select_task(rng.root(0), federation(names), cohort(3 * len(names), number), names, name)
        inputs, _ = core.plan(data[0], state, *data[1:], hparams())
        planned[name] = [np.asarray(rows)[:steps] for rows, steps in zip(inputs.rows, inputs.steps, strict=True)]
        for client, rows in zip(range(names.index(name), 3 * len(names), len(names)), planned[name], strict=True):
            own = federation(names).index[client, : federation(names).size[client]]
            assert sorted(rows.ravel()) == sorted(own.tolist())  # one pass
    return planned


def data_of(names, task):
    """All pixels and targets of a task, in float64."""
    data = federation(names)
    return np.asarray(data.client_images, np.float64) / 255.0, np.asarray(data.client_targets[task]) / 255.0


def train(models, images, targets, batches, pull=lambda w: 0.0, heavy=(0.0, 0.0), momentum=0.0):
    """w, v and momentum after SGD on half the mean squared error of X w v, pixels X [P, 3], targets y [P, C]: the
    gradient is X'(X w v - y) v' / (P C) in w, to which `pull` adds, and (X w)'(X w v - y) / (P C) in v."""
    w, v = models
    for rows in batches:
        x, y = images[rows].reshape(-1, 3), targets[rows].reshape(-1, 1)
        error = (x @ w @ v - y) / (len(x) * v.shape[1])
        heavy = [momentum * heavy[0] + x.T @ error @ v.T + pull(w), momentum * heavy[1] + (x @ w).T @ error]
        w, v = w - LR * heavy[0], v - LR * heavy[1]
    return (w, v), heavy


def twin(start, lambda_0, rho, penalty):
    """[(g, {task: (w, v)})] after every round of Algorithm 1, from the weights {task: (w, v)}."""
    models, history = dict(start), []
    g = sum(w for w, _ in models.values()) / len(models)
    for number in range(ROUNDS):
        strength, planned = min(lambda_0 * rho**number, 1.0), rows_of_round(NAMES, number)

        def pull(w, g=g, strength=strength):
            length = np.linalg.norm(w - g) if penalty == 'norm' else 1.0
            return strength * (w - g) / length if length else 0.0

        for name in NAMES:
            of_clients = [train(models[name], *data_of(NAMES, name), client, pull)[0] for client in planned[name]]
            counts = [2 * len(client) for client in planned[name]]  # whole batches of two
            share = np.array(counts) / sum(counts)
            models[name] = tuple(sum(s * pair[i] for s, pair in zip(share, of_clients, strict=True)) for i in range(2))
        g = sum(w for w, _ in models.values()) / len(models)
        history.append((g, dict(models)))
    return history


@pytest.mark.parametrize('penalty', slow_but(['squared', 'norm'], 'squared'))
def test_rounds_equal_algorithm_1(penalty):
    """Per task: batches of unequal numbers, an average by images, lambda of 0.5, 0.75 and, bounded, 1; across tasks: g,
    evenly."""
    states, metrics = run('m_fed', weight=0.5, growth=1.5, penalty=penalty)
    assert metrics['penalty_weight'] == 1
    expected = twin({name: weights(states[0], name) for name in NAMES}, 0.5, 1.5, penalty)
    for state, (g, models) in zip(states[1:], expected, strict=True):
        np.testing.assert_allclose(state.server['w'], g, rtol=2e-5, atol=1e-6)
        for name in NAMES:
            for found, wanted in zip(weights(state, name), models[name], strict=True):
                np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['m_fed', 'mfed_fl'])
def test_without_penalty_it_is_one_fedavg_for_each_task(name):
    """To the bit: the runs of each task alone."""
    options = {'weight': 0.0} if name == 'm_fed' else {}
    together, _ = run(name, **options)
    for task in NAMES:
        alone, _ = run('mfed_fl', (task,))
        for state, other in zip(together, alone, strict=True):
            jax.tree.map(np.testing.assert_array_equal, part(state.student, task), part(other.student, task))


def test_g_begins_as_the_encoder_of_all():
    """To the bit, so that its direction pulls nowhere: a sum over seven equal encoders, divided by seven, rounds."""
    names = tasks.DENSE[:7]
    of_tasks = [tasks.make(name, 1 if name in ('saliency', 'edges', 'depth') else 2) for name in names]
    models = [TaskModel(task, model(task.outputs)) for task in of_tasks]
    state = algorithms.build('m_fed', models, VIEWS, hparams(7)).init(rng.root(0))
    for name in names:
        np.testing.assert_array_equal(state.server['w'], part(state.student, name).bottom['params']['w'])


@pytest.mark.parametrize(
    ('options', 'expected'),
    [
        # 0.1 * 2^t: 0.1, 0.2, 0.4, and 0.8 is above 0.5
        ({'weight': 0.1, 'growth': 2.0, 'max_weight': 0.5}, {0: 0.1, 1: 0.2, 2: 0.4, 3: 0.5, 4: 0.5, 10_000: 0.5}),
        # in round 20 as without a bound; ln(1e4) / ln(1.05) = 188.8 rounds until 1
        ({}, {0: 1e-4, 19: 1e-4 * 1.05**19, 188: 1e-4 * 1.05**188, 189: 1.0, 10_000: 1.0, 2**31 - 1: 1.0}),
        ({'weight': 0.3, 'growth': 0.5}, {0: 0.3, 2: 0.075, 10_000: 0.0}),
        ({'weight': 1e-30, 'growth': 10.0, 'max_weight': 1e30}, {0: 1e-30, 29: 0.1, 10_000: 1e30}),
    ],
)
def test_lambda_grows_up_to_its_bound(options, expected):
    found = jax.jit(jax.vmap(lambda t: m_fed.penalty_weight(MFedOptions(**options), t)))(jnp.array(list(expected)))
    np.testing.assert_allclose(found, list(expected.values()), rtol=1e-5)


def test_a_task_whose_clients_all_failed_keeps_its_model_and_g_ignores_no_task():
    states, metrics = run('m_fed', rounds=2, lost=(1, 3, 5), weight=0.5)
    before, after = states[-2:]
    jax.tree.map(np.testing.assert_array_equal, part(before.student, 'depth'), part(after.student, 'depth'))
    w, other = (weights(after, name)[0] for name in NAMES)
    assert np.any(w != weights(before, 'semseg')[0])
    np.testing.assert_allclose(after.server['w'], (w + other) / 2, rtol=1e-6)
    assert np.isnan(metrics['depth_loss'])
    assert metrics['loss_local'] == metrics['semseg_loss']
    diverged = {name: {'loss': loss, 'anyone': True} for name, loss in (('depth', np.nan), ('semseg', 1.0))}
    assert np.isnan(m_fed.metrics(diverged)['loss_local'])


@pytest.mark.slow
@pytest.mark.parametrize('momentum', [0.9, 0.0])
def test_alone_every_client_follows_its_own_gradient(momentum):
    """Its momentum goes on from round to round."""
    local = Local(epochs=1, weighting='samples', optimizer_state='kept')
    settings = dataclasses.replace(hparams(), momentum=momentum, local=local)
    algorithm = algorithms.build('mfed_local', task_models(), VIEWS, settings)
    state = start = algorithm.init(rng.root(0))
    step = jax.jit(algorithm.round)
    for number in range(2):
        state, _ = step(rng.root(0), state, federation(), cohort(6, number), jnp.int32(0))
    planned = [rows_of_round(NAMES, number) for number in range(2)]
    for name in NAMES:
        for number in range(3):
            expected, heavy = weights(start, name), (0.0, 0.0)
            for of_round in planned:
                batches = of_round[name][number]
                expected, heavy = train(expected, *data_of(NAMES, name), batches, heavy=heavy, momentum=momentum)
            own = jax.tree.map(lambda x, number=number: x[number], state.clients[name].model)
            np.testing.assert_allclose(own.bottom['params']['w'], expected[0], rtol=2e-5, atol=1e-6)
            np.testing.assert_allclose(own.top['params']['v'], expected[1], rtol=2e-5, atol=1e-6)


def test_outputs_of_lone_clients_are_those_of_each():
    algorithm = algorithms.build('mfed_local', task_models(), VIEWS, hparams())
    states, _ = run('mfed_local', rounds=1)
    images = federation().client_images[:2]
    outputs = algorithm.predict(states[-1], images)
    assert [len(outputs[name]) for name in NAMES] == [3, 3]
    own = jax.tree.map(lambda x: x[1], states[-1].clients['depth'].model)
    expected = np.asarray(images) / 255.0 @ own.bottom['params']['w'] @ own.top['params']['v']
    np.testing.assert_allclose(outputs['depth'][1], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('name', slow_but(['m_fed', 'mfed_local'], 'm_fed'))
def test_a_failed_client_is_as_if_it_had_other_images_and_one_compilation_serves_all_cohorts(name):
    algorithm = algorithms.build(name, task_models(), VIEWS, hparams())
    step, key = jax.jit(algorithm.round), rng.root(0)
    data, state = federation(), algorithm.init(key)
    own = data.index[3, : SIZES[3]]
    changed = data.replace(client_images=data.client_images.at[own].set(255))
    lost = cohort(lost=[3])
    results = [step(key, state, images, lost, jnp.int32(0)) for images in (data, changed)]
    jax.tree.map(np.testing.assert_array_equal, *results)
    step(key, state, changed, cohort(lost=[0]), jnp.int32(3))
    assert step._cache_size() == 1


def mfed_model(algorithm, names, **changes):
    """The cost model of PASCAL-Context's configuration."""
    clients = 5 * len(names)
    changes |= {'data.tasks': tuple(names), 'federation.num_clients': clients, 'federation.num_active': clients}
    config = config_lib.resolve(get_config('pascal_context', {'algorithm': algorithm, **changes}))
    of = [tasks.make(name, TASKS[name]) for name in names]
    return costs.build(config, algorithms.get(algorithm), 21, (64, 64, 3), config_lib.hparams(config), tasks=of)


def parameters(name):
    """Of the model of a task."""
    return ENCODER + DECODER + OUTPUT * TASKS[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('algorithm', 'changes', 'models', 'encoders'),
    [
        ('m_fed', {}, 1, 1),
        ('m_fed', {'mfed.weight': 0.0}, 1, 0),  # without penalty, g stays at the server
        ('mfed_fl', {}, 1, 0),
        ('mfed_local', {}, 0, 0),
    ],
)
def test_bytes_of_a_client(algorithm, changes, models, encoders):
    """The model of the task with its statistics both ways, and g, of parameters alone, down."""
    found = bill(mfed_model(algorithm, ['semseg'], **changes), [0])
    model = 4 * parameters('semseg') + DENSE_STATISTICS
    assert found.bytes_down == models * model + encoders * 4 * ENCODER
    assert found.bytes_up == models * model


@pytest.mark.slow
def test_clients_pay_for_the_decoder_of_their_task():
    """Client n works on task n mod 4; clients 0 to 19 are five of each. Then clients 1 and 6 alone, of parts and
    saliency."""
    model = mfed_model('m_fed', TASKS)
    found = bill(model, range(20))
    of_all = 20 * (4 * (ENCODER + DECODER) + DENSE_STATISTICS) + 5 * 4 * OUTPUT * (21 + 7 + 1 + 1)
    assert (found.bytes_down, found.bytes_up) == (of_all + 20 * 4 * ENCODER, of_all)
    found = bill(model, [1, 6])
    assert found.bytes_up == 2 * (4 * (ENCODER + DECODER) + DENSE_STATISTICS) + 4 * OUTPUT * (7 + 1)
