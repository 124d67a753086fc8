"""The comparison with other frameworks: what all sides are given, who is timed, and what is said of the others."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import agreement, environments, measure, plot, problem, tables, task, turns, workloads
from benchmarks.peers.catalog import ALL, OURS, PEERS, Peer
from benchmarks.peers.environments import Unavailable
from semisfl_jax import data
from tests.runs import HANGS

TINY = workloads.Workload('mlp', 'MLP', 'mlp200', clients=6, images=5, active=2, steps=3, rounds=4, batch_size=4)


def test_a_task_is_read_as_it_was_written(tmp_path):
    problem.write(TINY, tmp_path / 'task')
    assert problem.read(str(tmp_path / 'task')) == TINY
    read = task.load(str(tmp_path / 'task'))
    assert (read.images.shape, read.labels.shape) == ((6, 5, 28, 28, 1), (6, 5))
    assert abs(read.images.mean()) < 3
    assert [cohort.tolist() for cohort in read.cohorts] == [data.draw_cohort(0, r, 6, 2).tolist() for r in range(4)]
    assert [weight.shape for weight in read.weights] == [(784, 200), (200,), (200, 10), (10,)]
    rows = read.batches(np.random.default_rng(0))
    assert rows.shape == (3, 4)
    assert sorted(rows.ravel()[:5]) == sorted(rows.ravel()[5:10]) == list(range(5)), 'pass after pass'


def test_how_far_weights_are_apart():
    start = [np.zeros(3, np.float32), np.zeros((1, 1), np.float32)]
    reference = [np.array([3, 0, 0], np.float32), np.array([[4]], np.float32)]
    other = [np.array([3, 0, 0.5], np.float32), np.array([[4]], np.float32)]
    assert agreement.difference(reference, reference, start) == 0
    assert agreement.difference(other, reference, start) == pytest.approx(0.5 / 5)
    assert agreement.difference(other[:1], reference, start) == float('inf')
    assert agreement.difference([other[0] * np.nan, other[1]], reference, start) == float('inf')


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Measures with sides that only pretend: FedJAX ends elsewhere, Flower fails at once, pfl in its second turn."""
    seen = []

    def pretend(peer, folder, rounds, place, weights=None):
        seen.append((peer.name, bool(weights), place.cache))
        if peer.name == 'flower' or (peer.name == 'pfl' and sum(name == 'pfl' for name, *_ in seen) == 3):
            raise turns.Failed('no luck')
        if weights:
            ends = [weight + 1 for weight in task.load(str(folder)).weights]
            ends[0] = ends[0] + (0.1 if peer.name == 'fedjax' else 0)
            np.savez(weights, *ends)
        slow = 2.0 if peer == OURS else 5.0
        return [10.0 + slow * number for number in range(rounds)]

    monkeypatch.setattr(turns, 'run', pretend)
    monkeypatch.setattr(workloads, 'check', lambda workload: TINY)
    sides = {ALL[name]: Path(sys.executable) for name in ('ours', 'pytorch', 'flower', 'pfl', 'fedjax')}
    saved = []
    plan = measure.Plan(sides, [TINY], 2, tmp_path / 'work', tmp_path / 'logs')
    measured = measure.measure(plan, lambda result: saved.append(sorted(result['mlp']['ends'])))
    return measured['mlp'], seen, saved


def test_only_sides_with_the_same_weights_are_timed(run, capsys):
    measured, seen, saved = run
    assert {name: len(ends) for name, ends in measured['ends'].items()} == {'ours': 2, 'pytorch': 2}
    assert measured['difference']['fedjax'] > agreement.TOLERANCE
    assert measured['difference']['pytorch'] == 0
    assert measured['failed'] == {'flower': 'no luck', 'pfl': 'no luck'}
    timed = [name for name, weights, _ in seen if not weights]
    assert timed == ['ours', 'pytorch', 'pfl', 'ours', 'pytorch', 'pfl'], 'in turns'
    caches = {cache for name, _, cache in seen if name == 'ours'}
    assert len(caches) == 2, 'the check does not warm the cache of the measurement'
    assert {cache for name, _, cache in seen if name != 'ours'} == {None}
    assert saved[0] == ['ours', 'pfl', 'pytorch']


@pytest.fixture
def result(run):
    sides = {name: {'versions': {ALL[name].package: '1.0', 'python': '3.11'}} for name in ALL}
    return {
        'machine': {'cores': 2, 'platform': 'here'},
        'quick': False,
        'rounds': 4,
        'turns': 2,
        'sides': sides,
        'left_out': {'blazefl': 'needs Python 3.12'},
        'workloads': {'mlp': run[0]},
    }


