"""Sizes that cannot be: refused before anything is made or written; and memory that ends in spite of it."""

import resource
import time

import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax import data, machine
from semisfl_jax.data import cache
from semisfl_jax.data.decode import Source, Stream
from semisfl_jax.errors import UserError
from semisfl_jax.training import experiment, footprint, memory, trials
from semisfl_jax.training.describe import describe
from semisfl_jax.wording import size
from tests import needs, runs
from tests.one_line import assert_one_line
from tests.settings import NAMES, get

GIB = 2**30
FAKE = {'data__fake': True, 'data__name': 'mnist', 'data__num_labeled': 100}
# key -> values, and what a tiny digits run needs beside it
SIZES = {
    'federation.num_clients': ((10**9, 10**12), {}),
    'queue_size': ((10**8, 10**9, 10**10, 10**12), {}),
    'model.projection_dim': ((10**7, 10**9), {}),
    'augment.operations': ((10**7,), {}),
    'data.image_size': ((10**5, 4096), {}),
    'data.pad_to': ((10**5, 4096), {}),
    'data.fake_size': ((10**12, 10**9), FAKE),
    'queue_stride': ((2**31,), {}),
    'batch_size': ((10**9,), {}),
    'server_batch_size': ((10**9,), {}),
    'k_u': ((10**9,), {}),
    'local.epochs': ((10**9,), {'algorithm': 'fedavg'}),
    'semifl.pass_batch_size': ((10**9,), {'algorithm': 'semifl'}),
    'frequency.horizon': ((10**9,), {}),
    'rounds': ((2**31,), {}),
}
KEPT = {'local__optimizer_state': 'kept', 'optimizer': 'adam', 'nesterov': False}
CASES = [(key, value) for key, (values, _) in SIZES.items() for value in values]


def of_machine(monkeypatch, host, device=None):
    monkeypatch.setattr(machine, 'host_memory', lambda: host)
    monkeypatch.setattr(machine, 'device_memory', lambda: device)


@pytest.fixture
def small(monkeypatch):
    """A machine of 16 GiB, and no more than 6 of them for this test, so that a mistake costs no more than it."""
    of_machine(monkeypatch, 16 * GIB)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open('/proc/self/statm') as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 6 * GIB, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(('key', 'value'), CASES)
def test_a_size_that_cannot_be_ends_in_one_line(key, value, small, tmp_path, capsys):
    others = SIZES[key][1]
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert runs.run(tmp_path / 'run', **others, **{key.replace('.', '__'): value}) == 2
    assert_one_line(capsys.readouterr().err, [f'{key}={value}'])
    assert not (tmp_path / 'run').exists()
    assert time.monotonic() - start < 300  # seconds, of which it takes few
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB: 1 GiB


def test_what_would_fit_is_named_and_fits(monkeypatch):
    """Two levels of 128 float32 and an int32, a bool for each slot: 2 * 517 * Q bytes against half of 16 GiB."""
    of_machine(monkeypatch, 16 * GIB)
    config = config_lib.resolve(runs.config(queue_size=10**8))
    with pytest.raises(UserError, match=r'queue_size=100000000 .* \(queue 96 GiB.* use 5,000,000 or less'):
        experiment.build(config)
    assert 2 * 517 * 5_000_000 < 8 * GIB < 2 * 517 * 10_000_000
    experiment.build(config_lib.resolve(runs.config(queue_size=5_000_000)))


def test_memory_of_clients_is_named_where_clients_keep_models(monkeypatch):
    of_machine(monkeypatch, 16 * GIB)
    config = config_lib.resolve(runs.config(algorithm='fedmatch', federation__num_clients=1_000_000))
    with pytest.raises(UserError, match=r'federation\.num_clients=1000000 .*\(client state 51 GiB'):
        experiment.build(config)


