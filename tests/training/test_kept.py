"""A second start of the command takes over the programs of the first one, and computes the same."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import models
from semisfl_jax.algorithms import registry
from semisfl_jax.core import frequency
from semisfl_jax.training import experiment, kept
from semisfl_jax.training.driver import Driver
from semisfl_jax.training.kept import Kept
from tests.helpers import runs

# A start of the command that tells which programs it lowers and compiles; XLA's own functions tell the rest
TELLS = """
import atexit, json, sys
import jax
lowered, lower = [], jax.stages.Traced.lower
def tell(self, *arguments, **named):
    lowered.append(self.fun_name)
    return lower(self, *arguments, **named)
jax.stages.Traced.lower = tell
atexit.register(lambda: print(json.dumps(lowered)))
from semisfl_jax.__main__ import main
sys.exit(main(sys.argv))
"""
OURS = {'init', 'round_', 'counts'}


def start(tmp_path, name, **changes):
    """What a process of its own lowered and printed."""
    script = tmp_path / 'start.py'
    if not script.exists():  # its time is part of what is kept
        script.write_text(TELLS)
    own = {key: value for key, value in os.environ.items() if key != 'JAX_COMPILATION_CACHE_DIR'}
    own |= {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(runs.ROOT), 'XDG_CACHE_HOME': str(tmp_path / 'cache')}
    command = [sys.executable, str(script), *runs.words(tmp_path / name, **{'rounds': 2, **changes})]
    done = subprocess.run(command, cwd=runs.ROOT, env=own, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1])), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    'changes', [{}, {'seeds': (0, 1), 'parallel.devices': 2}, {'algorithm': 'fedavg', 'parallel.devices': 3}]
)
def test_a_second_start_traces_nothing_and_computes_the_same(tmp_path, changes):
    first, printed = start(tmp_path, 'first', **changes)
    assert first & OURS
    assert 'loaded' not in printed
    second, printed = start(tmp_path, 'second', **changes)
    assert not second & OURS, second
    assert printed.count('loaded from cache') == 2
    folders = sorted(
        path.parent.relative_to(tmp_path / 'first') for path in (tmp_path / 'first').rglob('metrics.jsonl')
    )
    assert folders
    for folder in folders:
        first, second = (tmp_path / name / folder for name in ('first', 'second'))
        assert runs.lines(first) == runs.lines(second)
        (one,), (other,) = (list((each / 'checkpoints' / '2').rglob('about/metadata')) for each in (first, second))
        digests = [json.loads(each.read_text())['sha256'] for each in (one, other)]
        assert digests[0] == digests[1]


@pytest.mark.slow
def test_other_seeds_and_lengths_take_over_other_settings_and_resumed_runs_too(tmp_path):
    start(tmp_path, 'first')
    lowered, _ = start(tmp_path, 'other', seed=4, rounds=3)
    assert not lowered & OURS
    lowered, _ = start(tmp_path, 'other', seed=4, rounds=4)
    assert not lowered & OURS
    lowered, _ = start(tmp_path, 'another', lr=0.015)
    assert lowered & OURS


def a_program(calls):
    """What lowers a program that no cache has, and donates its argument."""
    number = np.frombuffer(os.urandom(4), np.uint32)[0]

    def lower():
        calls.append('lowered')
        return jax.jit(lambda x: x * 3 + (x > number), donate_argnums=0).lower(jnp.arange(4, dtype=jnp.uint32))

    return lower


def test_a_program_is_loaded_as_it_was_compiled(tmp_path):
    calls = []
    lower = a_program(calls)
    first = Kept(tmp_path, 'cpu', 'settings')
    compiled = first.lower('round', lower)()
    assert first.value('pieces', lambda: (1, 2)) == (1, 2)
    first.write()
    second = Kept(tmp_path, 'cpu', 'settings')
    loaded = second.lower('round', lower)()
    assert (calls, second.loaded, first.loaded) == (['lowered'], {'round'}, set())
    assert second.value('pieces', lambda: 1 / 0) == (1, 2)
    given = jnp.arange(4, dtype=jnp.uint32)
    np.testing.assert_array_equal(loaded(given), [0, 3, 6, 9])
    assert given.is_deleted()  # donated
    one, other = (each.memory_analysis().alias_size_in_bytes for each in (compiled, loaded))
    assert one == other == 16
    # Under other settings it is lowered, and found by its form
    third = Kept(tmp_path, 'cpu', 'others')
    third.lower('round', lower)()
    assert (len(calls), third.loaded) == (2, {'round'})
    # but not on another machine, nor where nothing is kept
    for other in (Kept(tmp_path, 'another', 'settings of it'), Kept()):
        other.lower('round', lower)()
        assert other.loaded == set()


def test_programs_of_one_text_are_told_apart_by_what_they_do_not_read(tmp_path):
    """As evaluations of two methods, whose states have other queues."""
    number = int.from_bytes(os.urandom(3))
    states = {'read': jnp.arange(2), 'queue': jnp.ones(3)}, {'read': jnp.arange(2), 'queue': ()}
    forms = [jax.jit(lambda state: state['read'] * 3 + number).lower(state) for state in states]
    assert forms[0].as_text() == forms[1].as_text()
    for form, state in zip(forms, states, strict=True):
        each = Kept(tmp_path)
        np.testing.assert_array_equal(each.lower('counts', lambda form=form: form)()(state), [number, 3 + number])
        assert not each.loaded


@pytest.mark.parametrize(
    'harm', [lambda content: content[:-1], lambda content: b'', lambda content: b'\0' * len(content)]
)
def test_a_damaged_file_is_made_again(tmp_path, harm):
    calls = []
    lower = a_program(calls)
    first = Kept(tmp_path, '', 'settings')
    first.lower('round', lower)()
    first.write()
    files = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_size)
    assert len(files) == 2
    for file in files:
        content = file.read_bytes()
        file.write_bytes(harm(content))
        again = Kept(tmp_path, '', 'settings')
        np.testing.assert_array_equal(again.lower('round', lower)()(jnp.arange(4, dtype=jnp.uint32)), [0, 3, 6, 9])
        again.write()
    assert len(calls) == 3


def test_what_was_not_used_for_long_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, 'MOST', 2)
    for index, name in enumerate('abc'):
        each = Kept(tmp_path, start=name)
        each.value('number', lambda: 1)
        each.write()
        os.utime(tmp_path / f'{name}.kept', (index, index))
    assert Kept(tmp_path, start='b').value('number', lambda: 2) == 1  # used: the newest now
    (tmp_path / 'jit_round-cache').touch()
    last = Kept(tmp_path, start='d')
    last.value('number', lambda: 1)
    last.write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ['b.kept', 'd.kept', 'jit_round-cache']


def lowered(**changes):
    """The round of a tiny run, lowered."""
    config = config_lib.resolve(runs.config(**changes))
    driver = Driver(experiment.build_trials(config_lib.trials(config)))
    controllers = [frequency.init(trial.frequency) for trial in driver.trials]
    arguments = driver.arguments(driver.state_shapes, controllers, next(driver.inputs(0)))
    return driver, arguments


def test_keys_that_are_left_out_are_in_no_program(tmp_path):
    values = {
        'seed': 3,
        'rounds': 5,
        'checkpoint_every': 3,
        'checkpoints_kept': 1,
        'diagnostics_every': 2,
        'trackers': (),
    }
    values |= {'data.data_dir': str(tmp_path), 'data.cache_dir': str(tmp_path), 'data.partition_seed': 4}
    assert kept.LEFT_OUT - values.keys() == {'seeds', 'data.partition_file'}  # of which shapes follow, and a split
    texts, names = [], []
    for changes in ({'lr_rounds': 9}, values | {'lr_rounds': 9}, {'lr_rounds': 8}):
        driver, arguments = lowered(**changes)
        texts.append(jax.jit(driver.round()).lower(*arguments).as_text())
        names.append(kept.find(tmp_path, ['code'], driver, arguments)._start)
    assert texts[0] == texts[1] != texts[2]
    assert names[0] == names[1] != names[2]


def test_methods_and_models_of_others_are_found_by_their_form_alone(tmp_path, monkeypatch):
    driver, arguments = lowered()
    assert kept.find(tmp_path, ['code'], driver, arguments)._start
    assert not kept.find(tmp_path, None, driver, arguments)._start  # a call from Python
    other = kept.find(tmp_path, ['other code'], driver, arguments)._start
    assert other != kept.find(tmp_path, ['code'], driver, arguments)._start
    with monkeypatch.context() as patch:
        patch.setitem(models.ARCHITECTURES, 'small_cnn', lambda classes, compute: None)
        assert not kept.find(tmp_path, ['code'], driver, arguments)._start
    monkeypatch.setattr(kept, 'is_ours', lambda method: False)
    assert not kept.find(tmp_path, ['code'], driver, arguments)._start
    assert registry.is_ours(driver.trials[0].method)


def test_code_is_all_that_is_loaded_and_all_of_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, '__main__', SimpleNamespace(__file__=__file__))
    files = {entry[0] for entry in kept.code()[1:]}
    assert {__file__, kept.__file__, jax.__file__, str(runs.ROOT / 'semisfl_jax' / 'lab' / 'cuts.py')} <= files
    monkeypatch.setitem(sys.modules, '__main__', SimpleNamespace())  # a notebook, or python -c
    assert kept.code() is None
