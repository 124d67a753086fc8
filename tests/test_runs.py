"""Files of finished runs, intact or not: every edit is an error of one line, or changes no number."""

import contextlib
import copy
import functools
import json
import random

import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax import runs
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab import compare
from semisfl_jax.training import load, outputs
from tests.helpers.runs import config as tiny_config
from tests.helpers.runs import write_run

VALUES = (None, True, False, 0, -1, 1000, 0.5, 1e308, 10**400, 2**63, '', 'x', '\ud800', [], [[1]], {}, {'x': 1})
SCORES = {'teacher_accuracy': [0.25, 0.5, 0.75], 'student_accuracy': [0.5, None, 0.5], 'k_s': [8, 8, 4]}
FILES = 'config.json', 'summary.json', 'metrics.jsonl', 'began.json'


@pytest.fixture
def folder(tmp_path):
    """A run of three rounds with all keys of a configuration, and two lines more, as of one that is being extended."""
    settings = {key.replace('.', '__'): value for key, value in config_lib.flatten(resolved()).items()}
    given = {key: settings.pop(key) for key in ('seed', 'algorithm')}
    settings.pop('rounds')
    summary = {'trivial_scores': {'constant': {'x': None}}}
    path = write_run(tmp_path / 'run', *given.values(), SCORES, summary=summary, **settings)
    file_io.write_json(
        path / 'began.json', file_io.seal({'data': 'a', 'partition': 'b', 'model.weights': '', 'devices': 1})
    )
    with (path / 'metrics.jsonl').open('a') as file:
        file.write('{"round": 4, "teacher_accuracy": 0.9}\n{"rou')
    return path


@functools.cache
def resolved():
    return config_lib.resolve(tiny_config(rounds=3))


def test_a_run_that_is_being_extended_has_the_rounds_of_its_summary(folder):
    run = runs.read_run(folder)
    assert [*run.curve('round')] == [1, 2, 3]
    assert run.settings['rounds'] == 3
    assert [row.mean for row in compare.side_by_side([run]).scores if row.key == run.key] == [
        50.0
    ]  # of 25, 50 and 75 %


def test_the_table_has_a_row_for_every_number_of_every_run(folder, tmp_path):
    both = tmp_path / 'both'
    both.mkdir()
    for seed in (0, 1):
        write_run(both / f'seed_{seed}', seed, 'splitfed', {'student_accuracy': [0.5], 'bytes_up': [2**40 + seed]})
    table = sfl.runs.read([folder, both])
    assert list(table.columns) == ['job', 'seed', 'round', 'key', 'value', 'unit']
    assert len(table) == 3 * 3 + 2 * 2  # without the two lines that the summary does not vouch for
    assert table.groupby('job').size().to_dict() == {str(folder): 9, str(both): 4}
    last = table[table['job'] == str(both)].set_index(['seed', 'key'])
    assert last['value'].to_dict() == {
        (0, 'student_accuracy'): 0.5,
        (0, 'bytes_up'): 2**40,
        (1, 'student_accuracy'): 0.5,
        (1, 'bytes_up'): 2**40 + 1,
    }
    student = table[(table['job'] == str(folder)) & (table['key'] == 'student_accuracy')]
    assert student['round'][student['value'].isna()].to_list() == [2]
    units = dict(zip(table['key'], table['unit'], strict=True))
    assert units == {'teacher_accuracy': 'share', 'student_accuracy': 'share', 'k_s': '', 'bytes_up': 'bytes'}


def test_an_axis_has_the_rounds_that_have_its_numbers():
    lines = [{'round': 1, 'bytes_up': 2**30, 'bytes_down': 2**29}, {'round': 2, 'bytes_up': 1}, {'round': 3}]
    run = runs.Run('there', {}, 0, 'student', runs.rows(lines))
    assert (run.axis('gigabytes'), run.axis('minutes'), run.axis('round')) == ({1: 1.5}, {}, {1: 1, 2: 2})


def swapped(lines):
    lines[0], lines[1] = lines[1], lines[0]


