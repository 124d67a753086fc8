"""What is damaged in the folder of a run is named; rounds that are repeated are compared."""

import json
import shutil

import pytest

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from tests.helpers import runs

CHEAP = {'algorithm': 'supervised_only', 'seeds': (0, 1), 'diagnostics_every': 4}


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp('made') / 'run'
    assert runs.run(folder, **CHEAP) == 0
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / 'run')


@pytest.fixture
def checked(capsys):
    """What the command says of a folder: lines by their first word, and the exit status. The folder stays as it is."""

    def check(folder, *words):
        before = runs.files(folder)
        capsys.readouterr()
        status = runs.command('verify', folder, *words)
        assert runs.files(folder) == before
        lines = capsys.readouterr().out.splitlines()
        found = {word: [line for line in lines if line.startswith(f'{word}  ')] for word in ('whole', 'FAULT')}
        assert len(lines) == sum(map(len, found.values()))
        assert status == (2 if found['FAULT'] else 0)
        return found

    return check


def test_a_whole_folder_whose_rounds_come_out_the_same(made, checked):
    found = checked(made, '--rerun=3')
    # the seeds; of each results, split, checkpoints of rounds 2 and 4, and diagnostics; the first rounds
    assert len(found['whole']) == 1 + 2 * 5 + 1
    assert f'whole  {made}/seed_0/checkpoints/4' in found['whole']
    assert found['whole'][-1] == f'whole  rounds 1 to 3 of {made}, trained again'


def edit(name, **changes):
    """Changes entries of a JSON file, of metrics.jsonl in its second line."""

    def change(home):
        lines = (home / name).read_text().splitlines()
        at, text = (1, lines[1]) if name == 'metrics.jsonl' else (0, ''.join(lines))
        content = json.dumps(json.loads(text) | changes)
        lines = [*lines[:at], content, *lines[at + 1 :]] if at else [content]
        (home / name).write_text('\n'.join(lines) + '\n')

    return change


def flip(pattern):
    """Flips a bit in the middle of the largest file of a pattern."""

    def change(home):
        file = max((path for path in home.glob(pattern) if path.is_file()), key=lambda path: path.stat().st_size)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    return change


def swap_checkpoints(home):
    saved = home / 'checkpoints'
    (saved / '2').rename(saved / '3')


DAMAGES = {
    'configuration': (edit('config.json', seed=1), ['config.json was modified']),
    'summary': (edit('summary.json', final_accuracy=1.0), ['summary.json was modified']),
    'no summary': (lambda home: (home / 'summary.json').unlink(), ['no finished run']),
    'a line': (edit('metrics.jsonl', student_accuracy=1.0), ['metrics.jsonl was modified']),
    'split': (flip('partition.npz'), ['partition.npz']),
    'split of another run': (
        lambda home: shutil.copy(home.parent / 'seed_1/partition.npz', home),
        ['checkpoints/2', 'partition_hash'],
    ),
    'arrays': (flip('checkpoints/4/state/**/d/*'), ['checkpoints/4']),
    'another round': (swap_checkpoints, ['checkpoints/3', 'round=2']),
    'checkpoint of another run': (
        lambda home: shutil.copytree(home.parent / 'seed_1/checkpoints/4', home / 'checkpoints/4', dirs_exist_ok=True),
        ['checkpoints/4'],
    ),
    'no last checkpoint': (lambda home: shutil.rmtree(home / 'checkpoints/4'), ['checkpoint of round 4']),
    'diagnostics': (flip('diagnostics/*'), ['diagnostics']),
    'a seed': (lambda home: shutil.rmtree(home), ['seed_0 is gone']),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_what_is_damaged_is_named(folder, checked, damage):
    change, words = DAMAGES[damage]
    change(folder / 'seed_0')
    first = checked(folder)['FAULT'][0]
    assert all(word in first for word in ['seed', *words]), first


def test_other_rounds_and_missing_data_are_one_line_each(folder, checked, monkeypatch):
    record = json.loads((folder / 'seed_1/metrics.jsonl').read_text().splitlines()[1])
    edit('metrics.jsonl', loss_supervised=9.5)(folder / 'seed_1')
    of_lines, of_rounds = checked(folder, '--rerun=2')['FAULT']
    assert 'metrics.jsonl was modified' in of_lines
    assert f'loss_supervised was 9.5 and is {record["loss_supervised"]} here' in of_rounds
    assert 'the rounds 1 to 5' in checked(folder, '--rerun=5')['FAULT'][1]

    def gone(*_):
        raise UserError('the images are gone')

    monkeypatch.setattr(data, 'load', gone)
    assert checked(folder, '--rerun=2')['FAULT'][1].endswith(': the images are gone')
