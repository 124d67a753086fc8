"""The parts of docs/ that are made from the records of methods and figures, the index of results/ and the lines that
links to code name: `python -m tests.pages` writes them anew.

tests/test_docs.py compares.
"""

import csv
import io
import re
from functools import partial

import numpy as np

from semisfl_jax import algorithms, costs, tasks
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms.registry import METHODS, option_groups
from semisfl_jax.config import keys, metric_help
from semisfl_jax.core import hparams
from semisfl_jax.lab.studies.figures import FIGURES
from tests.helpers.runs import ROOT

START, END = '<!-- made by tests/pages.py -->', '<!-- end -->'


GROUPS = {
    '': 'Run and rounds',
    'parallel': 'Devices and processes',
    'data': 'Data',
    'federation': 'Clients',
    'model': 'Model',
    'augment': 'Views of images',
    'frequency': 'Adaptation of K_s',
    'local': 'Training at clients',
    'uda': 'The objective `uda`',
    'cost': 'Costs',
    'failures': 'Failures',
}


def options():
    """docs/options.md: every key, those of all methods before the options of single ones."""
    parts = []
    for group in [*GROUPS, *sorted(option_groups())]:
        rows = [f'## {_title(group)}', '| key | default | meaning | values |\n|---|---|---|---|']
        lines = [
            f'| `{key}` | `{field.default!r}` | {_plain(field.metadata["help"])} | {_cell(keys.values(field))} |'
            for key, field in keys.fields().items()
            if key.rpartition('.')[0] == group
        ]
        parts.append('\n\n'.join(rows) + '\n' + '\n'.join(lines))
    return '\n\n'.join(parts)


def _title(group):
    methods = [f'`{name}`' for name, method in METHODS.items() if method.option_group == group]
    return GROUPS.get(group) or f'Options of {" and ".join(filter(None, (", ".join(methods[:-1]), methods[-1])))}'


def _anchor(group):
    """The anchor of `options` for a group, as GitHub makes it."""
    return re.sub(r'[^\w\- ]', '', _title(group).lower()).replace(' ', '-')


def metrics():
    """In docs/metrics.md: all metrics, and those that single methods have."""

    def table(found):
        rows = [f'| {", ".join(f"`{key}`" for key in m.keys)} | {m.where} | {_cell(m.meaning)} |' for m in found]
        return _linked('\n'.join(['| key | where | meaning |', '|---|---|---|', *rows]))

    return f'{table(metric_help.COMMON)}\n\n## Metrics of single methods\n\n{table(metric_help.of_methods())}'


METHOD_PAGES = [path for path in sorted((ROOT / 'docs/methods').glob('*.md')) if path.stem != 'index']
LEAD = re.compile(r'^- `(\w+)`: (.*(?:\n  .*)*)', re.MULTILINE)


def leads(path):
    """The methods of a page of docs/methods/, each with what the lines above its picture say of it."""
    head = path.read_text().partition('![')[0]
    return {name: ' '.join(text.split()) for name, text in LEAD.findall(head)}


def methods():
    """In docs/methods/index.md: all methods, their pages and papers."""
    rows, paper = [], 'none yet'
    for path in METHOD_PAGES:
        for name, what in leads(path).items():
            source = METHODS[name].source.replace(paper, 'the same paper')
            rows.append(f'| [{METHODS[name].label}]({path.name}) | `{name}` | {_cell(what)} | {_cell(source)} |')
            paper = METHODS[name].source
    return '\n'.join(['| method | `config.algorithm` | what it is | paper |\n|---|---|---|---|', *rows])