def test_one_model_of_every_client_is_stated_and_refused_where_it_cannot_fit(monkeypatch):
    """Fed-SHVR keeps 4 bytes of each of 3,975,010 parameters of the MLP: 15.16 MiB a client."""
    base = {'data.fake': True, 'data.fake_size': 300, 'data.num_labeled': 20, 'algorithm': 'fed_shvr'}
    config = sfl.get_config('mnist', {**base, 'model.name': 'mlp5000', 'federation.num_clients': 40})
    of_machine(monkeypatch, 16 * GIB)
    lines = describe([experiment.build(config_lib.resolve(config))])
    assert 'memory     each client keeps 15 MiB between its rounds, 607 MiB in all' in lines  # 40 x 15.163 = 606.5
    config.federation.num_clients = 5_000
    with pytest.raises(UserError, match=r'federation\.num_clients=5000 .*\(client state 74 GiB'):  # 5,000 x 15.163 MiB
        experiment.build(config_lib.resolve(config))


def test_where_no_key_is_to_blame_the_largest_share_is(monkeypatch):
    of_machine(monkeypatch, 10 * 2**20)
    config = config_lib.resolve(get('cifar10'))
    with pytest.raises(UserError, match=r'the run needs at least .* of memory \(models .* use a smaller model\.name'):
        experiment.build(config)


def test_images_are_on_the_device_and_those_in_memory_on_the_host(monkeypatch):
    config = config_lib.resolve(runs.config(**FAKE, data__fake_size=300_000, federation__num_clients=10))
    of_machine(monkeypatch, 16 * GIB, device=100 * 2**20)
    with pytest.raises(UserError, match=r'data\.fake_size=300000 .*\(images 232 MiB.* but the device has 100 MiB'):
        experiment.build(config)  # 310,000 images of 784 bytes
    of_machine(monkeypatch, 100 * 2**20, device=16 * GIB)
    with pytest.raises(UserError, match=r'images in host memory 232 MiB.* but this machine has 100 MiB'):
        experiment.build(config)


@pytest.mark.parametrize('name', NAMES)
def test_what_works_is_not_refused(name, monkeypatch):
    """On 24 GiB, as in the notes of configs/image100.py; and where nothing is known of the memory."""
    of_machine(monkeypatch, 24 * GIB)
    for algorithm in ('semisfl', 'fedavg', 'semifl'):
        config = get(name)
        config.update_from_flattened_dict(needs.changes(algorithm) | {'data.fake': True})
        config = config_lib.resolve(config)
        shares = footprint.of_run(config)
        assert 0 < sum(share.nbytes for share in shares) < 24 * GIB
    of_machine(monkeypatch, None)
    experiment.memory.check(config_lib.resolve(runs.config(queue_size=10**8)), footprint.of_run)


@pytest.mark.parametrize(
    ('algorithm', 'changes'),
    [
        pytest.param('semisfl', {}, marks=pytest.mark.slow),
        pytest.param('semisfl', {'data__residency': 'host'}, marks=pytest.mark.slow),
        pytest.param('fedmatch', {}, marks=pytest.mark.slow),
        ('fedavg', KEPT),
    ],
)
def test_the_estimate_is_below_what_the_compiled_round_takes(algorithm, changes):
    """By XLA's account of the program, to which only the test set and its batches do not belong; and it is no tenth."""
    config = config_lib.resolve(runs.config(algorithm=algorithm, **changes))
    built = experiment.build(config)
    batch = trials.batch([built], 'auto')
    state = jax.eval_shape(built.algorithm.init, built.key)
    federation, cohort = next(batch.inputs(0))
    compiled = jax.jit(batch.round, donate_argnums=1).lower(batch.key, state, federation, cohort, np.int32(2)).compile()
    analysis = compiled.memory_analysis()
    taken = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    taken += analysis.temp_size_in_bytes
    loaded = built.dataset.outline._replace(test=0, most_held=built.federation.index.shape[1] if not changes else 1)
    estimate = sum(share.nbytes for share in footprint.of_run(config, loaded=loaded) if not share.on_host)
    assert taken / 10 < estimate <= taken


