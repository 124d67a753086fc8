"""Measures the points of growth one after another, each in its own process, and saves results as it goes."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import time
from pathlib import Path

from benchmarks import growth_report, processes, report
from benchmarks.growth_points import Point
from benchmarks.growth_side import measure

LONG_ENOUGH, MOST_REPEATS = 1.0, 20  # short rounds are repeated up to this many seconds or times


def run_point(point: Point, repeats: int) -> dict:
    """All measurements of a point, or the reason for their absence. Errors of the point's process are not raised."""
    record = {'point': dataclasses.asdict(point), 'seconds': {}, 'facts': None, 'memory': None, 'failed': ''}
    try:
        with processes.Remote(measure, point) as remote:
            record['facts'] = remote.facts
            if record['facts']['too_large']:
                return record | {'failed': record['facts']['too_large']}
            tasks = ['round', 'alone'] if point.study == 'seeds' else ['round']
            for task in tasks:
                remote.time(task)  # warm-up: touches memory for the first time
            seconds = {task: [] for task in tasks}
            while len(seconds['round']) < repeats or (
                sum(seconds['round']) < LONG_ENOUGH and len(seconds['round']) < MOST_REPEATS
            ):
                for task in tasks:  # in turns
                    seconds[task].append(remote.time(task))
            return record | {'seconds': seconds, 'memory': remote.memory()}
    except processes.Failed as error:
        return record | {'failed': error.reason, 'traceback': error.details}


def run_points(todo: list[Point], repeats: int, out: Path) -> dict:
    """Measures one point after another, and writes all results after each, in case a long run is interrupted."""
    result: dict = {'machine': report.machine(), 'python': platform.python_version(), 'points': []}
    durations = []
    for number, point in enumerate(todo, start=1):
        words = f'{point.study} {point.value:,}' + (f', {point.series}' if point.study in ('active', 'seeds') else '')
        print(f'[{number}/{len(todo)}] {words} …', end=' ', flush=True)
        start = time.perf_counter()
        result['points'].append(run_point(point, repeats))
        durations.append(time.perf_counter() - start)
        minutes = math.ceil(remaining(result['points'], durations, todo[number:]) / 60)
        left = f'; about {minutes} min left' if minutes else ''
        print(growth_report.in_words(result['points'][-1]) + left, flush=True)
        (out / 'growth.json').write_text(json.dumps(result, indent=1) + '\n')
        (out / 'growth.md').write_text(growth_report.table(result))
    return result


def remaining(records: list[dict], durations: list[float], todo: list[Point]) -> float:
    """Estimated seconds of the remaining points, from the measured ones: start-up of each, and time per image."""
    measured = [(record, seconds) for record, seconds in zip(records, durations, strict=True) if record['memory']]
    if not measured:
        return sum(durations) / len(durations) * len(todo)
    running = [sum(map(sum, record['seconds'].values())) for record, _ in measured]
    starts = [seconds - ran for (_, seconds), ran in zip(measured, running, strict=True)]
    images = [Point(**record['point']).images * len(record['seconds']['round']) for record, _ in measured]
    per_image = sum(running) / sum(images)
    repeats = min(len(record['seconds']['round']) for record, _ in measured) + 1
    return sum(sum(starts) / len(starts) + max(per_image * point.images * repeats, LONG_ENOUGH) for point in todo)
