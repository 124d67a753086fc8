"""Turns the raw measurements of growth into tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import arithmetic, commands, report
from benchmarks.growth_points import Point

TITLES = {'active': 'Active clients', 'total': 'Clients in total', 'devices': 'Devices', 'seeds': 'Seeds'}
NOTHING = '–'


class Column(NamedTuple):
    """A column of a table, blank for points that lack what it needs."""

    title: str
    needs: str  # 'point', 'facts', 'seconds' or 'memory'
    show: Callable[[dict, list[dict]], str]  # point's record, records of the study


def point(record: dict) -> Point:
    """The point of a record."""
    return Point(**record['point'])


def of_study(result: dict, study: str) -> list[dict]:
    """The records of a study, including failed ones."""
    return [record for record in result['points'] if record['point']['study'] == study]


def series(records: list[dict], needs: str = 'seconds') -> dict[str, list[dict]]:
    """Records that have the needed entry, by the line of the plot that they are on."""
    lines: dict[str, list[dict]] = {}
    for record in records:
        if record[needs]:
            lines.setdefault(point(record).series, []).append(record)
    return lines


def seconds(record: dict, task: str = 'round') -> float:
    """Median seconds of a round, divided by its number of seeds."""
    return statistics.median(record['seconds'][task]) / point(record).seeds


def exponent(records: list[dict]) -> tuple[float, int, int] | None:
    """The slope of log(seconds) over log(value) in the larger half of the points, and the range of that half.

    1 is linear, 0 flat. None for fewer than two points.
    """
    half = records[len(records) // 2 if len(records) > 2 else 0 :]
    if len(half) < 2:
        return None
    values = [point(record).value for record in half]
    fit = statistics.linear_regression([math.log(x) for x in values], [math.log(seconds(record)) for record in half])
    return fit.slope, values[0], values[-1]


def held(record: dict) -> int:
    """Bytes held for all active clients, by arithmetic."""
    return sum(record['facts']['per_client_bytes'].values()) * point(record).active


def in_words(record: dict) -> str:
    """The result of a point in one line."""
    if record['failed']:
        return record['failed']
    facts = record['facts']
    return (
        f'{digits(seconds(record))} s, compiled in {facts["compile_s"]["round"]:.1f} s, '
        f'temporary {mib(facts["temporary_bytes"])}, peak {_peak(record)}'
    )


def digits(value: float) -> str:
    """Three significant digits, but all digits before the decimal point."""
    places = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f'{value:,.{max(places, 0)}f}'


def mib(size: float) -> str:
    """Bytes formatted as MiB."""
    return f'{digits(size / 2**20)} MiB'


def _peak(record: dict) -> str:
    memory = record['memory']
    return report.gib(memory['peak_device'] or memory['peak_rss'])


def _spread(record: dict, task: str = 'round') -> str:
    each = [value / point(record).seeds for value in record['seconds'][task]]
    return f'{digits(statistics.median(each))} ({digits(min(each))} to {digits(max(each))})'


def _of_one(record: dict, records: list[dict]) -> str:
    one = [other for other in records if point(other).value == 1 and other['seconds']]
    return f'{seconds(record) / seconds(one[0]):.2f}' if one else NOTHING


VALUE = Column('', 'point', lambda record, _: f'{point(record).value:,}')
SECONDS = Column('s per round (lowest to highest)', 'seconds', lambda record, _: _spread(record))
COMPILE = Column('compile s', 'facts', lambda record, _: f'{record["facts"]["compile_s"]["round"]:.1f}')
TEMPORARY = Column('temporary memory', 'facts', lambda record, _: mib(record['facts']['temporary_bytes']))
PEAK = Column('peak memory', 'memory', lambda record, _: _peak(record))
COLUMNS = {
    'active': [
        VALUE._replace(title='active clients'),
        Column('map', 'point', lambda record, _: point(record).series),
        SECONDS,
        Column('ms per client', 'seconds', lambda record, _: f'{1000 * seconds(record) / point(record).active:,.1f}'),
        COMPILE,
        TEMPORARY,
        Column(
            'of it held per client',
            'facts',
            lambda record, _: f'{mib(held(record))} ({held(record) / record["facts"]["temporary_bytes"]:.0%})',
        ),
        Column('the rest', 'facts', lambda record, _: mib(record['facts']['temporary_bytes'] - held(record))),
        PEAK,
    ],
    'total': [
        VALUE._replace(title='clients in total'),
        SECONDS,
        Column('partition s', 'facts', lambda record, _: digits(record['facts']['start_s']['partition'])),
        Column('federation s', 'facts', lambda record, _: digits(record['facts']['start_s']['federation'])),
        COMPILE,
        TEMPORARY,
    ],
    'devices': [
        VALUE._replace(title='devices'),
        SECONDS,
        Column('of one device', 'seconds', _of_one),
        COMPILE,
        TEMPORARY._replace(title='temporary memory of a device'),
        PEAK,
    ],
    'seeds': [
        VALUE._replace(title='seeds'),
        Column('one program', 'point', lambda record, _: point(record).series),
        SECONDS._replace(title='s per round and seed (lowest to highest)'),
        Column('single runs, one after another', 'seconds', lambda record, _: _spread(record, 'alone')),
        Column('ratio', 'seconds', lambda record, _: f'{seconds(record) / seconds(record, "alone"):.2f}'),
        COMPILE,
        Column('of a single run', 'facts', lambda record, _: f'{record["facts"]["compile_s"]["alone"]:.1f}'),
        TEMPORARY,
    ],
}


def table(result: dict) -> str:
    """Markdown: a table for each study that has points, with conclusions, and the machine and settings measured on."""
    parts = []
    for study, columns in COLUMNS.items():
        if records := of_study(result, study):
            rows = [[column.show(r, records) if r[column.needs] else NOTHING for column in columns] for r in records]
            titles = [column.title for column in columns]
            notes = [*_failures(records), *NOTES[study](records)]
            parts += [f'### {TITLES[study]}', commands.markdown(titles, rows), *notes]
    return '\n\n'.join([*parts, *_measured_on(result)]) + '\n'


def _failures(records: list[dict]) -> list[str]:
    return [f'{point(r).value:,}, {point(r).series}: {r["failed"]}.' for r in records if r['failed']]


def _growth(records: list[dict], variable: str) -> list[str]:
    """How seconds grow along each line."""
    fits = [(name, fit) for name, line_records in series(records).items() if (fit := exponent(line_records))]
    words = [f'{name} {slope:.2f} (from {first:,} to {last:,})' for name, (slope, first, last) in fits]
    text = f'Seconds grow with this power of {variable}, where 1 is linear and 0 flat, in the larger half of the points'
    return [f'{text}: {"; ".join(words)}.'] if words else []


def _notes_active(records: list[dict]) -> list[str]:
    notes = _growth(records, 'the active clients')
    compiled = [record for record in records if record['facts']]
    for name, line_records in series(records, 'facts').items():
        if len(line_records) > 1:
            last = [(point(r).active, r['facts']['temporary_bytes']) for r in line_records[-2:]]
            (a, less), (b, more) = last
            notes.append(
                f'{name}: {mib((more - less) / (b - a))} of temporary memory for each client between {a:,} and {b:,}.'
            )
    if not compiled:
        return notes
    largest = max(map(point, compiled), key=lambda candidate: candidate.active)
    share = {name: mib(size) for name, size in compiled[0]['facts']['per_client_bytes'].items()}
    notes.append(
        'Temporary memory is what XLA says the round needs beside its arguments and results. By arithmetic '
        f'{mib(sum(compiled[0]["facts"]["per_client_bytes"].values()))} of it is held for each client, however few are '
        f'computed at a time: its bottom with momentum and gradient ({share["weights"]}), two views of its batch '
        f'({share["views"]}), its features twice and their gradient ({share["features"]}). The rest is the activations '
        'of the clients computed at a time, and what the server computes on all rows.'
    )
    if largest.model in arithmetic.FORWARD:
        linear = arithmetic.cross_entity(largest.model) * largest.active * largest.batch_size
        square = arithmetic.similarity(largest.active, largest.batch_size)
        notes.append(
            'Every row is compared with all rows of the iteration, which grows with the square of the clients: '
            f'{square / (linear + square):.0%} of the arithmetic at {largest.active:,} clients.'
        )
    return notes


def _notes_total(records: list[dict]) -> list[str]:
    first, measured = point(records[0]), [record for record in records if record['seconds']]
    notes = [
        *_growth(records, 'all clients'),
        f'{first.unlabeled:,} images are split among more and more clients; {first.active} are active. Partition and '
        'federation are made once, when a run starts.',
    ]
    if len(measured) > 1:
        few, many = measured[0], measured[-1]
        notes.append(
            f'A round with {point(many).value:,} clients takes {seconds(many) / seconds(few):.2f} times as long as one '
            f'with {point(few).value:,}.'
        )
    return notes


def _notes_devices(records: list[dict]) -> list[str]:
    notes = [f'{point(records[0]).active} active clients, whatever the number of devices.']
    if any(record['facts'] and record['facts']['device'].startswith('cpu') for record in records):
        notes.append('These devices are fake: parts of one CPU, on the same cores. They show overhead, not speed-up.')
    return notes


def _notes_seeds(records: list[dict]) -> list[str]:
    return [
        f'{point(records[0]).active} active clients. Both ways are measured in turns, in one process; of single runs '
        'only the first compiles, the others find its program in the cache.'
    ]


NOTES = {'active': _notes_active, 'total': _notes_total, 'devices': _notes_devices, 'seeds': _notes_seeds}


def _measured_on(result: dict) -> list[str]:
    first, machine = point(result['points'][0]), result['machine']
    facts = [record['facts'] for record in result['points'] if record['facts']]
    size = (
        f'{report.NAMES[first.model]}, batches of {first.batch_size}, K_s {first.k_s}, K_u {first.k_u}, augmented '
        f'views of synthetic images, precision {first.precision}. Medians; peak memory is that of a process with this '
        'point alone.'
    )
    device = f'{facts[0]["device"]}; ' if facts else ''
    versions = {'python': result['python'], **(facts[0]['versions'] if facts else {})}
    words = ', '.join(f'{name} {number}' for name, number in versions.items())
    return [size, f'{device}{machine["cores"]} cores, {machine["processor"]}, {machine["platform"]}; {words}.']
