"""The plot of growth: a panel or two for each study, readable without colors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.growth_report import held, of_study, point, seconds, series

STYLES = (('#0072B2', 'o', '-'), ('#D55E00', 's', '--'), ('#009E73', '^', '-.'))
GUIDE = {'color': '#666666', 'linestyle': ':', 'linewidth': 1}
MIB = 2**20


def plot(result: dict, folder: Path) -> None:
    """Draws the panels of all studies with at least one measured point: growth.png and growth.svg."""
    from matplotlib.figure import Figure

    panels = [
        (draw, records) for study, draw in PANELS for records in [of_study(result, study)] if series(records, 'seconds')
    ]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    drawn = Figure(figsize=(3.8 * columns, 3.2 * rows), layout='constrained')
    axes = drawn.subplots(rows, columns, squeeze=False)
    for axis, (draw, records) in zip(axes.flat, panels, strict=False):
        draw(axis, records)
        axis.spines[['top', 'right']].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for suffix in ('png', 'svg'):
        drawn.savefig(folder / f'growth.{suffix}', dpi=200)


def _line(axis, number: int, label: str, records: list[dict], height: Callable[[dict], float]) -> None:
    color, marker, dashes = STYLES[number % len(STYLES)]
    values = [point(record).value for record in records]
    axis.plot(values, [height(r) for r in records], color=color, marker=marker, linestyle=dashes, label=label)


def _label(axis, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def _few(axis, records: list[dict]) -> None:
    """Formats an x axis of a few powers of two, and a y axis from 0."""
    values = sorted({point(record).value for record in records})
    axis.set_xscale('log', base=2)
    axis.set_xticks(values, map(str, values))
    axis.set_ylim(0, 1.1 * axis.get_ylim()[1])


def _active_seconds(axis, records: list[dict]) -> None:
    axis.set_xscale('log')
    axis.set_yscale('log')
    for number, (name, line_records) in enumerate(series(records).items()):
        _line(axis, number, name, line_records, seconds)
    last = max((record for record in records if record['seconds']), key=lambda record: point(record).value)
    ends = [min(point(record).value for record in records), point(last).value]
    axis.plot(ends, [seconds(last) * end / ends[1] for end in ends], label='linear', **GUIDE)
    _label(axis, 'Active clients: time', 'active clients', 'seconds per round')


def _active_memory(axis, records: list[dict]) -> None:
    axis.set_xscale('log')
    axis.set_yscale('log')
    lines = series(records, 'facts')
    for number, (name, line_records) in enumerate(lines.items()):
        _line(axis, number, name, line_records, lambda record: record['facts']['temporary_bytes'] / MIB)
    most = max(lines.values(), key=len)
    values = [point(record).value for record in most]
    axis.plot(values, [held(record) / MIB for record in most], label='held per client (arithmetic)', **GUIDE)
    _label(axis, 'Active clients: memory', 'active clients', 'temporary memory, MiB')


def _total(axis, records: list[dict]) -> None:
    axis.set_xscale('log')
    axis.set_yscale('log')
    ((_, line_records),) = series(records).items()
    _line(axis, 0, 'a round', line_records, seconds)
    _line(axis, 1, 'start: partition', line_records, lambda record: record['facts']['start_s']['partition'])
    _line(axis, 2, 'start: federation', line_records, lambda record: record['facts']['start_s']['federation'])
    _label(axis, 'Clients in total', 'clients in total', 'seconds')


def _devices(axis, records: list[dict]) -> None:
    ((_, line_records),) = series(records).items()
    _line(axis, 0, 'a round', line_records, seconds)
    _few(axis, line_records)
    on_cpu = line_records[0]['facts']['device'].startswith('cpu')
    _label(axis, f'Devices{" (fake, on the same cores)" if on_cpu else ""}', 'devices', 'seconds per round')


def _seeds_seconds(axis, records: list[dict]) -> None:
    lines = series(records)
    for number, (name, line_records) in enumerate(lines.items()):
        _line(axis, number, f'one program, {name}', line_records, seconds)
    first = next(iter(lines.values()))
    _line(axis, 2, 'single runs in turn', first, lambda record: seconds(record, 'alone'))
    _few(axis, [record for line_records in lines.values() for record in line_records])
    _label(axis, 'Seeds: time', 'seeds', 'seconds per round and seed')


def _seeds_compile(axis, records: list[dict]) -> None:
    lines = series(records, 'facts')
    for number, (name, line_records) in enumerate(lines.items()):
        _line(axis, number, f'one program, {name}', line_records, lambda record: record['facts']['compile_s']['round'])
    first = next(iter(lines.values()))
    _line(axis, 2, 'a single run', first, lambda record: record['facts']['compile_s']['alone'])
    _few(axis, [record for line_records in lines.values() for record in line_records])
    _label(axis, 'Seeds: compilation', 'seeds', 'seconds')


PANELS = (
    ('active', _active_seconds),
    ('active', _active_memory),
    ('total', _total),
    ('devices', _devices),
    ('seeds', _seeds_seconds),
    ('seeds', _seeds_compile),
)
