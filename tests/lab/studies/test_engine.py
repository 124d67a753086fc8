"""What a study makes, what it leaves alone, and that a kill leaves no trace in the report."""

import dataclasses
import fcntl
import os
import signal

import pytest

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.studies import engine, plan, results, spec
from semisfl_jax.lab.studies.spec import Table
from tests.helpers import runs, studies_toy, studies_words
from tests.helpers.studies_toy import started


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
    names = [job.name for job in studies_words.jobs(studies_toy.study())]
    assert len(names) == 4
    one_program = [names[0], names[2], names[1], names[3]]  # of each method, on both distributions
    assert started(root) == one_program
    before = runs.files(folder)
    assert {path.name for path in before} >= {'report.md', 'report.html', 'cells.csv', 'runs.csv', 'differences.csv'}

    make(tmp_path)  # again: nothing to do
    assert started(root) == one_program
    assert runs.files(folder) == before

    (root / plan.RUNS / names[2] / 'summary.json').unlink()  # broken off
    make(tmp_path)
    assert started(root) == [*one_program, names[2]]
    assert runs.files(folder) == before


@pytest.mark.slow
def test_runs_of_other_processes_come_last(tmp_path):
    names = [job.name for job in studies_words.jobs(studies_toy.study())]
    first = tmp_path / 'root' / plan.RUNS / names[0]
    first.mkdir(parents=True)
    with (first / '.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def say(line):
            if line.startswith('waiting'):
                fcntl.flock(lock, fcntl.LOCK_UN)  # it ends

        engine.run(studies_toy.study(), {}, str(tmp_path / 'root'), studies_toy.launcher(tmp_path), say)
    assert started(tmp_path / 'root') == [names[2], names[1], names[3], names[0]]


def test_the_run_whose_encoder_another_starts_with_is_made_before_it(tmp_path):
    plain, first = studies_toy.cell('semisfl', 1.0), studies_toy.cell('fedswitch', 0.5)
    cells = plain, dataclasses.replace(plain, column='after', encoder=first)
    study = spec.with_changes(dataclasses.replace(studies_toy.study(), tables=(Table('A', cells),)), {'k_s': 3})
    jobs, root = studies_words.jobs(study), tmp_path / 'root'
    assert [job.changes.get('algorithm') for job in jobs] == [None, 'fedswitch', None]
    assert [job.changes['k_s'] for job in jobs] == [3, 3, 3]
    folder = engine.run(study, {}, str(root), studies_toy.launcher(tmp_path))
    assert started(root) == [job.name for job in jobs]
    assert f'--workdir=runs/{jobs[1].name} && ' in (folder / 'report.md').read_text()
    assert f'--config.model.weights=there/{jobs[1].name}' in jobs[2].options(root='there')


def test_a_part_of_it_from_the_command_line(tmp_path):
    root, folder = make(tmp_path, given={'study_rows': ('FedSwitch,SemiSFL',), 'study_columns': ('Dir(1)',)})
    jobs = studies_words.jobs(studies_toy.study().part(['SemiSFL', 'FedSwitch'], ['Dir(1)']))
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


def test_a_damaged_record_of_an_unfinished_run_costs_its_own_cells(tmp_path):
    names = [job.name for job in studies_words.jobs(studies_toy.study())]
    damaged = tmp_path / 'root' / plan.RUNS / names[1]
    damaged.mkdir(parents=True)
    (damaged / 'metrics.jsonl').touch()
    (damaged / results.PROVENANCE).write_text('{}')
    with pytest.raises(UserError, match=r'1 of 4 runs failed; .*provenance\.json was modified .*delete it'):
        make(tmp_path)
    assert started(tmp_path / 'root') == [names[0], *names[2:]]


@pytest.mark.parametrize(('given', 'named'), [({'round': 3}, 'did you mean'), ({'rounds': 2.0}, 'rounds=2.0')])
def test_a_wrong_key_or_type_of_a_program_is_named(tmp_path, given, named):
    with pytest.raises(UserError, match=named):
        engine.run(studies_toy.study(), given, str(tmp_path / 'root'))


@pytest.mark.slow
def test_stopped_and_started_again_ends_with_the_same_report(tmp_path):
    _, expected = make(tmp_path, 'whole')
    root = tmp_path / 'root'
    process = studies_toy.start(root, '-m', 'tests.helpers.studies_toy', tmp_path / 'launch.py', TOY_SLEEP='0.15')
    studies_toy.wait_until(process, lambda: len(started(root)) == 2)
    process.send_signal(signal.SIGHUP)  # which it passes on to its run
    assert b'stopped; the same command resumes' in process.communicate(timeout=runs.HANGS)[0]
    assert process.returncode != 0
    _, folder = make(tmp_path)
    assert relative(folder) == relative(expected)
    assert max(started(root).count(name) for name in started(root)) <= 2  # the one that was broken off, at most


REAL = """
import sys
from configs.studies import table4
from semisfl_jax.lab.studies import engine
study = table4.get_config('smoke').study.part(['FedSwitch'], ['Dir(0.1)'])
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
    assert report.read_text().replace('**', '').count(' (3) |') == 1  # of three seeds


@pytest.mark.slow
def test_a_run_that_another_study_began_a_moment_earlier_is_no_failure(tmp_path, monkeypatch):
    execute = engine.Session._execute
    monkeypatch.setattr(engine.Session, '_execute', lambda *given: (2, execute(*given)[1]))
    _, folder = make(tmp_path)
    assert 'failed' not in (folder / 'report.md').read_text()


@pytest.mark.slow
def test_the_same_command_three_times_divides_the_runs(tmp_path):
    """Each run is started once, by one of them; all end with the whole report, and no log has another's error."""
    _, expected = make(tmp_path, 'whole')
    root, words = tmp_path / 'root', ('-m', 'tests.helpers.studies_toy', tmp_path / 'launch.py')
    several = [studies_toy.start(root, *words, '3', TOY_SLEEP='0.3') for _ in range(3)]
    ended = [runs.end_process(process) for process in several]
    for process in ended:
        assert process.returncode == 0, process.stdout.decode()
    names = [job.name for job in studies_words.jobs(studies_toy.study())]
    assert sorted(started(root)) == sorted(names)
    assert {name: (root / 'logs' / f'{name}.log').read_text() for name in names} == dict.fromkeys(names, '')
    made = {path: content for path, content in relative(root / 'toy-smoke').items() if path.name != 'budget.csv'}
    assert made.keys() == {path for path in relative(expected) if path.name != 'budget.csv'}
    for name in ('cells.csv', 'runs.csv', 'differences.csv'):
        assert (root / 'toy-smoke' / name).read_bytes() == (expected / name).read_bytes()


@pytest.mark.slow
def test_who_is_killed_leaves_its_claim_to_its_run(tmp_path):
    """So that nobody begins the run that still compiles."""
    names = [job.name for job in studies_words.jobs(studies_toy.study())]
    studies_toy.launcher(tmp_path)
    root, words = tmp_path / 'root', ('-m', 'tests.helpers.studies_toy', tmp_path / 'launch.py')
    process = studies_toy.start(root, *words, TOY_SLEEP='0.5', TOY_COMPILES='3')
    claim = root / plan.RUNS / names[0] / engine.CLAIM
    log = root / 'logs' / f'{names[0]}.together.log'
    studies_toy.wait_until(process, lambda: log.exists() and log.stat().st_size)
    studies_toy.kill(process)
    with pytest.raises(file_io.Locked), file_io.lock(claim, claim=True):
        pass
    make(tmp_path)
    assert sorted(started(root)) == sorted(names)
