"""The two parts of a comparison: all sides train to the same weights, then those that did take turns."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import agreement, problem, task, turns, workloads
from benchmarks.peers.catalog import OURS, Peer
from benchmarks.peers.workloads import Workload


class Plan(NamedTuple):
    """What is to be measured."""

    sides: dict[Peer, Path]  # with the Python of each; the first one is this project
    workloads: list[Workload]
    turns: int
    folder: Path  # for tasks, caches and what sides leave behind
    logs: Path  # folder for what they print


def measure(plan: Plan, save: Callable[[dict], None]) -> dict:
    """Runs everything, one process at a time; returns {workload: what was measured}, saved after every process.

    A side that fails, or ends on other weights, is not timed.
    """
    result: dict = {}
    for workload in plan.workloads:
        result[workload.name] = _check(plan, workload)
        save(result)
    jobs = [
        (workload, side)
        for _ in range(plan.turns)
        for workload in plan.workloads
        for side in plan.sides
        if side.name in result[workload.name]['ends']
    ]
    seconds: dict[tuple[str, str], float] = {}  # that a process took
    for number, (workload, side) in enumerate(jobs, start=1):
        measured = result[workload.name]
        print(f'[{number}/{len(jobs)}] {workload.title}, {side.title} …', end=' ', flush=True)
        if side.name not in measured['ends']:
            print('left out: it failed before', flush=True)
            continue
        start = time.monotonic()
        try:
            ends = turns.run(side, _task(plan, workload, ''), workload.rounds, _place(plan, side, workload.name))
        except turns.Failed as error:
            measured['failed'][side.name] = str(error)
            del measured['ends'][side.name]
            words = f'failed: {error}'
        else:
            measured['ends'][side.name].append(ends)
            rest = ends[-1] - ends[1]
            words = f'first round after {ends[0]:.1f} s, then {rest / (len(ends) - 2):.2f} s each'
        seconds[workload.name, side.name] = time.monotonic() - start
        left = sum(_expected(result, seconds, *job) for job in jobs[number:])
        print(f'{words}{_minutes(left)}', flush=True)
        save(result)
    return result


def _check(plan: Plan, workload: Workload) -> dict:
    """Trains all sides on data whose order does not matter, and compares their weights with this project's."""
    small = workloads.check(workload)
    folder = _task(plan, workload, '-check')
    problem.write(small, folder)
    problem.write(workload, _task(plan, workload, ''))
    start, reference = task.load(str(folder)).weights, None
    measured = {
        'workload': dataclasses.asdict(workload),
        'check': dataclasses.asdict(small),
        'difference': {},  # of the weights of every side that trained
        'check_s': {},  # seconds to the end of each of its rounds
        'failed': {},  # reasons
        'ends': {},  # of the sides to be timed, for each turn the seconds to the end of each round
    }
    began = time.monotonic()
    sides = [side for side in plan.sides if side == OURS or side.name in workload.peers]
    for number, side in enumerate(sides, start=1):
        print(f'{workload.title}, {side.title}: the same weights?', end=' ', flush=True)
        file = plan.folder / f'{workload.name}-{side.name}.npz'
        try:
            ends = turns.run(side, folder, small.rounds, _place(plan, side, f'{workload.name}-check'), file)
        except turns.Failed as error:
            measured['failed'][side.name] = str(error)
            words = f'failed: {error}'
        else:
            trained = agreement.read(file)
            reference = reference or trained
            apart = agreement.difference(trained, reference, start)
            measured['difference'][side.name] = apart
            measured['check_s'][side.name] = ends
            if apart <= agreement.TOLERANCE:
                measured['ends'][side.name] = []
            words = f'{"yes" if apart <= agreement.TOLERANCE else "NO, so it is not timed"} ({apart:.0e} apart)'
        if side == OURS and measured['failed']:
            raise turns.Failed(f'{OURS.title}: {measured["failed"][OURS.name]}')
        left = (time.monotonic() - began) / number * (len(sides) - number)
        print(f'{words}{_minutes(left)}', flush=True)
    return measured


def _expected(result: dict, seconds: dict, workload: Workload, side: Peer) -> float:
    """Seconds that a process will take: as the last one did, or from the rounds of the check and their work."""
    if side.name not in result[workload.name]['ends']:
        return 0.0
    if (workload.name, side.name) in seconds:
        return seconds[workload.name, side.name]
    ends, small = result[workload.name]['check_s'][side.name], result[workload.name]['check']
    work = workload.active * workload.steps / (small['active'] * small['steps'])
    return ends[0] + (ends[-1] - ends[0]) / (len(ends) - 1) * work * workload.rounds


def _minutes(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f'; about {minutes} min left' if seconds else ''


def _task(plan: Plan, workload: Workload, kind: str) -> Path:
    return plan.folder / f'task-{workload.name}{kind}'


def _place(plan: Plan, side: Peer, what: str) -> turns.Place:
    """A folder of its own for every side and workload; the check's cache does not warm that of the measurement."""
    folder = plan.folder / f'{side.name}-{what}'
    log = plan.logs / f'{side.name}-{what}.log'
    return turns.Place(plan.sides[side], folder, log, folder / 'cache' if side == OURS else None)
