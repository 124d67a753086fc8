"""What a run does with checkpoints of other runs, and with files in its folder that somebody changed."""

import json
import os
import re
import shutil

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import runs as runs_lib
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import checkpoint, load, metrics, outputs
from tests import runs
from tests.one_line import assert_one_line

CHEAP = {'algorithm': 'supervised_only', 'rounds': 4}


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A run of four rounds, saved after the second and the fourth."""
    folder = tmp_path_factory.mktemp('finished') / 'run'
    assert runs.run(folder, **CHEAP) == 0
    return folder


@pytest.fixture(scope='module')
def longer(tmp_path_factory):
    """The same run with six rounds, which nothing disturbed."""
    folder = tmp_path_factory.mktemp('longer') / 'run'
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the finished run, to be spoilt."""
    return shutil.copytree(finished, tmp_path / 'run')


# --- checkpoints


def test_checkpoints_that_do_not_fit_are_passed_over_and_written_again(folder, longer, tmp_path, capsys):
    assert runs.run(tmp_path / 'other', **CHEAP | {'rounds': 6}, seed=1) == 0
    saved = folder / 'checkpoints'
    shutil.rmtree(saved / '4')
    shutil.copytree(saved / '2', saved / '4')
    shutil.copytree(tmp_path / 'other' / 'checkpoints' / '6', saved / '6')
    capsys.readouterr()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    printed = capsys.readouterr()
    assert 'resuming from the checkpoint of round 2' in printed.out
    other, earlier = printed.err.splitlines()
    assert f'{saved}/6: it has seed=1, not 0' in other
    assert f'{saved}/4: it has round=2, not 4' in earlier
    assert runs.lines(folder) == runs.lines(longer)
    assert checkpoint.rounds_saved(saved) == [4, 6]


def test_where_all_checkpoints_are_of_another_run_nothing_is_touched(folder, tmp_path, capsys):
    assert runs.run(tmp_path / 'other', **CHEAP, seed=1) == 0
    shutil.rmtree(folder / 'checkpoints')
    shutil.copytree(tmp_path / 'other' / 'checkpoints', folder / 'checkpoints')
    before = runs.files(folder)
    capsys.readouterr()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 2
    assert_one_line(capsys.readouterr().err, [f'{folder}/checkpoints/4: it has seed=1, not 0'])
    assert runs.files(folder) == before


def test_a_damaged_split_is_written_again_once_it_is_deleted(folder, longer, capsys):
    split = folder / 'partition.npz'
    whole = split.read_bytes()
    split.write_bytes(whole[:-100])
    before = runs.files(folder)
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 2
    assert_one_line(capsys.readouterr().err, [str(split), 'delete it'])
    assert runs.files(folder) == before
    split.unlink()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    assert split.read_bytes() == whole
    assert runs.lines(folder) == runs.lines(longer)


# --- files in the folder


def test_a_changed_line_reaches_no_later_one(folder, longer):
    lines = (folder / 'metrics.jsonl').read_text().splitlines(keepends=True)
    record = json.loads(lines[3])
    record.update(bytes_up=record['bytes_up'] + 1, simulated_seconds=1e6, wall_seconds=1e6, student_accuracy=1.0)
    (folder / 'metrics.jsonl').write_text(''.join(lines[:3]) + json.dumps(record) + '\n')
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    assert runs.lines(folder)[4:] == runs.lines(longer)[4:]
    ours, theirs = (json.loads((run_folder / 'summary.json').read_text()) for run_folder in (folder, longer))
    for key in ('final_accuracy', 'best_accuracy', 'mean_of_last_10_evaluations', 'bytes_up', 'simulated_seconds'):
        assert ours[key] == theirs[key]
    assert ours['wall_seconds'] < 1000


def test_a_changed_summary_is_written_anew_by_the_run(folder, finished, capsys):
    file = folder / 'summary.json'
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {'final_accuracy': 0.5}))
    assert outputs.finished(folder, 4) is None
    assert runs.run(folder, **CHEAP) == 0
    assert 'resuming from the checkpoint of round 4' in capsys.readouterr().out
    assert json.loads(file.read_text())['final_accuracy'] == whole['final_accuracy']
    assert runs.lines(folder) == runs.lines(finished)


def test_a_finished_run_without_checkpoints_is_not_begun_again(folder, capsys):
    shutil.rmtree(folder / 'checkpoints')
    before = runs.files(folder)
    assert runs.run(folder, **CHEAP) == 0  # it is finished
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 2
    assert 'holds a summary.json but no checkpoint to resume from' in capsys.readouterr().err
    assert runs.files(folder) == before


# --- any JSON


CONTENTS = {
    'a list': '[]',
    'no JSON': 'round 1',
    'no UTF-8': b'\xff\xfe{',
    'deep': '[' * 100_000,
    'digits': '9' * 5000,
    'a folder': os.mkdir,
    'a pipe': os.mkfifo,
}


@pytest.mark.parametrize('content', CONTENTS)
def test_whatever_stands_in_the_place_of_a_file_is_one_line(folder, content):
    content = CONTENTS[content]
    for name in ('config.json', 'metrics.jsonl', 'summary.json'):
        if callable(content):
            (folder / name).unlink()
            content(folder / name)
        else:
            (folder / name).write_bytes((content if isinstance(content, bytes) else content.encode()) + b'\n')
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
