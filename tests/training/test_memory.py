"""Memory that does not suffice: found by the compiler's account before anything is written, or in spite of it; and what
else a machine, or JAX's own settings, may lack."""

from types import SimpleNamespace

import jax
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError
from semisfl_jax.training import memory
from tests.helpers import runs
from tests.helpers.one_line import assert_one_line

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
    with pytest.raises(UserError, match=r'needs 8 GiB .* 4 GiB'):
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
    with pytest.raises(UserError, match=r'needs 1 GiB .* 512 MiB'):
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


def test_a_state_that_does_not_fit_is_refused_before_it_is_made(monkeypatch, tmp_path, capsys):
    """Two levels of 128 float32 and an int32, a bool for each slot: 2 * 517 * 10**8 bytes, 96 GiB."""
    of_machine(monkeypatch, 16 * GIB)
    assert runs.run(tmp_path / 'run', queue_size=10**8) == 2
    assert_one_line(capsys.readouterr().err, ['96 GiB', '16 GiB', 'queue_size'])
    assert not (tmp_path / 'run').exists()


OUT_OF_MEMORY = """
from semisfl_jax.training import metrics
import jax
real = metrics.make_record
def make_record(experiment, number, *others):
    if number == 4:
        raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 77 bytes.\\nmore')
    return real(experiment, number, *others)
metrics.make_record = make_record"""


@pytest.mark.slow
def test_memory_that_ends_in_a_run_ends_in_one_line(tmp_path):
    failed = runs.run_process(tmp_path / 'run', OUT_OF_MEMORY, algorithm='supervised_only')
    assert failed.returncode == 2
    assert 'Traceback' not in failed.stderr
    last = failed.stderr.splitlines()[-1]
    assert all(words in last for words in ('77 bytes', 'server_batch_size'))
    for folder in ('run', 'whole'):
        assert runs.run(tmp_path / folder, algorithm='supervised_only') == 0
    assert runs.lines(tmp_path / 'run') == runs.lines(tmp_path / 'whole')


def test_memory_that_ends_in_compiling_ends_in_one_line_and_other_errors_pass(tmp_path, monkeypatch, capsys):
    def compiling_raises(error):
        def compile_(*_, **__):
            raise error

        monkeypatch.setattr(jax.stages.Lowered, 'compile', compile_)

    compiling_raises(jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: memory space hbm is full'))
    assert runs.run(tmp_path / 'run', algorithm='supervised_only') == 2
    assert_one_line(capsys.readouterr().err, ['space hbm', 'server_batch_size'])
    compiling_raises(MemoryError('images'))
    assert runs.run(tmp_path / 'run', algorithm='supervised_only') == 2
    assert_one_line(capsys.readouterr().err, ['images', 'a smaller data.image_size'])  # of the host
    assert not (tmp_path / 'run').exists()
    compiling_raises(jax.errors.JaxRuntimeError('INTERNAL: a bug'))
    with pytest.raises(jax.errors.JaxRuntimeError, match='a bug'):
        runs.run(tmp_path / 'run', algorithm='supervised_only')
