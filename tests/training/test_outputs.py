"""The files of a run: folders that somebody changed, power cuts."""

import json
import os
import re
import shutil

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import runs as runs_lib
from semisfl_jax.base.errors import UserError
from semisfl_jax.training import checkpoint, experiment, load, loop, metrics, outputs
from tests.helpers import power, runs
from tests.helpers.one_line import assert_one_line

CHEAP = {'algorithm': 'supervised_only'}


def test_a_second_process_in_the_same_folder_is_refused(tmp_path, capsys):
    config = config_lib.resolve(runs.config(**CHEAP))
    with outputs.lock_folder(tmp_path, config, experiment.build(config)):
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


def test_a_power_cut_loses_no_round_that_was_saved(made, tmp_path, monkeypatch, capsys):
    """At whatever sync it comes, and when the run has ended."""
    root, saved, save = tmp_path / 'disk' / 'of', [0], checkpoint.save
    root.mkdir(parents=True)

    def reporting(folder, number, *rest):
        save(folder, number, *rest)
        saved.append(number)

    def cut():
        left = disk.left(tmp_path / f'cut {len(list(tmp_path.iterdir()))}') / 'run'
        numbers = [number for number in checkpoint.rounds_saved(left / 'checkpoints') if number >= saved[-1]]
        usable = [number for number in numbers if not checkpoint.check(left / 'checkpoints', number)]
        assert usable or saved == [0]
        assert len(metrics.read(left / 'metrics.jsonl')) >= max(usable, default=0)
        return left

    monkeypatch.setattr(checkpoint, 'save', reporting)
    disk = power.Disk(root, monkeypatch, cut)
    assert runs.run(root / 'run', **CHEAP, checkpoints_kept=1) == 0
    monkeypatch.undo()
    assert saved == [0, 2, 4]
    capsys.readouterr()
    ended = cut()
    assert runs.run(ended, **CHEAP, checkpoints_kept=1) == 0
    printed = capsys.readouterr()
    assert '4 rounds already done' in printed.out
    assert not printed.err
    assert runs.run(ended, **LONGER) == 0
    assert runs.lines(ended) == runs.lines(made / 'longer')


def test_a_finished_run_says_that_its_models_are_lost(folder, capsys):
    empty_checkpoints(folder, None)
    capsys.readouterr()
    assert runs.run(folder, **CHEAP) == 0
    printed = capsys.readouterr()
    assert '4 rounds already done' in printed.out
    assert printed.err.startswith(f'warning: {folder} is done, but its last checkpoint is unusable')
    assert printed.err.count('\n') == 1


def test_a_changed_summary_is_written_anew_and_a_changed_line_stops_a_run(made, folder, capsys):
    file, lines = folder / 'summary.json', (folder / 'metrics.jsonl').read_text().splitlines(keepends=True)
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {'final_accuracy': 0.5}))
    assert outputs.finished(folder, 4) is None
    assert runs.run(folder, **CHEAP) == 0
    assert 'resuming from the checkpoint of round 4' in capsys.readouterr().out
    assert json.loads(file.read_text())['final_accuracy'] == whole['final_accuracy']
    assert runs.lines(folder) == runs.lines(made / 'finished')
    record = json.loads(lines[3])
    (folder / 'metrics.jsonl').write_text(''.join(lines[:3]) + json.dumps(record | {'student_accuracy': 1.0}) + '\n')
    before, _ = runs.files(folder), capsys.readouterr()
    assert runs.run(folder, **LONGER) == 2
    assert_one_line(capsys.readouterr().err, ['metrics.jsonl', 'restore'])
    assert runs.files(folder) == before
    (folder / 'metrics.jsonl').write_text(''.join(lines[:3]) + json.dumps(record | {'wall_seconds': 1e6}) + '\n')
    assert runs.run(folder, **LONGER) == 0
    assert runs.lines(folder)[4:] == runs.lines(made / 'longer')[4:]
    ours, theirs = (json.loads((each / 'summary.json').read_text()) for each in (folder, made / 'longer'))
    assert ours['metrics_sha256'] == theirs['metrics_sha256']


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
        lambda: runs_lib.read_run(folder),
    ):
        with pytest.raises(UserError, match=re.escape(str(folder))) as caught:
            reader()
        assert '\n' not in str(caught.value)
        assert len(str(caught.value)) < 600
