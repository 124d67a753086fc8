"""The parts of docs/ that are made from the records of methods and figures, the index of results/ and the lines that
links to code name: `python -m tests.pages` writes them anew.

tests/test_docs.py compares.
"""

import csv
import io
import re

from semisfl_jax import algorithms
from semisfl_jax.algorithms.registry import METHODS, option_groups
from semisfl_jax.config import keys, metric_help
from semisfl_jax.lab.studies.figures import FIGURES
from tests.helpers.runs import ROOT

START, END = '<!-- made by tests/pages.py -->', '<!-- end -->'


def options():
    """docs/options.md: the options of each method, `config.GROUP.NAME`."""
    parts = []
    for group in sorted(option_groups()):
        methods = [f'`{name}`' for name, method in METHODS.items() if method.option_group == group]
        names = ' and '.join(filter(None, (', '.join(methods[:-1]), methods[-1])))
        title = f'## `config.{group}`: {names}'
        rows = [title, '| key | default | meaning | values |\n|---|---|---|---|']
        lines = [
            f'| `{key}` | `{field.default!r}` | {_cell(field.metadata["help"])} | {_cell(keys.values(field))} |'
            for key, field in keys.fields().items()
            if key.rpartition('.')[0] == group
        ]
        parts.append('\n\n'.join(rows) + '\n' + '\n'.join(lines))
    return '\n\n'.join(parts)


def metrics():
    """In docs/metrics.md: all metrics, and those that single methods have."""

    def table(found):
        rows = [f'| {", ".join(f"`{key}`" for key in m.keys)} | {m.where} | {_cell(m.meaning)} |' for m in found]
        text = '\n'.join(['| key | where | meaning |', '|---|---|---|', *rows])
        return re.sub(r'docs/(\w+\.md)', r'[\1](\1)', text)

    return f'{table(metric_help.COMMON)}\n\n## Metrics of single methods\n\n{table(metric_help.of_methods())}'


def sources():
    """In docs/algorithm.md: the methods and their papers."""
    labels = {}
    for name, method in METHODS.items():
        labels.setdefault(method.source, []).append((f'`{name}`', method.label))
    rows = [
        f'| {", ".join(name for name, _ in found)} | {", ".join(label for _, label in found)} | {_cell(source)} |'
        for source, found in labels.items()
    ]
    return '| `config.algorithm` | method | paper |\n|---|---|---|\n' + '\n'.join(rows)


def ranges():
    """In docs/sweeps.md: where each method is searched."""
    texts = {name: {key: range_.text for key, range_ in method.ranges.items()} for name, method in METHODS.items()}
    shared = set.intersection(*(set(ranges.items()) for ranges in texts.values()))
    names = {}
    for name, ranges in texts.items():
        text = '; '.join(f'`{key}` {text}' for key, text in ranges.items() if (key, text) not in shared)
        names.setdefault(text or 'nothing else', []).append(f'`{name}`')
    rows = [f'| {", ".join(found)} | {text} |' for text, found in names.items()]
    every = '; '.join(f'`{key}` {text}' for key, text in sorted(shared))
    return f'All methods: {every}.\n\n| method | and |\n|---|---|\n' + '\n'.join(rows)


def figures():
    """In docs/studies.md: the figures that a table can have."""
    rows = [f'| `{name}` | {_cell(entry.caption)} |' for name, entry in FIGURES.items()]
    return '| figure | what it shows |\n|---|---|\n' + '\n'.join(rows)


def results():
    """In results/README.md: every report, by its title."""
    reports = {path.parent.name: path.read_text() for path in sorted((ROOT / 'results').glob('*/report.md'))}
    titles = {name: text.split('\n', 1)[0].removeprefix('# ') for name, text in reports.items()}
    rows = [
        f'| [{name}]({name}/report.md) | {_cell(title)} | {" | ".join(_spent(name))} |'
        for name, title in titles.items()
    ]
    head = '| folder | report | runs | processor, cores | commits | hours of rounds | processor hours |\n' + 7 * '|---'
    return '\n'.join([f'{head}|', *rows])


def _spent(name):
    """What a study took: of reports older than their budget, runs, hardware and commits of the cells. '—': unknown."""
    folder = ROOT / 'results' / name
    cells, budget = (_rows(folder / file) for file in ('cells.csv', 'budget.csv'))
    hardware = sorted(set(re.findall(r'\(\w+\), (.*?), (\d+) core', ' '.join(row['hardware'] for row in cells))))
    named = {processor: ' or '.join(c for p, c in hardware if p == processor) for processor, _ in hardware}
    found = [
        sum(int(row['runs']) for row in budget) or len({run for row in cells for run in row['runs'].split()}),
        '; '.join(f'{processor}, {cores}' for processor, cores in named.items()),
        ', '.join(sorted({commit for row in cells for commit in row['commits'].split(', ')})),
    ]
    for key in ('hours_of_rounds', 'processor_hours'):
        hours = [row[key] for row in budget]
        found.append(f'{sum(map(float, hours)):.1f}' if hours and all(hours) else '')
    return [str(value or '—') for value in found]


def _rows(path):
    with path.open() if path.exists() else io.StringIO() as file:
        return list(csv.DictReader(file))


PAGES = {
    'docs/options.md': options,
    'docs/metrics.md': metrics,
    'docs/algorithm.md': sources,
    'docs/sweeps.md': ranges,
    'docs/studies.md': figures,
    'results/README.md': results,
}


def _cell(text):
    return text.replace('|', '\\|')


def fill(name):
    """A page with its made part as it should be."""
    text = (ROOT / name).read_text()
    assert text.count(START) == text.count(END) == 1, name
    made = PAGES[name]()
    return re.sub(f'(?s){START}.*{END}', lambda _: f'{START}\n\n{made}\n\n{END}', text)


LINE = re.compile(r'\[`(\w+)`\]\(([^)#]+\.py)#L(\d+)\)')


def defined(name, path):
    """Numbers of the lines of a file that define a function or class."""
    lines = enumerate(path.read_text().splitlines(), start=1)
    return [number for number, line in lines if re.match(rf'\s*(def|class) {name}\b', line)]


def with_lines(page):
    """A page whose links [`name`](file.py#L12) lead to the line that defines the name."""
    return LINE.sub(
        lambda link: f'[`{link[1]}`]({link[2]}#L{defined(link[1], page.parent / link[2])[0]})', page.read_text()
    )


if __name__ == '__main__':
    assert algorithms.METHODS
    for path in (ROOT / 'docs').glob('*.md'):
        path.write_text(with_lines(path))
    for page in PAGES:
        (ROOT / page).write_text(fill(page))