LINES = {
    'doubled': (lambda lines: lines.insert(1, lines[1]), 'line 3, is not that of round 3'),
    'swapped': (swapped, 'line 1, is not that of round 1'),
    'lost': (lambda lines: lines.pop(0), 'line 1, is not that of round 1'),
    'another round': (lambda lines: lines[2].update(round=1000), 'line 3, is not that of round 3'),
    'no round': (lambda lines: lines[2].update(round=True), 'line 3, is not that of round 3'),
    'no number': (lambda lines: lines[2].update(teacher_accuracy=True), 'line 3, has teacher_accuracy=True'),
    'no mark': (lambda lines: lines[2].update(fake=1), 'line 3, has fake=1'),
    'text': (lambda lines: lines[2].update(k_s='4'), 'line 3, has k_s=4'),
    'beyond any float': (lambda lines: lines[2].update(k_s=10**400), 'line 3, has k_s=1000'),
    'another score': (lambda lines: lines[0].update(teacher_accuracy=0.26), 'metrics.jsonl was modified'),
    'one score less': (lambda lines: lines[0].pop('student_accuracy'), 'metrics.jsonl was modified'),
}


@pytest.mark.parametrize('case', LINES)
def test_a_damaged_line_is_no_result(folder, case):
    change, message = LINES[case]
    file = folder / 'metrics.jsonl'
    lines = [json.loads(line) for line in file.read_text().splitlines()[:3]]
    change(lines)
    file.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    with pytest.raises(UserError, match=message) as error:
        runs.read_run(folder)
    assert str(folder) in str(error.value)


def test_other_times_are_no_other_result(folder):
    """As of a run that was repeated."""
    file, before = folder / 'metrics.jsonl', str(compare.side_by_side([runs.read_run(folder)]))
    lines = [json.loads(line) | {'wall_seconds': 2.0} for line in file.read_text().splitlines()[:3]]
    file.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    assert str(compare.side_by_side([runs.read_run(folder)])) == before


def test_files_of_two_runs_are_no_result(folder, tmp_path):
    other = write_run(tmp_path / 'other', 1, 'semisfl', SCORES)
    for name, message in ('config.json', 'config.json was modified'), ('metrics.jsonl', 'metrics.jsonl was modified'):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes((other / name).read_bytes().replace(b'0.25', b'0.35'))
        with pytest.raises(UserError, match=message):
            runs.read_run(folder)
        (folder / name).write_bytes(whole)
    runs.read_run(folder)


def test_several_seeds_are_read_one_by_one(tmp_path):
    with pytest.raises(UserError, match='seed_N'):
        runs.read_run(write_run(tmp_path / 'both', 0, 'semisfl', SCORES, seeds=[0, 1]))


def places(value, path=()):
    """Every place in a JSON value, as the keys that lead there."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        yield from places(entry, (*path, key))


def edited(value, path, new):
    """`value` with what is at `path` replaced, or removed if `new` is ..."""
    if not path:
        return [] if new is ... else new
    value = copy.copy(value)
    if len(path) > 1 or new is not ...:
        value[path[0]] = edited(value[path[0]], path[1:], new)
    else:
        del value[path[0]]
    return value


def edits(folder, draw, count):
    """(file, content) of `count` edits of each file of a run: of its JSON at every place, or of a byte of it."""
    for name in FILES:
        whole = (folder / name).read_text()
        values = [json.loads(line) for line in whole.splitlines()[:3]] if name == FILES[2] else json.loads(whole)
        of_values = [(path, new) for path in list(places(values))[1:] for new in (..., *VALUES)]
        for path, new in draw.sample(of_values, min(count, len(of_values))):
            value = edited(values, path, new)
            yield name, ''.join(json.dumps(x) + '\n' for x in value) if name == FILES[2] else json.dumps(value)
        for _ in range(count // 4):
            at = draw.randrange(len(whole))
            yield name, whole[:at] + draw.choice(['', *'0{"],x\n']) + whole[at + draw.randrange(2) :]


def read_all(folder):
    """All that reads the files of a finished run without its data."""
    for reader in (lambda: load._local_config(folder), lambda: outputs.check_folder(folder, resolved())):
        with contextlib.suppress(UserError):
            reader()
    outputs.finished(folder, 3)
    return str(compare.side_by_side(runs.read_finished([folder]))), runs.read_run(folder).settings


@pytest.mark.parametrize('count', [40, pytest.param(250, marks=pytest.mark.slow)])
def test_no_edit_ends_in_a_traceback_or_in_another_number(folder, count):
    load._local_config(folder)
    outputs.check_folder(folder, resolved())
    expected, refused, tried = read_all(folder), 0, 0
    for name, content in edits(folder, random.Random(0), count):
        whole = (folder / name).read_bytes()
        (folder / name).write_text(content, errors='surrogatepass')
        try:
            assert read_all(folder) == expected, (name, content)
        except UserError as error:
            refused += '\n' not in str(error)
        (folder / name).write_bytes(whole)
        tried += 1
    assert refused > tried / 2  # others edit what changes no number
    assert read_all(folder) == expected
