"""Whole runs of the command on the digits: what they write, that they repeat and go on, how they end early, and what
they do with files in their folder that somebody changed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from semisfl_jax import config as config_lib
from semisfl_jax import runs as runs_lib
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import checkpoint, evaluation, experiment, interrupt, load, loop, metrics, outputs
from tests import runs
from tests.kills import KILL, KILLED_AT
from tests.marks import slow_but
from tests.one_line import assert_one_line

LOSSES = ('loss_supervised', 'loss_consistency', 'loss_clustering')


def test_outputs(reference):
    names = {path.name for path in reference.iterdir()}
    files = {'config.json', 'metrics.jsonl', 'partition.npz', 'summary.json'}
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
    assert (git.stdout or 'version 0.1.0').startswith(summary['commit'].rstrip('+'))


def events(folder):
    """(step, tag, value) of every scalar in the TensorBoard files of a run, and the steps from which they purge."""
    scalars, purges = [], []
    for path in sorted((folder / 'tensorboard').iterdir(), key=lambda path: path.stat().st_mtime_ns):
        content, at = path.read_bytes(), 0
        while at < len(content):  # TFRecord: length, CRC, payload, CRC
            length = int.from_bytes(content[at : at + 8], 'little')
            event = event_pb2.Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            purges += [event.step] if event.HasField('session_log') else []
    return scalars, purges


def test_tensorboard_holds_the_same_numbers_before_the_end(reference, tmp_path):
    scalars, _ = events(reference)
    for record in runs.records(reference):
        for key in ('k_s', 'loss_supervised', 'teacher_accuracy', *metrics.COSTS):
            assert (record['round'], key, np.float32(record[key])) in scalars
    written = outputs.open_events(tmp_path / 'tensorboard', 1)
    outputs.log_events(written, {'round': 1, 'a': 1.0})
    outputs.log_events(written, {'round': 2, 'validation': True, 'student_accuracy': 0.5, 'lr': 1.0})
    found = [(1, 'a', 1.0), (2, 'VALIDATION/student_accuracy', 0.5), (2, 'lr', 1.0)]
    assert events(tmp_path)[0] == found
    written.close()


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
from semisfl_jax.training import outputs
outputs.log_events = lambda events, record: record['round'] == 1 and os.kill(os.getpid(), {signal.SIGTERM:d})"""
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


def test_what_another_process_trained_since_the_start_is_kept(tmp_path, capsys, monkeypatch):
    """It begins as this one has looked at the folder, and is done when this one has compiled."""
    compile_, rounds = loop._compile, [2]

    def late(*arguments):
        if rounds:
            assert runs.run(tmp_path, **CHEAP, rounds=rounds.pop()) == 0
        return compile_(*arguments)

    monkeypatch.setattr(loop, '_compile', late)
    assert runs.run(tmp_path, **CHEAP, rounds=2, lr=0.03) == 2
    assert_one_line(capsys.readouterr().err, [str(tmp_path), 'lr: '])
    rounds.append(3)
    assert runs.run(tmp_path, **CHEAP, rounds=4) == 2
    assert_one_line(capsys.readouterr().err, [str(tmp_path), 'start it again'])
    assert len(runs.lines(tmp_path)) == 3


