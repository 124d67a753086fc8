"""A second start finds the programs of the first."""

import gc
import json
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from semisfl_jax.core import machine
from tests import runs

COUNT = """
import atexit, json
from semisfl_jax.core import machine
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
    assert 'cached by an earlier run' not in printed
    (hits, misses), printed = start(tmp_path, monkeypatch, 'second')
    assert hits > 0
    assert misses == 0
    assert 'cached by an earlier run' in printed
    assert runs.lines(tmp_path / 'first') == runs.lines(tmp_path / 'second')


@pytest.mark.parametrize(('precision', 'in_program'), [('float32', '[HIGHEST, HIGHEST]'), ('tf32', '[HIGH, HIGH]')])
def test_programs_have_the_precision_and_the_kernels_that_are_asked_for(precision, in_program, monkeypatch):
    assert in_program in machine.jit(lambda x: x @ x, precision).lower(jnp.ones((2, 2))).as_text()
    made = mock.Mock()
    monkeypatch.setattr(jax, 'jit', made)
    with machine.programs_for('gpu'):
        machine.jit(print, precision, deterministic=False)
    assert made.call_args.kwargs['compiler_options'] == {'xla_gpu_deterministic_ops': False}


def test_garbage_is_left_alone_only_meanwhile():
    @machine.without_collecting()
    def fail():
        assert not gc.isenabled()
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with machine.without_collecting():
            pass
        assert not gc.isenabled()  # as the caller had it
    finally:
        gc.enable()
