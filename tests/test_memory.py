"""Memory that does not suffice: found by the compiler's account before anything is written, or in spite of it."""

import resource
from types import SimpleNamespace

import jax
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError, size
from semisfl_jax.training import memory
from tests import runs
from tests.one_line import assert_one_line

GIB = 2**30


def of_machine(monkeypatch, host, device=None):
    monkeypatch.setattr(machine, 'host_memory', lambda: host)
    monkeypatch.setattr(machine, 'device_memory', lambda: device)


def compiled(arguments=0, outputs=0, aliased=0, temporary=0):
    """A program with the compiler's account of it."""
    account = SimpleNamespace(
        argument_size_in_bytes=arguments,
        output_size_in_bytes=outputs,
        alias_size_in_bytes=aliased,
        temp_size_in_bytes=temporary,
        generated_code_size_in_bytes=7 * GIB,  # which is no data
    )
    return SimpleNamespace(memory_analysis=lambda: account)


def test_a_program_may_take_all_that_is_there(monkeypatch):
    """3 + 2 + 4 GiB, less the result of 1 GiB that takes the place of an argument."""
    program, config = compiled(3 * GIB, 2 * GIB, GIB, 4 * GIB), config_lib.resolve(runs.config())
    of_machine(monkeypatch, 8 * GIB)
    memory.check('round', program, config)
    of_machine(monkeypatch, 8 * GIB - 1)
    with pytest.raises(
        UserError, match=r'round needs 8 GiB .*, 4 GiB, for intermediate results\), but this machine has 8'
    ):
        memory.check('round', program, config)
    of_machine(monkeypatch, None)
    memory.check('round', program, config)
    of_machine(monkeypatch, 1)
    memory.check('round', SimpleNamespace(memory_analysis=lambda: None), config)  # of a backend that does not say


