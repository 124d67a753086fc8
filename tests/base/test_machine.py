"""A second start finds the programs of the first."""

import gc
import json
import os
import resource
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache

from semisfl_jax import config as config_lib
from semisfl_jax import core, models
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core.supervised import steps_at_once
from tests.helpers import runs

SETTINGS = {
    'jax_enable_x64': True,
    'jax_disable_jit': True,
    'jax_debug_nans': True,
    'jax_numpy_rank_promotion': 'raise',
    'jax_numpy_dtype_promotion': 'strict',
    'jax_transfer_guard': 'disallow',
    'jax_transfer_guard_host_to_device': 'disallow_explicit',
}
WITHOUT_POSIX = """
import os, signal, sys
for name in ('fcntl', 'grp', 'pwd', 'resource', 'termios'):
    sys.modules[name] = None  # importing it fails
for name in ('SIGHUP', 'SIGPIPE', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2', 'SIGXCPU'):
    delattr(signal, name)
for name in ('sched_getaffinity', 'getuid', 'geteuid', 'uname'):
    delattr(os, name)
"""


COUNT = """
import atexit, json
from semisfl_jax.base import machine
machine.KEPT_FROM_SECONDS = 0.0  # all: those near the limit are kept or not as the machine is busy
counting = machine.count_compilations()
counted = counting.__enter__()
atexit.register(lambda: print(json.dumps([counted[f'cache_{what}'] for what in ('hits', 'misses')])))"""


def start(tmp_path, monkeypatch, name, **changes):
    """Hits and misses of a process, and what it printed."""
    monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    result = runs.run_process(tmp_path / name, prelude=COUNT, rounds=2, **changes)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1]), result.stdout


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path, monkeypatch):
    (hits, misses), printed = start(tmp_path, monkeypatch, 'first')
    assert misses > 0
    assert 'loaded from cache' not in printed
    (hits, misses), printed = start(tmp_path, monkeypatch, 'second')
    assert hits > 0
    assert misses == 0
    assert 'loaded from cache' in printed
    assert runs.lines(tmp_path / 'first') == runs.lines(tmp_path / 'second')


def test_programs_that_were_not_written_whole_are_made_again(tmp_path):
    """JAX leaves what a full disk cut short where it is, and reads it in vain at every start."""
    whole, cut, later = (tmp_path / f'{name}-cache' for name in ('whole', 'cut', 'later'))
    whole.write_bytes(compilation_cache.compress_executable(b'program' * 99))
    cut.write_bytes(whole.read_bytes()[:-3])
    machine._remove_damaged(tmp_path)
    assert (whole.exists(), cut.exists()) == (True, False)
    later.write_bytes(b'')
    whole.write_bytes(b'seen')
    os.utime(whole, (0, 0))
    machine._remove_damaged(tmp_path)
    assert (whole.exists(), later.exists()) == (True, False)


@pytest.mark.parametrize(('precision', 'in_program'), [('float32', '[HIGHEST, HIGHEST]'), ('tf32', '[HIGH, HIGH]')])
def test_programs_have_the_precision_and_the_kernels_that_are_asked_for(precision, in_program, monkeypatch):
    assert in_program in machine.jit(lambda x: x @ x, precision).lower(jnp.ones((2, 2))).as_text()
    made = mock.Mock()
    monkeypatch.setattr(jax, 'jit', made)
    with machine.programs_for('gpu'):
        machine.jit(print, precision, deterministic=False)
    assert made.call_args.kwargs['compiler_options'] == {'xla_gpu_deterministic_ops': False}


def test_garbage_is_left_alone_only_meanwhile():
    @machine.gc_paused()
    def fail():
        assert not gc.isenabled()
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with machine.gc_paused():
            pass
        assert not gc.isenabled()  # as the caller had it
    finally:
        gc.enable()


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


@pytest.mark.parametrize('name', SETTINGS)
def test_a_setting_of_jax_that_stops_every_run_is_named_before_it(name):
    config, before = runs.config(), getattr(jax.config, name)
    config_lib.check(config)
    try:
        jax.config.update(name, SETTINGS[name])
        with pytest.raises(UserError, match=f'{name}={SETTINGS[name]} .* unset {name.upper()}'):
            config_lib.check(config)
    finally:
        jax.config.update(name, before)


@pytest.mark.parametrize('devices', [0, 1])
@pytest.mark.parametrize('error', [RuntimeError("Unable to initialize backend 'cuda'"), AssertionError()])
def test_a_device_that_is_not_there_is_named(error, devices, monkeypatch):
    monkeypatch.setattr(jax, 'default_backend', mock.Mock(side_effect=error))
    with pytest.raises(UserError, match=r'JAX_PLATFORMS=.* no such device .*JAX_PLATFORMS=cpu'):
        count_devices(config_lib.resolve(runs.config(parallel__devices=devices)))


@pytest.mark.slow
def test_a_run_needs_nothing_that_windows_lacks(tmp_path):
    """As far as another system can tell: its modules, signals and functions."""
    done = runs.run_process(tmp_path, WITHOUT_POSIX, rounds=1, algorithm='supervised_only')
    assert done.returncode == 0, done.stderr
    assert len(runs.records(tmp_path)) == 1


def test_programs_for_another_platform():
    here = machine.platform()
    assert here == jax.default_backend()
    expected = {'cpu': ('winograd', 'loop'), 'gpu': ('native', 'vmap'), 'tpu': ('native', 'vmap')}
    for platform, (convolution, name) in expected.items():
        with machine.programs_for(platform):
            assert machine.platform() == platform
            assert models._lowering('auto') == convolution
            assert core.clients.trial_map('auto')[0] == name
            one, ahead = (steps_at_once(np.zeros((1, side, side, 3), np.uint8), 128) for side in (512, 32))
            assert (one, ahead) == ((1, 1) if platform == 'cpu' else (1, 2**26 // (128 * 3072)))
    with pytest.raises(ZeroDivisionError), machine.programs_for('tpu'):
        raise ZeroDivisionError
    assert machine.platform() == here
