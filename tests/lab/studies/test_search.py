"""What a sweep tries, whom it stops, what it finds, and that kills leave no trace in it."""

import csv
import json
import re

import numpy as np
import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.studies import engine, plan, results, search, sweeps, tuned
from tests.helpers import runs, studies_toy, sweeps_toy
from tests.helpers.studies_toy import started

pytest.importorskip('optuna')


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """A sweep that nothing interrupted: its folder."""
    path = tmp_path_factory.mktemp('whole')
    return make(path / 'root', sweeps_toy.launcher(path))


def make(root, launcher, sweep=None, given=None):
    return engine.run(sweep or sweeps_toy.sweep(), given or {}, str(root), launcher)


def table(folder, method=''):
    with (folder / 'trials.csv').open() as file:
        return [row for row in csv.DictReader(file) if row['method'] == method or not method]


def score(algorithm, row, number=sweeps_toy.ROUNDS):
    """The toy's mean over seeds of the mean of up to ten evaluations, computed again."""
    words = {'config.algorithm': algorithm, 'config.lr': json.loads(row['settings'])['lr']}
    finite = [n for n in range(1, number + 1) if sweeps_toy.accuracy(words, 100, n) is not None]
    return np.mean([[sweeps_toy.accuracy(words, seed, n) for n in finite][-10:] for seed in sweeps_toy.SEEDS])


@pytest.mark.slow
@pytest.mark.parametrize(('method', 'algorithm'), [('Supervised-only', 'supervised_only'), ('SemiSFL', 'semisfl')])
def test_equal_budgets_and_the_best_is_at_least_as_good_as_the_untuned(whole, method, algorithm):
    rows = table(whole, method)
    assert [row['trial'] for row in rows] == [str(n) for n in range(sweeps_toy.TRIALS)]
    assert json.loads(rows[0]['settings'])['lr'] == 0.02
    complete = [row for row in rows if row['state'] == 'complete']
    for row in complete:
        np.testing.assert_allclose(float(row['validation']), score(algorithm, row), rtol=1e-12)
    found = next(entry for entry in tuned.read(whole).methods if entry.title == method)
    assert found.validation == max(float(row['validation']) for row in complete) > found.untuned_validation
    np.testing.assert_allclose(found.untuned_validation, score(algorithm, rows[0]), rtol=1e-12)
    assert found.settings['lr'] == json.loads(rows[found.trial]['settings'])['lr']
    np.testing.assert_allclose(found.settings['lr_min'] / found.settings['lr'], 0.005 / 0.02, rtol=1e-5)
    assert abs(np.log10(found.settings['lr'] / sweeps_toy.PEAK[algorithm])) < 0.3  # untuned: 0.4 and 0.3


@pytest.mark.slow
def test_stops_those_behind_the_median_and_no_others(whole):
    states = set()
    for method, algorithm in (('Supervised-only', 'supervised_only'), ('SemiSFL', 'semisfl')):
        rows = table(whole, method)
        for n, row in enumerate(rows):
            states.add(row['state'])
            batch = n and 1 + (n - 1) // sweeps_toy.BATCH * sweeps_toy.BATCH  # number of its first
            before = [r for r in rows[:batch] if r['state'] == 'complete']
            behind = [
                at
                for at in (2, 4, 6)
                if len(before) >= search.RANDOM_TRIALS
                and score(algorithm, row, at) < np.median([score(algorithm, r, at) for r in before])
            ]
            lr = json.loads(row['settings'])['lr']
            if behind and not (lr >= sweeps_toy.DIVERGES and behind[0] > 3):
                assert (row['state'], row['rounds']) == ('pruned', str(behind[0]))
            elif lr >= sweeps_toy.DIVERGES:
                assert (row['state'], row['rounds']) == ('diverged', '3')
                assert 'nan' in row['why']
            else:
                assert (row['state'], row['rounds']) == ('complete', '8')
    assert states == set(search.STATES)


@pytest.mark.slow
def test_the_report_shows_the_whole_search(whole):
    text = (whole / 'report.md').read_text()
    assert '20 of 20 trials are done' in text
    assert {path.name for path in (whole / 'figures').iterdir()} >= {'search-SemiSFL.svg', 'best.png'}
    lines = [line.split('|') for line in text.splitlines() if re.search(r' \((log|linear)\) \||\| one of', line)]
    shares = {words[1]: float(words[5]) for words in lines[: len(sweeps_toy.ENTRIES[0].ranges)]}
    assert max(shares, key=shares.get) == ' `lr` '  # nothing else matters to the toy
    np.testing.assert_allclose(sum(shares.values()), 1.0, atol=0.02)


@pytest.mark.slow
def test_killed_twice_and_started_again_ends_as_a_whole_one(tmp_path, whole):
    """The process group is killed in the middle of a trial; its run, in a session of its own, may go on for a while."""
    root, launcher = tmp_path / 'root', sweeps_toy.launcher(tmp_path)
    for count in (1, 5):
        process = studies_toy.start(root, '-m', 'tests.helpers.sweeps_toy', launcher, TOY_SLEEP='0.1')
        studies_toy.wait_until(process, lambda count=count: len(started(root)) >= count)
        studies_toy.kill(process)
    (journal,) = root.glob('*/optuna-*.journal')
    with journal.open('ab') as file:
        file.write(b'{"op_code": 4, "wor')  # as a machine that lost its power leaves it
    folder = make(root, launcher)
    for name in ('trials.csv', 'tuned.json', 'report.md', 'figures/best.svg'):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.slow