def test_an_accelerator_has_memory_of_its_own(monkeypatch):
    program, config = compiled(GIB), config_lib.resolve(runs.config())
    monkeypatch.setattr(machine, 'platform', lambda: 'gpu')
    of_machine(monkeypatch, 1, device=GIB)
    memory.check('round', program, config)
    of_machine(monkeypatch, 1)  # not known
    memory.check('round', program, config)
    of_machine(monkeypatch, 8 * GIB, device=GIB // 2)
    with pytest.raises(UserError, match=r'needs 1 GiB .*, for data and state\), but the device has 512 MiB'):
        memory.check('round', program, config)


def test_the_devices_of_a_cpu_share_the_memory_of_the_machine(monkeypatch):
    """What one device holds and does not fit twice: an accelerator of each has room for it."""
    one, two, each = (runs.config(parallel__devices=devices) for devices in (1, 2, 2))
    each.parallel.coordinator = 'somewhere:1'  # a device in each of two processes
    of_machine(monkeypatch, 5 * GIB)
    for config in (one, each):
        memory.check('round', compiled(3 * GIB), config_lib.resolve(config))
    with pytest.raises(UserError, match='needs 6 GiB of memory'):
        memory.check('round', compiled(3 * GIB), config_lib.resolve(two))
    monkeypatch.setattr(machine, 'platform', lambda: 'gpu')
    of_machine(monkeypatch, 5 * GIB, 4 * GIB)
    memory.check('round', compiled(3 * GIB), config_lib.resolve(two))


@pytest.mark.parametrize(
    ('largest', 'remedy'),
    [
        ('arguments', 'data.residency=host or a smaller federation.num_clients'),
        ('outputs', 'a smaller queue_size, model.projection_dim or federation.num_clients'),
        ('temporary', 'federation.client_chunk=1 or a smaller batch_size or server_batch_size'),
    ],
)
def test_the_keys_that_help_are_named(largest, remedy, monkeypatch):
    of_machine(monkeypatch, GIB)
    sizes = {'arguments': GIB, 'outputs': GIB, 'temporary': GIB} | {largest: 2 * GIB}
    with pytest.raises(UserError) as caught:
        memory.check('round', compiled(**sizes), config_lib.resolve(runs.config()))
    assert str(caught.value).endswith(f'; use {remedy}')


def test_a_round_that_does_not_fit_is_refused_once_it_is_compiled(monkeypatch, tmp_path, capsys):
    """Features of 1,000 images behind the first layer are 1,000 * 8 * 8 * 16 float32, 4 MiB; all else takes less."""
    of_machine(monkeypatch, 4 * 2**20)
    assert runs.run(tmp_path / 'run', algorithm='supervised_only', server_batch_size=1000) == 2
    words = ['compiled round', 'for intermediate results', 'has 4 MiB', 'server_batch_size']
    assert_one_line(capsys.readouterr().err, words)
    assert not (tmp_path / 'run').exists()


def test_a_state_that_does_not_fit_is_refused_before_it_is_made(monkeypatch, tmp_path, capsys):
    """Two levels of 128 float32 and an int32, a bool for each slot: 2 * 517 * 10**8 bytes, 96 GiB."""
    of_machine(monkeypatch, 16 * GIB)
    assert runs.run(tmp_path / 'run', queue_size=10**8) == 2
    words = ['the initial state needs 96 GiB', 'for results', 'has 16 GiB', 'queue_size']
    assert_one_line(capsys.readouterr().err, words)
    assert not (tmp_path / 'run').exists()


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp('reference') / 'run'
    assert runs.run(folder, algorithm='supervised_only') == 0
    return folder


OUT_OF_MEMORY = """
from semisfl_jax.training import metrics
import jax
real = metrics.make_record
def make_record(experiment, number, *others):
    if number == 4:
        raise {error}
    return real(experiment, number, *others)
metrics.make_record = make_record"""


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
    remedy = 'data.image_size' if error == 'MemoryError()' else 'server_batch_size'
    for words in ('out of memory', remedy, 'checkpoints'):
        assert words in last
    assert ('77 bytes' in last) == ('77' in error)
    assert runs.run(folder, algorithm='supervised_only') == 0
    assert runs.lines(folder) == runs.lines(reference)


def test_memory_that_ends_in_compiling_ends_in_one_line_and_other_errors_pass(tmp_path, monkeypatch, capsys):
    messages = ['INTERNAL: a bug', 'RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.']

    def compile_(*_, **__):
        raise jax.errors.JaxRuntimeError(messages.pop())

    monkeypatch.setattr(jax.stages.Lowered, 'compile', compile_)
    assert runs.run(tmp_path / 'run', algorithm='supervised_only') == 2
    assert_one_line(capsys.readouterr().err, ['out of memory', 'space hbm', 'server_batch_size'])
    assert not (tmp_path / 'run').exists()
    with pytest.raises(jax.errors.JaxRuntimeError, match='a bug'):
        runs.run(tmp_path / 'run', algorithm='supervised_only')


# --- the machine


def test_the_memory_of_this_machine(tmp_path, monkeypatch):
    total = machine.host_memory()
    assert total is None or 2**28 < total < 2**50
    assert machine.device_memory() is None  # a CPU
    monkeypatch.setattr(machine, 'PROC', tmp_path)  # a machine that does not tell
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert machine.host_memory() is None


@pytest.mark.parametrize(
    ('files', 'expected'),
    [
        ({}, 3000),
        ({'sys/memory.max': 'max'}, 3000),
        ({'sys/a/memory.max': '1500000'}, 1500000 / 1024 + 1000),  # and the machine's swap
        ({'sys/memory.max': '1024000', 'sys/a/memory.max': 'max'}, 2000),
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


def test_sizes_in_words():
    assert [size(n) for n in (17, 1536, 10 * GIB, 2**70)] == ['17 bytes', '1.5 KiB', '10 GiB', '1,048,576 PiB']