def test_the_parts_of_an_estimate():
    """AlexNet on CIFAR-10, from the sizes that are known of it."""
    config = config_lib.resolve(get('cifar10'))
    loaded = data.Outline((32, 32, 3), 10, 50_000, 10_000, in_memory=False, most_held=1534)
    shares = {share.what: share.nbytes for share in footprint.of_run(config, loaded=loaded)}
    model, head = 35_855_178, 4096 * 4096 + 4096 + 4096 * 128 + 128  # parameters; features at the cut are 4,096
    assert shares['images'] == 60_000 * 3072
    assert shares['queue'] == 2 * (1024 * (4 * 128 + 4 + 1) + 4)
    assert shares['models of the server'] == 2 * 4 * (model + head) + 2 * 4  # student and teacher, two counters
    assert shares['models in training'] == 2 * 4 * (model + head)  # gradient and momentum
    assert shares['index tables of the clients'] == 4 * 30 * 1534
    assert shares['rows and images of a round'] == 4 * 10 * 50 * 64
    assert shares['batches'] == 4 * 500 * 3072
    two = {share.what: share.nbytes for share in footprint.of_run(config, trials=2, loaded=loaded)}
    assert two['models of the server'] == 2 * shares['models of the server']
    assert two['images'] == shares['images']


def test_images_that_nobody_gets_take_no_memory():
    """4,000 labeled images at the server and 6,000 at the clients; 10,000 to test with."""
    config = get('cifar10')
    config.data.num_unlabeled = 6000
    config = config_lib.resolve(config)
    loaded = data.Outline((32, 32, 3), 10, 50_000, 10_000, in_memory=False, most_held=200)
    shares = {share.what: share.nbytes for share in footprint.of_run(config, loaded=loaded)}
    assert shares['images'] == 20_000 * 3072


@pytest.mark.parametrize(('residency', 'training'), [('device', 4998), ('host', 0)])
def test_maps_of_dense_tasks_take_memory(residency, training):
    """A byte a pixel and task, beside the three of the image: for the test set, of which maps have the original size,
    and where clients' images are."""
    config = get('pascal_context')
    config.data.residency = residency
    config = config_lib.resolve(config)
    outputs = {'semseg': 21, 'parts': 7, 'saliency': 1, 'edges': 1}
    loaded = data.Outline((512, 512, 3), 20, 4998, 5105, False, most_held=1000, outputs=outputs, original=(500, 500))
    shares = {share.what: share.nbytes for share in footprint.of_run(config, loaded=loaded)}
    assert shares['images'] == 3 * 512**2 * (training + 5105)
    assert shares['maps of the tasks'] == 4 * (512**2 * training + 500**2 * 5105)


def test_a_round_that_does_not_fit_is_refused_once_it_is_compiled(monkeypatch, tmp_path, capsys):
    """Features of 1,000 images behind the first layer are 1,000 * 8 * 8 * 16 float32, 4 MiB; all else takes less."""
    changes = {'algorithm': 'supervised_only', 'server_batch_size': 1000}
    config = config_lib.resolve(runs.config(**changes))
    assert sum(share.nbytes for share in footprint.of_run(config)) < 2 * 2**20
    of_machine(monkeypatch, 4 * 2**20)
    assert runs.run(tmp_path / 'run', **changes) == 2
    words = ['for the compiled round', 'for intermediate results', 'has 4 MiB', 'less than', 'server_batch_size=1000']
    assert_one_line(capsys.readouterr().err, words)
    assert not (tmp_path / 'run').exists()


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp('reference') / 'run'
    assert runs.run(folder, algorithm='supervised_only') == 0
    return folder


OUT_OF_MEMORY = """
from semisfl_jax.training import totals
import jax
real = totals.after_round
def after_round(experiments, index, *others):
    if index == 3:
        raise {error}
    return real(experiments, index, *others)
totals.after_round = after_round"""


@pytest.mark.slow
@pytest.mark.parametrize(
    'error',
    ["jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 77 bytes.\\nmore')", 'MemoryError()'],
)
def test_memory_that_ends_in_a_run_ends_in_one_line(error, reference, tmp_path):
    folder = tmp_path / 'run'
    failed = runs.run_process(folder, OUT_OF_MEMORY.format(error=error), algorithm='supervised_only')
    assert failed.returncode == 2
    last = failed.stderr.splitlines()[-1]
    assert 'Traceback' not in failed.stderr
    for words in ('out of memory', 'models of the server', 'federation.client_chunk=1', 'checkpoints'):
        assert words in last
    assert ('77 bytes' in last) == ('77' in error)
    assert runs.run(folder, algorithm='supervised_only') == 0
    assert runs.lines(folder) == runs.lines(reference)


