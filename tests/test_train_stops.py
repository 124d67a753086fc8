"""Runs that end early: killed, stopped, with numbers that blow up, with another process in their folder."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.training import checkpoint, evaluation, experiment, interrupt, outputs
from tests import runs
from tests.kills import KILL, KILLED_AT
from tests.marks import slow_but
from tests.one_line import assert_one_line

CHEAP = {'algorithm': 'supervised_only'}


@pytest.mark.parametrize('moment', slow_but(KILLED_AT, 'after line 3'))
def test_a_killed_run_goes_on_to_the_same_bytes(reference, tmp_path, moment):
    killed = runs.run_process(tmp_path, prelude=f'{KILL}\n{KILLED_AT[moment]}')
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / 'summary.json').exists()
    assert runs.run(tmp_path) == 0
    assert runs.lines(tmp_path) == runs.lines(reference)
    assert json.loads((tmp_path / 'summary.json').read_text())['rounds'] == 4


@pytest.mark.slow
def test_a_first_signal_saves_and_stops(tmp_path):
    prelude = f"""
import os
from semisfl_jax.training import outputs
outputs.log_events = lambda events, record: record['round'] == 1 and os.kill(os.getpid(), {signal.SIGTERM:d})"""
    stopped = runs.run_process(tmp_path / 'run', prelude, **CHEAP, rounds=200)
    assert (stopped.returncode, stopped.stderr) == (128 + signal.SIGTERM, '')
    done = checkpoint.rounds_saved(tmp_path / 'run' / 'checkpoints')[-1]
    assert f'stopped after round {done}' in stopped.stdout
    assert done < 200
    for folder in ('run', 'undisturbed'):
        assert runs.run(tmp_path / folder, **CHEAP, rounds=done + 1) == 0
    assert runs.lines(tmp_path / 'run') == runs.lines(tmp_path / 'undisturbed')


def test_a_signal_before_the_first_round_leaves_no_trace(tmp_path, monkeypatch, capsys):
    compile_evaluation, listen, requests = evaluation.compile_evaluate, interrupt.listen, []
    before = {signum: signal.getsignal(signum) for signum in interrupt.SIGNALS}

    @contextmanager
    def listening():
        with listen() as request:
            requests.append(request)
            assert all(signal.getsignal(signum) != before[signum] for signum in before)
            yield request

    def interrupted(*arguments):
        compiled = compile_evaluation(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        while not requests[0].signum:  # another thread takes note
            time.sleep(0.01)
        return compiled

    monkeypatch.setattr(interrupt, 'listen', listening)
    monkeypatch.setattr(evaluation, 'compile_evaluate', interrupted)
    assert runs.run(tmp_path / 'run', **CHEAP) == 130
    assert 'stopped before round 1' in capsys.readouterr().out
    assert not (tmp_path / 'run').exists()
    assert before == {signum: signal.getsignal(signum) for signum in before}, 'signals are given back'


@pytest.mark.slow
def test_a_second_signal_ends_at_once():
    code = """
import os, signal, time
from semisfl_jax.training import interrupt
with interrupt.listen() as request:
    os.kill(os.getpid(), signal.SIGINT)
    while not request.signum:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)
print('was not ended')
"""
    ended = subprocess.run([sys.executable, '-c', code], cwd=runs.ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (130, '')
    assert 'interrupt again' in ended.stderr


@pytest.mark.parametrize(
    ('settings', 'spoilt', 'named'),
    [
        (CHEAP | {'seed': 1}, 'loss_supervised', 'loss_supervised is nan in round 3'),
        (CHEAP | {'seeds': '0,1'}, 'weights', 'seed 1: weights are infinite or NaN after round 3'),
        pytest.param({'seed': 1}, 'loss_clustering', 'loss_clustering is nan in round 3', marks=pytest.mark.slow),
    ],
)
def test_numbers_that_blow_up_end_the_run_and_spare_the_last_checkpoint(
    tmp_path, monkeypatch, capsys, settings, spoilt, named
):
    def change(round_):
        def changed(key, state, *rest):
            after, metrics = round_(key, state, *rest)
            bad = jnp.where((state.round == 2) & (jax.random.key_data(key)[-1] == 1), jnp.nan, 0.0)
            if spoilt == 'weights':
                return after.replace(student=jax.tree.map(lambda x: x + bad, after.student)), metrics
            return after, metrics | {spoilt: metrics[spoilt] + bad}

        return changed

    with monkeypatch.context() as patch:
        runs.change_rounds(patch, change)
        assert runs.run(tmp_path, rounds=3, **settings) == 3
    assert_one_line(capsys.readouterr().err, [named, 'round 2'])
    folders = list(tmp_path.rglob('checkpoints'))
    assert [checkpoint.rounds_saved(folder) for folder in folders] == [[2]] * (2 if 'seeds' in settings else 1)
    assert not list(tmp_path.rglob('summary.json'))
    assert runs.run(tmp_path, rounds=3, **settings) == 0  # with the fault gone, it goes on from there


def test_a_second_process_in_the_same_folder_is_refused(tmp_path, capsys):
    config = config_lib.resolve(runs.config(**CHEAP))
    with outputs.lock_folder(tmp_path, config, experiment.build(config).partition):
        assert runs.run(tmp_path, **CHEAP) == 2
    assert_one_line(capsys.readouterr().err, [str(tmp_path)])
    assert not (tmp_path / 'metrics.jsonl').exists()
