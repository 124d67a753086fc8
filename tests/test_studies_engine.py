"""What a study makes, what it leaves alone, and that a kill leaves no trace in the report."""

import dataclasses
import fcntl
import os

import pytest

from semisfl_jax.core.errors import UserError
from semisfl_jax.studies import engine, plan
from semisfl_jax.studies.spec import Measure, Table
from tests import runs, studies_toy
from tests.studies_toy import started


def make(tmp_path, name='root', given=None):
    root = tmp_path / name
    folder = engine.run(studies_toy.study(), given or {}, str(root), studies_toy.launcher(tmp_path))
    return root, folder


def relative(folder):
    """Files below a folder by their paths in it, with their content."""
    return {path.relative_to(folder): content for path, content in runs.files(folder).items()}


def test_runs_what_is_missing_once_and_shares_it(tmp_path):
    root, folder = make(tmp_path)
    # six cells with runs, two of which read other figures off the same one
    names = [job.name for job in plan.jobs(studies_toy.study())]
    assert len(names) == 4
    assert started(root) == names
    before = runs.files(folder)
    assert {path.name for path in before} >= {'report.md', 'report.html', 'cells.csv', 'runs.csv', 'differences.csv'}

    make(tmp_path)  # again: nothing to do
    assert started(root) == names
    assert runs.files(folder) == before

    (root / plan.RUNS / names[2] / 'summary.json').unlink()  # broken off
    make(tmp_path)
    assert started(root) == [*names, names[2]]
    assert runs.files(folder) == before


@pytest.mark.slow
def test_runs_of_other_processes_come_last(tmp_path):
    names = [job.name for job in plan.jobs(studies_toy.study())]
    first = tmp_path / 'root' / plan.RUNS / names[0]
    first.mkdir(parents=True)
    with (first / '.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def say(line):
            if line.startswith('waiting for the process'):
                fcntl.flock(lock, fcntl.LOCK_UN)  # it ends

        engine.run(studies_toy.study(), {}, str(tmp_path / 'root'), studies_toy.launcher(tmp_path), say)
    assert started(tmp_path / 'root') == [*names[1:], names[0]]


def test_the_run_whose_encoder_another_starts_with_is_made_before_it(tmp_path):
    plain, first = studies_toy.cell('semisfl', 1.0), studies_toy.cell('fedswitch', 0.5)
    cells = plain, dataclasses.replace(plain, column='after', encoder=first)
    study = plan.with_given(dataclasses.replace(studies_toy.study(), tables=(Table('A', cells),)), {'k_s': 3})
    jobs, root = plan.jobs(study), tmp_path / 'root'
    assert [job.changes.get('algorithm') for job in jobs] == [None, 'fedswitch', None]
    assert [job.changes['k_s'] for job in jobs] == [3, 3, 3]
    folder = engine.run(study, {}, str(root), studies_toy.launcher(tmp_path))
    assert started(root) == [job.name for job in jobs]
    assert f'--workdir=runs/{jobs[1].name} && ' in (folder / 'report.md').read_text()
    assert f'--config.model.weights=there/{jobs[1].name}' in jobs[2].options(root='there')


def test_a_part_of_it_from_the_command_line(tmp_path):
    root, folder = make(tmp_path, given={'study_rows': ('FedSwitch,SemiSFL',), 'study_columns': ('Dir(1)',)})
    jobs = plan.jobs(studies_toy.study().part(['SemiSFL', 'FedSwitch'], ['Dir(1)']))
    assert started(root) == [job.name for job in jobs]
    assert folder.name.startswith('toy-part-')
    with pytest.raises(UserError, match=r"'FedSwich' .*'FedSwitch'"):
        make(tmp_path, given={'study_rows': ('FedSwich,SemiSFL',)})


@pytest.mark.slow
def test_a_cell_that_fails_says_so_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv('TOY_FAILS', 'fedswitch semisfl')
    with pytest.raises(UserError, match='the toy does not like semisfl'):
        make(tmp_path)
    monkeypatch.setenv('TOY_FAILS', 'fedswitch')
    with pytest.raises(UserError, match=r'2 of 4 .*the toy does not like fedswitch'):
        make(tmp_path)
    folder = tmp_path / 'root' / 'toy-smoke'
    text = (folder / 'report.md').read_text()
    assert 'failed: the toy does not like fedswitch' in text
    assert '92.00 ± 1.15 (3)' in text
    monkeypatch.delenv('TOY_FAILS')
    assert make(tmp_path)[1] == folder
    _, other = make(tmp_path, 'other')
    assert relative(folder) == relative(other)


ACCURACIES = studies_toy.study().tables[0]
GAIN = dataclasses.replace(ACCURACIES.cells[0], measure=Measure('delta_m', reference='FedSGD'))
UNKNOWN = dataclasses.replace(ACCURACIES.cells[0], measure=Measure('acuracy'))


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'figures': ('values', 'foo')}, "Accuracies: .*'foo'"),
        ({'reference': 'SemiFSL'}, "'SemiFSL' .*'SemiSFL'"),
        ({'cells': 2 * ACCURACIES.cells}, r'SemiSFL / Dir\(1\)'),
        ({'cells': (UNKNOWN,)}, "'acuracy'.*'accuracy'"),
        ({'cells': (GAIN,), 'reference': ''}, "'FedSGD'"),
        ({'title': 'Minutes'}, 'Minutes'),
        ({'cells': (dataclasses.replace(ACCURACIES.cells[0], measure='accuracy'),)}, "measures 'accuracy'"),
        (
            {'cells': (dataclasses.replace(ACCURACIES.cells[0], base='mnist'),)},
            r"'mnist' and its changes, has config\.",
        ),
    ],
)
def test_a_mistake_in_a_study_is_found_before_its_first_run(tmp_path, changes, named):
    """In its first table."""
    whole = studies_toy.study()
    study = dataclasses.replace(whole, tables=(dataclasses.replace(ACCURACIES, **changes), *whole.tables[1:]))
    with pytest.raises(UserError, match=named):
        engine.run(study, {'study_columns': ('Dir(1)',)}, str(tmp_path / 'root'), studies_toy.launcher(tmp_path))
    assert not (tmp_path / 'root').exists()