def test_memory_that_ends_in_compiling_ends_in_one_line(tmp_path, monkeypatch, capsys):
    def compile_(*_, **__):
        raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.')

    monkeypatch.setattr(jax.stages.Lowered, 'compile', compile_)
    assert runs.run(tmp_path / 'run', algorithm='supervised_only') == 2
    assert_one_line(capsys.readouterr().err, ['out of memory', 'space hbm', 'queue_size'])
    assert not (tmp_path / 'run').exists()


def test_other_errors_of_jax_are_not_taken_for_it(tmp_path, monkeypatch):
    def compile_(*_, **__):
        raise jax.errors.JaxRuntimeError('INTERNAL: a bug')

    monkeypatch.setattr(jax.stages.Lowered, 'compile', compile_)
    with pytest.raises(jax.errors.JaxRuntimeError, match='a bug'):
        runs.run(tmp_path / 'run', algorithm='supervised_only')


# --- decoding


def test_images_that_cannot_be_decoded_are_refused_before(tmp_path, monkeypatch):
    def stream(count, side):
        return Stream(count, (side, side, 3), lambda: pytest.fail('decoded'))

    def source(count, side):
        return Source('photos', 'photos', 10, lambda: (stream(count, side), stream(1, side)))

    of_machine(monkeypatch, 2**30)
    with pytest.raises(UserError, match=r'photos in images of 1024x1024x3: 512 .* take 1\.5 GiB.* has 1 GiB of memory'):
        cache.fetch(source(1000, 1024), str(tmp_path / 'a'))
    usage = cache.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache.shutil, 'disk_usage', lambda path: usage._replace(free=2**30))
    with pytest.raises(UserError, match=r'takes 2\.9 GiB, more than .* \(1 GiB free\) or .* \(1 GiB\) can hold'):
        cache.fetch(source(3999, 512), str(tmp_path / 'a'))
    assert not (tmp_path / 'a').exists()


# --- the machine


def test_the_memory_of_this_machine():
    total = machine.host_memory()
    assert total is None or 2**28 < total < 2**50
    assert machine.device_memory() is None  # a CPU


@pytest.mark.parametrize(
    ('files', 'expected'),
    [
        ({}, 3000),
        ({'sys/memory.max': 'max'}, 3000),
        ({'sys/a/memory.max': '1500000'}, 1500000 / 1024 + 1000),  # and the machine's swap
        ({'sys/memory.max': '1024000', 'sys/a/memory.max': 'max'}, 2000),
        ({'sys/memory/b/memory.limit_in_bytes': '512000'}, 1500),
        ({'sys/memory/b/memory.limit_in_bytes': '9223372036854771712'}, 3000),
    ],
)
def test_the_limits_of_a_container(files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, 'PROC', tmp_path / 'proc')
    monkeypatch.setattr(machine, 'CGROUP', tmp_path / 'sys')
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    files = {
        'proc/meminfo': 'MemTotal:   2000 kB\nMemFree:  1 kB\nSwapTotal:    1000 kB\n',
        'proc/self/cgroup': '4:memory:/b\n2:cpu,cpuacct:/c\n0::/a\n',
    } | files
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.host_memory() == int(expected * 1024)
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (1000, resource.RLIM_INFINITY))
    assert machine.host_memory() == 1000


def test_a_machine_that_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, 'PROC', tmp_path)
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert machine.host_memory() is None


def test_sizes_in_words():
    assert [size(n) for n in (17, 1024, 1536, 64 * 2**20, 10 * GIB, 2**70)] == [
        '17 bytes',
        '1 KiB',
        '1.5 KiB',
        '64 MiB',
        '10 GiB',
        '1,048,576 PiB',
    ]


def test_the_devices_of_a_cpu_share_the_memory_of_the_machine(monkeypatch):
    """What one device holds and does not fit twice: an accelerator of each has room for it."""
    shares = [footprint.Share('images', 3 * GIB), footprint.Share('decoded', 3 * GIB, on_host=True)]
    one, two = (runs.config(parallel__devices=devices) for devices in (1, 2))
    of_machine(monkeypatch, 8 * GIB)
    memory.check(one, lambda config: shares)
    with pytest.raises(UserError, match='at least 9 GiB of memory'):
        memory.check(two, lambda config: shares)
    of_machine(monkeypatch, 8 * GIB, 4 * GIB)
    memory.check(two, lambda config: shares)