def test_the_same_command_twice_divides_the_methods(tmp_path, whole):
    root, launcher = tmp_path / 'root', sweeps_toy.launcher(tmp_path)
    both = [studies_toy.start(root, '-m', 'tests.helpers.sweeps_toy', launcher, TOY_SLEEP='0.05') for _ in range(2)]
    ended = [runs.end_process(process) for process in both]
    for process in ended:
        assert process.returncode == 0, process.stdout.decode()
    assert len(started(root)) == len(set(started(root)))  # none was begun twice
    (folder,) = root.glob('toy*')
    assert (folder / 'trials.csv').read_bytes() == (whole / 'trials.csv').read_bytes()


@pytest.mark.slow
def test_more_trials_continue_the_search_and_fewer_are_its_beginning(tmp_path, whole):
    root, launcher = tmp_path / 'root', sweeps_toy.launcher(tmp_path)
    folder = make(root, launcher, given={'sweep_trials': 2})
    assert tuned.read(folder).methods[0].trials == 2
    assert make(root, launcher, given={'sweep_trials': 4}) == folder
    rows = table(whole)
    assert table(folder) == [row for row in rows if int(row['trial']) < 4]
    assert len(started(root)) == len(set(started(root))) == 8  # none was repeated
    part = make(root, launcher, given={'sweep_trials': 4, 'sweep_methods': ('semisfl',)})
    assert part != folder
    assert table(part) == table(folder, 'SemiSFL')
    assert len(set(started(root))) == 8  # its runs were there


@pytest.mark.slow
def test_a_run_that_fails_stops_the_sweep_and_is_tried_again(tmp_path, monkeypatch):
    root, launcher = tmp_path / 'root', sweeps_toy.launcher(tmp_path)
    monkeypatch.setenv('TOY_FAILS', 'supervised_only')
    with pytest.raises(UserError, match=r'Supervised-only, trial 0: the toy does not like .*tries it again'):
        make(root, launcher, given={'sweep_trials': 1})
    monkeypatch.delenv('TOY_FAILS')
    folder = make(root, launcher, given={'sweep_trials': 1})
    assert len(table(folder)) == 2
    assert (folder / tuned.NAME).exists()
    monkeypatch.setenv('TOY_FAILS', 'supervised_only')
    with pytest.raises(UserError, match='trial 1'):
        make(root, launcher, given={'sweep_trials': 2})
    assert not (folder / tuned.NAME).exists()  # it would be of fewer trials than were asked for


@pytest.mark.slow
def test_a_method_that_diverges_untuned_stops_the_sweep(tmp_path):
    with pytest.raises(UserError, match=r'Supervised-only, trial 0: .*nan'):
        make(tmp_path / 'root', sweeps_toy.launcher(tmp_path), sweeps_toy.sweep(lr=sweeps_toy.DIVERGES))


@pytest.mark.slow
def test_another_search_in_the_same_folder_begins_anew(tmp_path):
    root, launcher = tmp_path / 'root', sweeps_toy.launcher(tmp_path)
    make(root, launcher, given={'sweep_trials': 2})
    wider = [sweeps.entry('semisfl', ranges={'lr': sweeps_toy.ENTRIES[1].ranges['lr']._replace(high=0.4)})]
    folder = make(root, launcher, sweeps_toy.sweep(wider, 1))
    assert [row['trial'] for row in table(folder)] == ['0']
    assert len(started(root)) == 4  # the untuned run was there


def test_rounds_after_which_a_trial_can_stop():
    assert search.stop_rounds(40, 1) == [10, 20, 30]
    assert search.stop_rounds(40, 8) == [16, 24, 32]  # those evaluated
    assert search.stop_rounds(3, 1) == [1, 2]
    assert search.stop_rounds(1, 1) == search.stop_rounds(10, 50) == []


def test_of_an_error_the_lowest_is_the_best():
    errors = [search.Trial({}, search.COMPLETE, error, {}, 8, 'run', 'depth_rmse', 0) for error in (0.5, 0.25, 0.75)]
    assert search.Result(sweeps_toy.ENTRIES[0], errors).best == 1
    assert search._direction(errors[0]) == 'minimize'


@pytest.mark.parametrize(('scores', 'complete', 'stops'), [((0.1, 0.3), 5, 2), ((0.5, 0.5), 5, 0), ((0.1, 0.3), 4, 0)])
def test_a_trial_behind_the_median_of_five_stops(tmp_path, scores, complete, stops):
    """Of .1 and .3 the mean is .2 after round 2; the others have .1 to .5 there, whose median is .3."""
    curves = [{2: number / 10} for number in range(1, complete + 1)]
    done = [search.Trial({}, search.COMPLETE, 0.5, curve, 8, 'run', 'teacher_accuracy', 0) for curve in curves]
    (tmp_path / 'run').mkdir()
    lines = [{'round': number, 'teacher_accuracy': score} for number, score in enumerate(scores, start=1)]
    (tmp_path / 'run' / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    made = search.Search(sweeps_toy.sweep(), tmp_path / 'journal', tmp_path)
    assert search._stop_round(made, done, plan.Job('run', 'digits', {}, (100,), 8)) == stops


def test_a_damaged_record_of_commits_costs_its_trial_no_more_than_that(tmp_path):
    for name, content in {'a': '[{"commit": "abc", "machine": "here"}]', 'b': '{}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / results.PROVENANCE).write_text(content)
    trials = [search.Trial({'lr': 0.1}, search.COMPLETE, 0.5, {}, 8, name, 'teacher_accuracy', 0) for name in 'ab']
    result = search.Result(sweeps_toy.ENTRIES[0], trials)
    made = search.tuned_settings(search.Search(sweeps_toy.sweep(), tmp_path / 'journal', tmp_path), [result])
    assert made.commits == ('abc', 'unknown (provenance.json is damaged)')