@pytest.mark.parametrize(('given', 'named'), [({'round': 3}, 'did you mean'), ({'rounds': 2.0}, 'rounds=2.0')])
def test_a_wrong_key_or_type_of_a_program_is_named(tmp_path, given, named):
    with pytest.raises(UserError, match=named):
        engine.run(studies_toy.study(), given, str(tmp_path / 'root'))


@pytest.mark.slow
def test_stopped_and_started_again_ends_with_the_same_report(tmp_path):
    _, expected = make(tmp_path, 'whole')
    root = tmp_path / 'root'
    process = studies_toy.start(root, '-m', 'tests.studies_toy', tmp_path / 'launch.py', TOY_SLEEP='0.15')
    studies_toy.wait_until(process, lambda: len(started(root)) == 2)
    process.terminate()
    process.communicate(timeout=runs.HANGS)
    assert process.returncode != 0
    _, folder = make(tmp_path)
    assert relative(folder) == relative(expected)
    assert max(started(root).count(name) for name in started(root)) <= 2  # the one that was broken off, at most


REAL = """
import sys
from configs.studies import table4
from semisfl_jax.studies import engine
study = table4.get_config('smoke').study.part(['SemiSFL', 'FedSwitch'], ['Dir(0.1)'])
given = {'rounds': 4, 'seeds': (0, 1, 2), 'k_s': 4, 'k_u': 1, 'checkpoint_every': 2}
engine.run(study, given, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists('/proc/self/task'), reason='asks Linux for the processes of a process')
def test_killed_with_its_run_it_ends_with_the_report_of_a_whole_one(tmp_path):
    """Runs that train: study and run are killed once the run has a checkpoint behind it, and lines after that."""
    root, whole = tmp_path / 'root', tmp_path / 'whole'
    process, files = studies_toy.start(root, '-c', REAL), 'cells/*/seed_1/metrics.jsonl'
    studies_toy.wait_until(process, lambda: any(f.read_bytes().count(b'\n') >= 3 for f in root.glob(files)))
    studies_toy.kill(process, with_run=True)
    assert not list(root.glob('*/report.md'))
    for folder in (root, whole):
        ended = runs.end_process(studies_toy.start(folder, '-c', REAL))
        assert ended.returncode == 0, ended.stdout
    (report,), (expected,) = (list(folder.glob('*/report.md')) for folder in (root, whole))
    assert relative(report.parent) == relative(expected.parent)
    assert report.read_text().count(' (3) |') == 3  # two methods, and their difference, of three seeds


@pytest.mark.slow
def test_a_seed_whose_folder_is_gone_is_missed(tmp_path):
    root, _ = make(tmp_path)
    home = root / plan.RUNS / plan.jobs(studies_toy.study())[0].name
    (home / 'seed_1').rename(tmp_path / 'elsewhere')
    with pytest.raises(UserError, match=f'{home} has no run of seed 1; restore it'):
        make(tmp_path)


@pytest.mark.slow
def test_a_run_that_another_study_began_a_moment_earlier_is_no_failure(tmp_path, monkeypatch):
    execute = engine.Session._execute
    monkeypatch.setattr(engine.Session, '_execute', lambda *arguments: execute(*arguments) or 2)
    _, folder = make(tmp_path)
    assert 'failed' not in (folder / 'report.md').read_text()
