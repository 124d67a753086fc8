"""Turns what was measured into tables."""

from __future__ import annotations

import statistics

from benchmarks import commands
from benchmarks.growth_report import NOTHING, digits
from benchmarks.peers.agreement import TOLERANCE
from benchmarks.peers.catalog import ALL, OURS

WARM_UP = 2  # rounds that do not count


def rounds(measured: dict, side: str) -> list[float]:
    """Seconds of every round of a side from the third on, in all turns; means of as many as contain one evaluation."""
    span = measured['workload']['evaluate'] or 1
    return [
        (end - before) / span
        for ends in measured['ends'][side]
        for before, end in zip(ends[WARM_UP - 1 :: span], ends[WARM_UP - 1 + span :: span], strict=False)
    ]


def timed(measured: dict) -> list[str]:
    """The sides with at least one turn, in the order in which they ran."""
    return [side for side, ends in measured['ends'].items() if ends]


def first(measured: dict, side: str) -> tuple[float, float | None]:
    """Seconds from the start of a process to the end of its first round: of the first one, median of later ones."""
    starts = [ends[0] for ends in measured['ends'][side]]
    return starts[0], statistics.median(starts[1:]) if starts[1:] else None


def tables(result: dict) -> str:
    """Markdown: a table for each workload, and what was left out."""
    parts = [_table(result, measured) for measured in result['workloads'].values()]
    return '\n\n'.join([*parts, '\n'.join(_notes(result))]) + '\n'


def _table(result: dict, measured: dict) -> str:
    workload = measured['workload']
    titles = ['side', 's per round (lowest to highest)', 'of ours', 'first start, s', 'later starts, s', 'apart']
    rows = [_row(result, measured, side) for side in timed(measured)]
    size = (
        f'{workload["clients"]:,} clients x {workload["images"]} images, {workload["active"]} a round, '
        f'{workload["steps"]} steps of {workload["batch_size"]}'
    )
    if workload['evaluate']:
        size += f', evaluated every {workload["evaluate"]} rounds (a share of it is in each time)'
    untimed = [f'{_title(result, side)} failed: {reason}.' for side, reason in measured['failed'].items()]
    untimed += [
        f'{_title(result, side)} ended on other weights ({apart:.0e} apart) and was not timed.'
        for side, apart in measured['difference'].items()
        if apart > TOLERANCE
    ]
    return '\n'.join(
        [f'### {workload["title"]}: {size}', '', commands.markdown(titles, rows), *(f'\n{line}' for line in untimed)]
    )


def _row(result: dict, measured: dict, side: str) -> list[str]:
    seconds = rounds(measured, side)
    median, (cold, warm) = statistics.median(seconds), first(measured, side)
    ratio = NOTHING
    if timed(measured)[0] == OURS.name:
        ratio = f'{median / statistics.median(rounds(measured, OURS.name)):.2f}'
    return [
        _title(result, side),
        f'{digits(median)} ({digits(min(seconds))} to {digits(max(seconds))})',
        ratio,
        f'{cold:.1f}',
        NOTHING if warm is None else f'{warm:.1f}',
        f'{measured["difference"][side]:.0e}',
    ]


def _title(result: dict, side: str) -> str:
    versions = result['sides'][side]['versions']
    return f'{ALL[side].title} {versions[ALL[side].package]}'


def _notes(result: dict) -> list[str]:
    machine = result['machine']
    notes = [
        f'FedAvg, plain SGD, synthetic images; turns: {result["turns"]}, each of {result["rounds"]} rounds in a new '
        'process, never two at once; medians from the third round of a turn on. Starts: from the start of a process to '
        'the end of its first round; at the first one, this project has compiled nothing yet. Apart: how far final '
        'weights are from ours on data whose order does not matter, of the way that training moved them.',
        f'{machine["cores"]} cores, {machine["processor"]}, {machine["platform"]}; '
        + '; '.join(
            f'{ALL[side].title}: {", ".join(f"{name} {number}" for name, number in facts["versions"].items())}'
            for side, facts in result['sides'].items()
        )
        + '.',
    ]
    if result['quick']:
        notes.insert(0, '**Sizes were reduced (--quick): these times mean nothing.**')
    return notes + [f'{ALL[side].title} is left out: {reason}' for side, reason in result['left_out'].items()]
