"""What a run does with checkpoints that are not its own, and with files in its folder that somebody changed."""

import hashlib
import json
import os
import shutil

import pytest

from semisfl_jax import compare
from semisfl_jax import config as config_lib
from semisfl_jax.core.errors import UserError
from semisfl_jax.plots import __main__ as plots
from semisfl_jax.training import checkpoint, load, workdir
from tests import runs

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


def replace(target, source):
    shutil.rmtree(target)
    shutil.copytree(source, target)


# --- checkpoints


def test_a_copy_of_another_round_is_set_aside(folder, longer, capsys):
    saved = folder / 'checkpoints'
    replace(saved / '4', saved / '2')
    capsys.readouterr()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    printed = capsys.readouterr()
    assert 'resuming from the checkpoint of round 2' in printed.out
    expected = f'warning: the checkpoint of round 4 in {saved} is renamed to damaged-4: it is a checkpoint of round 2\n'
    assert printed.err == expected
    assert runs.lines(folder) == runs.lines(longer)


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'seed': 1}, 'it comes from a run of seed 1'),
        pytest.param({'lr': 0.5}, 'it comes from a run of another configuration', marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_of_another_run_is_set_aside(folder, longer, tmp_path, capsys, changes, reason):
    assert runs.run(tmp_path / 'other', **CHEAP, **changes) == 0
    replace(folder / 'checkpoints' / '4', tmp_path / 'other' / 'checkpoints' / '4')
    capsys.readouterr()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    printed = capsys.readouterr()
    assert printed.err.endswith(f'is renamed to damaged-4: {reason}\n')
    assert printed.err.count('\n') == 1
    assert runs.lines(folder) == runs.lines(longer)


def test_where_all_checkpoints_are_of_another_run_nothing_is_touched(folder, tmp_path, capsys):
    assert runs.run(tmp_path / 'other', **CHEAP, seed=1) == 0
    replace(folder / 'checkpoints', tmp_path / 'other' / 'checkpoints')
    before = runs.files(folder)
    capsys.readouterr()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 2
    error = capsys.readouterr().err
    reason = 'it comes from a run of seed 1'
    assert error.startswith(f'error: no checkpoint in {folder}/checkpoints can be used (round 4: {reason}; round 2: ')
    assert error.count('\n') == 1
    assert runs.files(folder) == before


def test_a_damaged_split_is_written_again_once_it_is_deleted(folder, longer, capsys):
    split = folder / 'partition.npz'
    whole = split.read_bytes()
    split.write_bytes(whole[:-100])
    before = runs.files(folder)
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: '{split}' is not a partition file, or damaged")
    assert error.endswith('delete it, and the run writes it again\n')
    assert runs.files(folder) == before
    split.unlink()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    assert split.read_bytes() == whole
    assert runs.lines(folder) == runs.lines(longer)


def test_odd_names_among_the_checkpoints_are_ignored(folder, longer, capsys):
    for name in ('²', '٣', '007', '-1', '0', '1_0', '5.orbax-checkpoint-tmp'):
        (folder / 'checkpoints' / name).mkdir()
    (folder / 'checkpoints' / '9').write_text('a file')
    capsys.readouterr()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    assert 'resuming from the checkpoint of round 4' in capsys.readouterr().out
    assert runs.lines(folder) == runs.lines(longer)
    assert checkpoint.rounds_saved(folder / 'checkpoints') == [4, 6]


# --- files in the folder


def test_a_changed_line_reaches_no_later_one_and_is_noticed(folder, longer, capsys):
    lines = (folder / 'metrics.jsonl').read_text().splitlines(keepends=True)
    record = json.loads(lines[3])
    record.update(bytes_up=record['bytes_up'] + 1, simulated_seconds=1e6, wall_seconds=1e6, student_accuracy=1.0)
    (folder / 'metrics.jsonl').write_text(''.join(lines[:3]) + json.dumps(record) + '\n')
    capsys.readouterr()
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    error = capsys.readouterr().err
    assert error.startswith(f'warning: {folder}/metrics.jsonl was modified after the run wrote it')
    assert error.count('\n') == 1
    assert runs.lines(folder)[4:] == runs.lines(longer)[4:]
    ours, theirs = (json.loads((run_folder / 'summary.json').read_text()) for run_folder in (folder, longer))
    for key in ('final_accuracy', 'best_accuracy', 'mean_of_last_10_evaluations', 'bytes_up', 'simulated_seconds'):
        assert ours[key] == theirs[key]
    assert ours['wall_seconds'] < 1000
    # It stays changed, and whoever starts the run again hears of it again.
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 0
    assert capsys.readouterr().err.startswith(f'warning: {folder}/metrics.jsonl was modified after the run wrote it')


def test_changed_lines_are_noticed_by_those_who_read_them(folder, capsys):
    lines = (folder / 'metrics.jsonl').read_text().replace('"k_s": 8', '"k_s": 9', 1)
    (folder / 'metrics.jsonl').write_text(lines)
    assert compare.main(['compare', str(folder)]) == 0
    error = capsys.readouterr().err
    expected = (
        f'warning: {folder}/metrics.jsonl was modified after the run wrote it: its lines up to round 4 have changed\n'
    )
    assert error == expected


def changed(text):
    """One digit of an accuracy."""
    value = json.loads(text)
    value['final_accuracy'] = round(value['final_accuracy'] + 0.1, 6)
    return json.dumps(value)


@pytest.mark.parametrize(('content', 'more'), [(changed, 0), (changed, 2), (lambda text: '{}', 0), (None, 0)])
def test_a_changed_summary_is_kept_aside_and_written_anew(folder, finished, longer, capsys, content, more):
    file = folder / 'summary.json'
    before = None if content is None else content(file.read_text())
    file.unlink()
    file.mkdir() if content is None else file.write_text(before)
    assert runs.run(folder, **CHEAP | {'rounds': 4 + more}) == 0
    error = capsys.readouterr().err
    assert error.startswith(f'warning: {file} ')
    assert error.endswith('; it is renamed to damaged-summary.json, and rewritten from the checkpoint\n')
    assert error.count('\n') == 1
    aside = folder / 'damaged-summary.json'
    assert aside.is_dir() if content is None else aside.read_text() == before
    expected = json.loads(((longer if more else finished) / 'summary.json').read_text())
    summary = json.loads(file.read_text())
    for key in ('final_accuracy', 'best_accuracy', 'bytes_up', 'simulated_seconds', 'rounds', 'evaluations', 'k_s'):
        assert summary[key] == expected[key]
    assert runs.lines(folder) == runs.lines(longer if more else finished)
    assert runs.run(folder, **CHEAP | {'rounds': 4 + more}) == 0
    assert not capsys.readouterr().err


def test_the_checksums_are_what_the_documentation_says(finished):
    """Computed here from docs/metrics.md."""
    summary = json.loads((finished / 'summary.json').read_text())
    chain = ''
    for line in (finished / 'metrics.jsonl').read_bytes().splitlines(keepends=True):
        chain = hashlib.sha256(chain.encode() + line).hexdigest()
    assert summary['metrics_sha256'] == chain
    rest = {key: value for key, value in summary.items() if key != 'sha256'}
    assert summary['sha256'] == hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def test_a_finished_run_without_checkpoints_is_not_begun_again(folder, capsys):
    shutil.rmtree(folder / 'checkpoints')
    before = runs.files(folder)
    assert runs.run(folder, **CHEAP) == 0  # it is finished
    assert runs.run(folder, **CHEAP | {'rounds': 6}) == 2
    error = capsys.readouterr().err
    assert error.startswith(f'error: {folder} holds a summary.json but no checkpoint to resume from; ')
    assert error.count('\n') == 1
    assert runs.files(folder) == before


# --- several seeds

SEEDS = {'seeds': (0, 1), 'parallel__trials': 'loop', **CHEAP}


@pytest.fixture(scope='module')
def both(tmp_path_factory):
    """A run of two seeds and four rounds."""
    folder = tmp_path_factory.mktemp('both') / 'run'
    assert runs.run(folder, **SEEDS) == 0
    return folder


@pytest.mark.slow
def test_of_several_seeds_each_file_is_looked_at(both, tmp_path, capsys):
    folder = shutil.copytree(both, tmp_path / 'run')
    lines = folder / 'seed_1' / 'metrics.jsonl'
    lines.write_text(lines.read_text().replace('"k_s": 8', '"k_s": 9', 1))
    shutil.copy(folder / 'seed_0' / 'summary.json', folder / 'seed_1' / 'summary.json')
    (folder / 'summary.json').write_text('{}')
    replace(folder / 'seed_0' / 'checkpoints' / '4', folder / 'seed_1' / 'checkpoints' / '4')
    capsys.readouterr()
    assert runs.run(folder, **SEEDS) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert [line.startswith('warning: ') for line in warnings] == [True] * 4
    assert warnings[0].endswith('seed_0/checkpoints is renamed to damaged-4: it comes from a run of seed 1')
    assert warnings[1].startswith(f'warning: {lines} was modified after the run wrote it')
    assert warnings[2].startswith(f'warning: {folder}/seed_1/summary.json belongs to another run; it is renamed')
    assert warnings[3].startswith(f'warning: {folder}/summary.json was modified after the run wrote it; it is renamed')
    ours, theirs = (json.loads((run_folder / 'summary.json').read_text()) for run_folder in (folder, both))
    for key in ('final_accuracy', 'bytes_up', 'simulated_seconds', 'trials'):
        assert ours[key] == theirs[key]
    assert runs.lines(folder / 'seed_0') == runs.lines(both / 'seed_0')
    # Finished again: of all this, the changed line alone is left.
    assert runs.run(folder, **SEEDS) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f'warning: {lines} was modified after the run wrote it')