LONGER = CHEAP | {'rounds': 6}


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """A run of four rounds, saved after the second and the fourth; the same with six; and six of another seed."""
    root = tmp_path_factory.mktemp('made')
    for name, changes in (('finished', CHEAP), ('longer', LONGER), ('other', LONGER | {'seed': 1})):
        assert runs.run(root / name, **changes) == 0
    return root


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the finished run, to be spoilt."""
    return shutil.copytree(made / 'finished', tmp_path / 'run')


def empty_checkpoints(folder, _):
    for path in (folder / 'checkpoints').glob('**/*'):
        path.is_file() and os.truncate(path, 0)


def checkpoints_of_another_run(folder, other):
    shutil.rmtree(folder / 'checkpoints')
    shutil.copytree(other / 'checkpoints', folder / 'checkpoints')


def half_a_file_alone(name):
    def spoil(folder, _):
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / name).write_text('{"half')

    return spoil


SPOILT = {
    'fewer rounds': (lambda *_: None, {'rounds': 2}, ['config.rounds=2']),
    'another configuration': (lambda *_: None, {'lr': 0.03, 'seed': 4}, ['lr: 0.02 -> 0.03', 'seed: 0 -> 4']),
    'another split': (lambda folder, other: shutil.copy(other / 'partition.npz', folder), {}, ['partition.npz']),
    'half a split': (lambda folder, _: os.truncate(folder / 'partition.npz', 500), {}, ['partition.npz']),
    'checkpoints without content': (empty_checkpoints, {}, ['checkpoint']),
    'checkpoints of another run': (checkpoints_of_another_run, {}, ['checkpoints/6', 'seed=1']),
    'no checkpoints': (lambda folder, _: shutil.rmtree(folder / 'checkpoints'), {}, ['summary.json']),
    'no lines': (lambda folder, _: (folder / 'metrics.jsonl').unlink(), {}, ['metrics.jsonl']),
    'half a config.json': (half_a_file_alone('config.json'), {}, ['config.json']),
    'half a line': (half_a_file_alone('metrics.jsonl'), {}, ['metrics.jsonl']),
}


@pytest.mark.parametrize('name', SPOILT)
def test_a_folder_that_is_not_this_runs_is_left_alone(name, made, folder, capsys):
    spoil, changes, words = SPOILT[name]
    spoil(folder, made / 'other')
    before = runs.files(folder)
    capsys.readouterr()
    assert runs.run(folder, **LONGER | changes) == 2
    assert_one_line(capsys.readouterr().err, words)
    assert runs.files(folder) == before


def test_checkpoints_and_a_split_that_do_not_fit_are_made_again(made, folder, capsys):
    saved = folder / 'checkpoints'
    shutil.rmtree(saved / '4')
    shutil.copytree(saved / '2', saved / '4')
    shutil.copytree(made / 'other' / 'checkpoints' / '6', saved / '6')
    (folder / 'partition.npz').unlink()
    capsys.readouterr()
    assert runs.run(folder, **LONGER) == 0
    printed = capsys.readouterr()
    assert 'resuming from the checkpoint of round 2' in printed.out
    other, earlier = printed.err.splitlines()
    assert f'{saved}/6: it has seed=1, not 0' in other
    assert f'{saved}/4: it has round=2, not 4' in earlier
    assert runs.lines(folder) == runs.lines(made / 'longer')
    assert (folder / 'partition.npz').read_bytes() == (made / 'longer' / 'partition.npz').read_bytes()
    assert checkpoint.rounds_saved(saved) == [4, 6]


def test_a_changed_summary_is_written_anew_and_a_changed_line_reaches_no_later_one(made, folder, capsys):
    file, lines = folder / 'summary.json', (folder / 'metrics.jsonl').read_text().splitlines(keepends=True)
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {'final_accuracy': 0.5}))
    assert outputs.finished(folder, 4) is None
    assert runs.run(folder, **CHEAP) == 0
    assert 'resuming from the checkpoint of round 4' in capsys.readouterr().out
    assert json.loads(file.read_text())['final_accuracy'] == whole['final_accuracy']
    assert runs.lines(folder) == runs.lines(made / 'finished')
    record = json.loads(lines[3])
    record.update(bytes_up=record['bytes_up'] + 1, simulated_seconds=1e6, wall_seconds=1e6, student_accuracy=1.0)
    (folder / 'metrics.jsonl').write_text(''.join(lines[:3]) + json.dumps(record) + '\n')
    assert runs.run(folder, **LONGER) == 0
    assert runs.lines(folder)[4:] == runs.lines(made / 'longer')[4:]
    ours, theirs = (json.loads((each / 'summary.json').read_text()) for each in (folder, made / 'longer'))
    for key in ('final_accuracy', 'best_accuracy', 'mean_of_last_10_evaluations', 'bytes_up', 'simulated_seconds'):
        assert ours[key] == theirs[key]
    assert ours['wall_seconds'] < 1000


CONTENTS = [b'[]', b'round 1', b'\xff\xfe{', b'[' * 100_000, b'9' * 5000, os.mkdir, os.mkfifo]


@pytest.mark.parametrize('content', CONTENTS, ids=['list', 'text', 'no_utf8', 'deep', 'digits', 'folder', 'pipe'])
def test_whatever_stands_in_the_place_of_a_file_is_one_line(folder, content):
    for name in ('config.json', 'metrics.jsonl', 'summary.json'):
        (folder / name).unlink()
        if callable(content):
            content(folder / name)
        else:
            (folder / name).write_bytes(content + b'\n')
    assert outputs.finished(folder, 4) is None
    config = config_lib.resolve(runs.config(**CHEAP))
    for reader in (
        lambda: load.experiment(folder),
        lambda: metrics.read(folder / 'metrics.jsonl'),
        lambda: outputs.check_folder(folder, config),
        lambda: runs_lib.read(folder),
    ):
        with pytest.raises(UserError, match=re.escape(str(folder))) as caught:
            reader()
        assert '\n' not in str(caught.value)
        assert len(str(caught.value)) < 600
