"""Whole runs of the command on the digits: what they write, that they repeat and go on, how they end early, and what
they do with files in their folder that somebody changed."""

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.training import checkpoint, evaluation, interrupt, metrics
from tests.helpers import runs
from tests.helpers.kills import KILL, KILLED_AT
from tests.helpers.marks import slow_but
from tests.helpers.one_line import assert_one_line
from tests.helpers.tensorboard import events

LOSSES = ('loss_supervised', 'loss_consistency', 'loss_clustering')


def test_a_run_writes_its_files_and_numbers_that_make_sense(reference):
    names = {path.name for path in reference.iterdir()}
    files = {'began.json', 'config.json', 'metrics.jsonl', 'partition.npz', 'summary.json'}
    assert names == files | {'.lock', 'checkpoints', 'tensorboard'}
    records = runs.records(reference)
    assert [record['round'] for record in records] == [1, 2, 3, 4]
    assert len({record['k_s'] for record in records}) >= 2
    for index, record in enumerate(records):
        assert all(np.isfinite(record[key]) and record[key] >= 0 for key in LOSSES)
        assert 0 <= record['mask_rate'] <= 1
        assert record['pseudo_label_accuracy'] is None or 0 <= record['pseudo_label_accuracy'] <= 1
        assert record['lr'] == pytest.approx(0.005 + 0.0075 * (1 + np.cos(np.pi * index / 150)), rel=1e-6)
        for model in ('teacher', 'student'):  # shares of the 360 test images
            assert record[f'{model}_accuracy'] * 360 == pytest.approx(round(record[f'{model}_accuracy'] * 360))
        images = record['k_s'] * 4 + 2 * 4 * 3
        assert record['images_per_second'] == pytest.approx(images / record['wall_seconds'], rel=0.02)
        assert not {'fake', 'clients'} & record.keys()
        # Three clients: two bottoms of 4,800 numbers down and one up; of 2 iterations with 4 images two sets of 128
        # features each up, one gradient down.
        assert record['bytes_down'] == (index + 1) * 3 * 4 * (2 * 4_800 + 2 * 4 * 128)
        assert record['bytes_up'] == (index + 1) * 3 * 4 * (4_800 + 2 * 4 * 2 * 128)
    seconds = np.diff([0.0, *(record['simulated_seconds'] for record in records)])
    assert np.all(seconds > 0)
    assert len(set(seconds)) == 4  # every round has a network of its own


def test_summary_follows_from_the_lines(reference):
    records = runs.records(reference)
    accuracy = [record['teacher_accuracy'] for record in records]
    summary = json.loads((reference / 'summary.json').read_text())
    assert (summary['headline'], summary['rounds'], summary['fake']) == ('teacher', 4, False)
    assert (summary['final_accuracy'], summary['best_accuracy']) == (accuracy[-1], max(accuracy))
    assert summary['mean_of_last_10_evaluations'] == pytest.approx(sum(accuracy) / 4)
    assert summary['wall_seconds'] == pytest.approx(sum(record['wall_seconds'] for record in records), abs=1e-3)
    assert [summary[name] for name in metrics.COSTS] == [records[-1][name] for name in metrics.COSTS]
    assert summary['compile_seconds'] > 0
    assert summary['peak_memory_bytes'] > 2**20
    assert summary['versions']['jax'] == jax.__version__
    assert jax.devices()[0].platform in summary['device']
    git = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=runs.ROOT, capture_output=True, text=True)
    assert (git.stdout or f'version {sfl.__version__}').startswith(summary['commit'].rstrip('+'))


def test_tensorboard_holds_the_same_numbers(reference):
    scalars, _ = events(reference)
    for record in runs.records(reference):
        for key in ('k_s', 'loss_supervised', 'teacher_accuracy', *metrics.COSTS):
            assert (record['round'], key, np.float32(record[key])) in scalars