def method(path):
    """In a page of docs/methods/: keys of its methods with default and official values, and prices of a round."""
    found = [METHODS[name] for name in leads(path)]
    first, groups = found[0], {each.option_group for each in found} - {''}
    default = config_lib.flatten(_reference(first, first.needs))
    own = [key for key in keys.fields() if key.rpartition('.')[0] in groups]
    meanings = f'[what they mean](../options.md#{_anchor(*groups)})' if groups else '`--help KEY` says what they mean'
    own += [key for key, field in hparams.KEYS.items() if _readers(field.metadata['feature']) & {*leads(path)}]
    columns = {'default': default}
    if callable(first.official):
        columns['official'] = official = first.official(default)
        shared = ', '.join(
            f'`{key}={official[key]}`' for key in SHARED if official.get(key, default[key]) != default[key]
        )
        note = [f'`setting=official` also has {shared}.']
    else:
        note = [f'`setting=official` is refused: {first.official}.']
    if first.name == 'semisfl':
        columns['`:code`'] = config_lib.flatten(_reference(first, {}, ':code'))
    head = f'| key | {" | ".join(columns)} |\n|---{len(columns) * "|---"}|'
    rows = [f'| `{key}` | {" | ".join(_value(key, values) for values in columns.values())} |' for key in own]
    table = [f'Keys ({meanings}):', '\n'.join([head, *rows])] if rows else ['No keys of its own.']
    return '\n\n'.join([*table, *note, _prices(found)])


# Methods that take SemiSFL's keys as they are: these stand on its page alone
LIKE_SEMISFL = {'semisfl_prior', 'supervised_only'}
SHARED = ('federation.num_clients', 'federation.num_active', 'rounds', 'lr', 'optimizer', 'batch_size', 'local.epochs')
SHARED += ('threshold',)
SCENES = (tasks.make('semseg', 11),)  # of configs/digit_scenes.py


def _readers(feature):
    """The methods on whose page the keys of a feature stand: those that read them, if they share one page."""
    readers = {name for name, method in METHODS.items() if feature in method.uses} - LIKE_SEMISFL
    return readers if any(readers <= {*leads(path)} for path in METHOD_PAGES) else set()


def _reference(method, values, settings=''):
    """The configuration of a page's defaults and prices, with values by key."""
    name = 'digit_scenes' if method.dense else f'cifar10{settings}'
    return config_lib.get_config(name, algorithm=method.name, **{k.replace('.', '__'): v for k, v in values.items()})


def _prices(found):
    """What a round of the reference costs, in a row for methods of equal price."""
    rows = {}
    for each in found:
        rows.setdefault(_price(each), []).append(f'`{each.name}`')
    head = '| | MiB down | MiB up | TFLOP, K_s steps | TFLOP, the rest |\n|---|---|---|---|---|'
    lines = [f'| {", ".join(names)} | {" | ".join(price)} |' for price, names in rows.items()]
    return '\n'.join(['[Price](index.md#price) of a round:\n', head, *lines])


def _price(method):
    form = next(iter(method.variants.values()))  # in which it is measured
    config = config_lib.resolve(_reference(method, {**method.needs, **form}))
    settings = config_lib.hparams(config)
    shape, dense = ((48, 48, 3), SCENES) if method.dense else ((32, 32, 3), ())
    model = costs.build(config, method, 10, shape, settings, tasks=dense)
    everyone = np.ones(model.num_active, int)
    images = (50_000 - config.data.num_labeled) // config.federation.num_clients * everyone  # in sets of all images
    labels = everyone * settings.labeled_rows > 0
    clients = costs.no_failures(np.arange(model.num_active), images, settings.k_u * everyone, labels)
    bill, work = costs.price_round(model, 0, config.k_s, clients), costs.work(model, 0, config.k_s, clients)
    sent = [size / model.num_active / 2**20 for size in (bill.bytes_down, bill.bytes_up)]
    return tuple(f'{number:.3g}' for number in (*sent, *(operations / 1e12 for operations in work)))


def _value(key, values):
    return f'`{values[key]!r}`' if key in values else '—'


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
    'docs/methods/index.md': methods,
    **{f'docs/methods/{path.name}': partial(method, path) for path in METHOD_PAGES},
    'docs/sweeps.md': ranges,
    'docs/studies.md': figures,
    'results/README.md': results,
}


def _cell(text):
    return text.replace('|', '\\|')


def _plain(text):
    """A meaning, in which nothing is markup but code, and pages are links."""
    return _linked(re.sub(r'[*$<]', r'\\\g<0>', _cell(text)))


def _linked(text):
    return re.sub(r'docs/([\w-]+\.md)', r'[\1](\1)', text)


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
    for path in (ROOT / 'docs').rglob('*.md'):
        path.write_text(with_lines(path))
    for page in PAGES:
        (ROOT / page).write_text(fill(page))
