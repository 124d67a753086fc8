"""The comparison with other frameworks: what all sides are given, who is timed, and what is said of the others."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import agreement, measure, tables, task, turns, workloads
from benchmarks.peers.catalog import ALL, OURS

TINY = workloads.Workload('mlp', 'MLP', 'mlp200', clients=6, images=5, active=2, steps=3, rounds=4, batch_size=4)


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