@pytest.mark.slow
@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs /dev/full')
def test_a_full_disk_ends_a_run_with_one_line(tmp_path):
    """Neither a thread nor a hook at the exit of Python prints a traceback after it."""
    prelude = """
from tensorboardX import record_writer
record_writer.open_file = lambda path: open('/dev/full', 'wb')"""
    stopped = runs.run_process(tmp_path, prelude, algorithm='supervised_only')
    assert stopped.returncode == 2
    assert_one_line(stopped.stderr, ['No space left on device'])


@pytest.mark.slow
def test_more_rounds_go_on_from_the_last_in_one_program(reference, tmp_path, capsys, monkeypatch):
    folder, traces = tmp_path / 'run', []
    runs.change_rounds(monkeypatch, lambda round_: lambda *inputs: (traces.append(1), round_(*inputs))[1])
    for rounds in (3, 4):
        assert runs.run(folder, rounds=rounds) == 0
    assert len(traces) == 2, 'one a run, though K_s changes'
    assert 'resuming from the checkpoint of round 3' in capsys.readouterr().out
    assert runs.lines(folder) == runs.lines(reference)
    for name in ('summary.json', 'config.json'):
        assert json.loads((folder / name).read_text())['rounds'] == 4
    assert events(folder)[1][-1] == 4  # TensorBoard hides what an earlier process wrote of round 4 and later


@pytest.mark.as_for_users
def test_images_on_the_host_and_other_costs_change_no_other_byte(reference, tmp_path):
    assert runs.run(tmp_path / 'host', data__residency='host') == 0
    assert runs.lines(tmp_path / 'host') == runs.lines(reference)
    assert runs.run(tmp_path / 'slow', cost__client_out=(0.1, 0.2)) == 0
    for lines in zip(runs.lines(tmp_path / 'slow'), runs.lines(reference), strict=True):
        slow, plain = map(json.loads, lines)
        assert slow.pop('simulated_seconds') > 3 * plain.pop('simulated_seconds')
        assert slow == plain


def test_without_clients_on_made_up_data_every_output_is_marked(tmp_path, capsys):
    assert runs.run(tmp_path, algorithm='supervised_only', rounds=2, data__fake=True) == 0
    for record in runs.records(tmp_path):
        assert record['fake'] is True
        assert record['loss_supervised'] > 0
        assert record['loss_consistency'] is record['loss_clustering'] is None
        assert record['images_per_second'] == pytest.approx(8 * 4 / record['wall_seconds'], rel=0.02)
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert (summary['headline'], summary['fake']) == ('student', True)
    assert json.loads((tmp_path / 'config.json').read_text())['data']['fake'] is True
    assert all(tag.startswith('FAKE/') for _, tag, _ in events(tmp_path)[0])
    printed = capsys.readouterr().out
    assert printed.startswith('*** FAKE DATA')
    assert 'accuracy on FAKE data' in printed


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
from semisfl_jax.training import metrics
append = metrics.append
def killing(path, record):
    append(path, record)
    record['round'] == 1 and os.kill(os.getpid(), {signal.SIGTERM:d})
metrics.append = killing"""
    stopped = runs.run_process(tmp_path / 'run', prelude, **CHEAP, rounds=200)
    assert (stopped.returncode, 'Traceback' in stopped.stderr) == (128 + signal.SIGTERM, False)
    done = checkpoint.rounds_saved(tmp_path / 'run' / 'checkpoints')[-1]
    assert f'stopped after round {done}' in stopped.stdout
    assert done < 200
    for folder in ('run', 'undisturbed'):
        assert runs.run(tmp_path / folder, **CHEAP, rounds=done + 1) == 0
    assert runs.lines(tmp_path / 'run') == runs.lines(tmp_path / 'undisturbed')


def test_a_signal_before_the_first_round_leaves_no_trace(tmp_path, monkeypatch, capsys):
    compile_evaluation, listen, requests = evaluation.compile_evaluate, interrupt.listen, []
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}

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