# --- any JSON


def folder_of(path):
    path.mkdir()


def pipe(path):
    os.mkfifo(path)


CONTENTS = {
    'a list': '[]',
    'null': 'null',
    'a number': '7',
    'an empty object': '{}',
    'a text': '"x"',
    'no JSON': 'round 1',
    'not a number': '{"round": NaN}',
    'no UTF-8': b'\xff\xfe{',
    'deep': '[' * 100_000,
    'deep objects': '{"a":' * 500 + '1' + '}' * 500,
    'digits': '9' * 5000,
    'a folder': folder_of,
    'a pipe': pipe,
}


def put(path, content):
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes((content if isinstance(content, bytes) else content.encode()) + b'\n')


def everything(folder):
    """Like `runs.files`, which would wait for the writer of a pipe."""
    return {path: path.is_file() and path.read_bytes() for path in sorted(folder.rglob('*'))}


def reopened(folder):
    trial = load.experiment(folder)
    return load.state(folder, trial)


@pytest.mark.parametrize('content', CONTENTS)
@pytest.mark.parametrize('name', ['config.json', 'metrics.jsonl', 'summary.json'])
def test_whatever_stands_in_the_place_of_a_file_is_one_line(folder, tmp_path, capsys, name, content):
    put(folder / name, CONTENTS[content])
    before = everything(folder)

    def one_line(status):
        error = capsys.readouterr().err
        assert error.startswith('error: ' if status else 'warning: '), error
        assert error.count('\n') == 1, error
        assert str(folder) in error, error
        assert len(error) < 600

    draw = ['plots', str(folder), f'--out={tmp_path}/figures', '--only=k_s']
    for reader in (lambda: compare.main(['compare', str(folder)]), lambda: plots.main(draw)):
        assert reader() == 2
        one_line(2)
        assert everything(folder) == before
    if name == 'config.json':
        with pytest.raises(UserError) as caught:
            reopened(folder)
        assert '\n' not in str(caught.value)
        assert everything(folder) == before
    else:
        assert reopened(folder)[0] == 4

    if name == 'summary.json':  # it is rewritten: see above
        summary, fault = workdir.summary_of(folder, config_lib.resolve(runs.config(**CHEAP)))
        assert summary is None
        assert fault.startswith(f'{folder}/{name} ')
        return
    # The finished run started again; then asked for more rounds.
    for rounds in (4, 5):
        status = runs.run(folder, **CHEAP | {'rounds': rounds})
        one_line(status)
        refused = name == 'config.json' or (name == 'metrics.jsonl' and rounds == 5)
        assert status == (2 if refused else 0)
        assert everything(folder) == before


