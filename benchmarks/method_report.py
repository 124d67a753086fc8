"""Turns the raw measurements of the methods into a table."""

from __future__ import annotations

import dataclasses
import statistics

from benchmarks import commands
from benchmarks.growth_report import NOTHING, digits, mib
from benchmarks.method_cases import Case

REFERENCE = 'semisfl'  # what the others are compared with


def seconds(result: dict, name: str) -> float:
    """Median seconds of a round of a method."""
    return statistics.median(result['seconds'][name])


def table(result: dict) -> str:
    """Markdown: a row per method, in the order of the package, and the machine and settings measured on."""
    titles = [
        'method',
        's per round (lowest to highest)',
        f'of {REFERENCE}',
        'images/s of the student',
        'compile s',
        'temporary memory',
        'state',
    ]
    rows = [_row(result, name) for name in result['seconds']]
    return '\n'.join([commands.markdown(titles, rows), '', *_notes(result)]) + '\n'


def _row(result: dict, name: str) -> list[str]:
    values, facts = result['seconds'][name], result['facts']['methods'][name]
    ratio = f'{seconds(result, name) / seconds(result, REFERENCE):.2f}' if REFERENCE in result['seconds'] else NOTHING
    return [
        name,
        f'{digits(seconds(result, name))} ({digits(min(values))} to {digits(max(values))})',
        ratio,
        f'{facts["images"] / seconds(result, name):,.0f}',
        f'{facts["compile_s"]:.1f}',
        mib(facts['temporary_bytes']),
        mib(facts['state_bytes']),
    ]


def _notes(result: dict) -> list[str]:
    case, facts, machine = result['case'], result['facts'], result['machine']
    repeats = min(map(len, result['seconds'].values()))
    versions = {'python': result['python'], **facts['versions']}
    changed = {
        field.name: case[field.name]
        for field in dataclasses.fields(Case)
        if field.name in ('model', 'convolution', 'client_map', 'client_chunk') and case[field.name] != field.default
    }
    size = (
        f'Synthetic images in the shape of {case["data"]}, {case["clients"]} clients x {case["batch_size"]}, '
        f'K_s {case["k_s"]}, K_u {case["k_u"]}, {"augmented" if case["augment"] else "plain"} views, precision '
        f'{case["precision"]}{"".join(f", {name} {value}" for name, value in changed.items())}. Medians of {repeats} '
        'rounds of each, all methods in turn. Temporary memory is what XLA says a round needs beside its arguments; '
        'the state is what it takes from the round before.'
    )
    words = ', '.join(f'{name} {number}' for name, number in versions.items())
    place = f'{machine["cores"]} cores, {machine["processor"]}, {machine["platform"]}'
    return [size, f'{facts["device"]}; {place}; {words}.']