def test_the_table_says_what_was_measured_and_what_was_not(result):
    text = tables.tables(result)
    assert '| this project 1.0 | 2.00 (2.00 to 2.00) | 1.00 | 10.0 | 10.0 | 0e+00 |' in text
    assert '| PyTorch loop 1.0 | 5.00 (5.00 to 5.00) | 2.50 |' in text
    for name in ('FedJAX 1.0', 'Flower 1.0', 'BlazeFL'):
        assert name in text
    assert 'mean nothing' not in text
    assert 'mean nothing' in tables.tables(result | {'quick': True})


def test_rounds_count_from_the_third_on(result):
    measured = {'ends': {'ours': [[50.0, 60.0, 61.0, 63.0], [5.0, 9.0, 10.0, 13.0]]}}
    assert tables.rounds(measured, 'ours') == [1.0, 2.0, 1.0, 3.0]
    assert tables.first(measured, 'ours') == (50.0, 5.0)
    assert tables.first({'ends': {'ours': [[4.0, 5.0, 6.0]]}}, 'ours') == (4.0, None)


def test_the_plot_draws_the_medians(result):
    pytest.importorskip('matplotlib')
    left, right = plot.figure(result).axes
    assert [bar.get_width() for bar in left.patches] == [5.0, 2.0], 'ours on top'
    assert [bar.get_width() for bar in right.patches] == [10.0, 10.0]


def test_a_side_that_does_not_start_is_one_line(tmp_path):
    place = turns.Place(Path(sys.executable), tmp_path, tmp_path / 'a.log')
    with pytest.raises(turns.Failed, match=r'0 of 3 rounds, exit status 1: .*No module named .*side_nobody') as error:
        turns.run(Peer('nobody', 'nobody', 'nobody'), tmp_path, 3, place)
    assert '\n' not in str(error.value)


def test_what_a_side_leaves_behind_does_not_hold_up_the_others(tmp_path, monkeypatch):
    """The side ends after two rounds; the process that it started would keep its output open for an hour."""
    folder = tmp_path / 'benchmarks' / 'peers'
    folder.mkdir(parents=True)
    lines = [f'print("chatter\\n{task.MARK}{number}", flush=True)' for number in (1, 2)]
    child = 'import subprocess, sys; subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])'
    (folder / 'side_brief.py').write_text('\n'.join([child, *lines]))
    monkeypatch.setattr(turns, 'ROOT', tmp_path)
    place = turns.Place(Path(sys.executable), tmp_path, tmp_path / 'a.log')
    ends = turns.run(Peer('brief', 'brief', 'brief'), tmp_path, 2, place)
    assert 0 < ends[0] <= ends[1] < HANGS
    assert (tmp_path / 'a.log').read_text() == 'chatter\nchatter\n'


def test_a_python_is_found_or_named_and_a_failed_installation_is_told():
    here = f'{sys.version_info.major}.{sys.version_info.minor}'
    assert environments.find_python(('9.9', here)) == sys.executable
    with pytest.raises(Unavailable, match=r'9\.8 or 9\.9'):
        environments.find_python(('9.8', '9.9'))
    code = 'import sys; sys.exit("WARNING: slow\\nERROR: no such version\\n\\nnotice")'
    with pytest.raises(Unavailable, match=r'^pip: ERROR: no such version$'):
        environments._run([sys.executable, '-c', code], 'pip')


def test_every_side_has_its_module():
    folder = Path(turns.__file__).parent
    assert {f'side_{name}' for name in ALL} == {path.stem for path in folder.glob('side_*.py')}
    assert all(peer.requirements and all('==' in r or r == 'numpy' for r in peer.requirements) for peer in PEERS)


@pytest.mark.slow
def test_this_project_and_pytorch_end_on_the_same_weights(tmp_path):
    """Two processes, on the MLP and data whose order does not matter."""
    names = ['ours', *(['pytorch'] if importlib.util.find_spec('torch') else [])]
    sides = {ALL[name]: Path(sys.executable) for name in names}
    plan = measure.Plan(sides, [workloads.timed('mlp', 3, quick=True)], 1, tmp_path / 'work', tmp_path / 'logs')
    measured = measure.measure(plan, lambda result: None)['mlp']
    assert measured['failed'] == {}
    assert all(apart < 1e-5 for apart in measured['difference'].values())
    assert [len(ends) for ends in measured['ends'].values()] == [1] * len(names)
    assert all(len(tables.rounds(measured, name)) == 1 for name in names)