@pytest.mark.parametrize(
    ('name', 'old', 'new'),
    [
        ('metrics.jsonl', '"wall_seconds"', '"wall"'),
        ('metrics.jsonl', '"simulated_seconds"', '"simulated"'),
        ('summary.json', '"headline"', '"head"'),
        ('summary.json', '"rounds"', '"round"'),
        ('summary.json', '"rounds": 4', '"rounds": 4.5'),
        ('config.json', '"algorithm"', '"method"'),
        ('config.json', '"seed": 0', '"seed": "zero"'),
        ('config.json', '"data": {', '"data": 1, "date": {'),
    ],
)
def test_a_key_that_is_not_ours_is_no_traceback(folder, tmp_path, capsys, name, old, new):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    draw = ['plots', str(folder), f'--out={tmp_path}/figures', '--only=partition,k_s']
    for reader in (lambda: compare.main(['compare', str(folder)]), lambda: plots.main(draw)):
        status, error = reader(), capsys.readouterr().err
        assert status in (0, 2)
        *before, last = error.splitlines() or ['warning: nothing'] * (name == 'config.json')
        assert last.startswith('error: ' if status else 'warning: ')
        assert len(before) <= (status == 2 and name == 'config.json')  # a warning that it was modified
        assert all(line.startswith('warning: ') and 'was modified' in line for line in before)
        assert 'object has no attribute' not in last or 'has a value that this version does not accept' in last
    if name == 'config.json':
        with pytest.raises(UserError):
            reopened(folder)
    status = runs.run(folder, **CHEAP | {'rounds': 5})
    error = capsys.readouterr().err
    assert status == (2 if name == 'config.json' else 0)
    assert error.startswith('error: ' if status else 'warning: ')
    assert error.count('\n') == 1


def test_a_folder_named_like_the_digest_of_earlier_versions_is_no_matter(folder, capsys):
    (folder / 'checkpoints' / '4' / 'SHA256').mkdir()
    assert runs.run(folder, **CHEAP | {'rounds': 5}) == 0
    assert 'resuming from the checkpoint of round 4' in capsys.readouterr().out
