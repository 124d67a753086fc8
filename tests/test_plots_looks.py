"""Every method has one look in all figures, every legend has all of them, and nothing is cut off at an edge."""

import dataclasses
import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from configs.studies import paper
from semisfl_jax import algorithms, tasks
from semisfl_jax import runs as runs_lib
from semisfl_jax.plots import curves, draw, inside, legends, looks, style
from semisfl_jax.studies import collect, figures, measures
from semisfl_jax.studies.document import Figure
from semisfl_jax.studies.spec import ACCURACY, Measure, Paper, Study, Table
from semisfl_jax.training import diagnostics
from tests import studies_toy
from tests.marks import slow_but

ROUNDS = 12
LOSSES = tuple(curves.LOSS_LABELS)
SERVER = LOSSES[:2]


def run(name, seed=0, but=()):
    """A made-up run with every quantity that figures of groups draw, `but` some."""
    level = 0.3 + 0.05 * (sum(map(ord, name)) % 9) + 0.02 * seed
    records = []
    for number in range(1, ROUNDS + 1):
        share = level * number / ROUNDS
        record = {'round': number, 'k_s': 100 - number, 'teacher_accuracy': share, 'mask_rate': share}
        record |= {'bytes_up': number * 2**30, 'bytes_down': number * 2**31, 'simulated_seconds': 60.0 * number}
        record |= dict.fromkeys((tasks.score_key(name, tasks.score(name).name) for name in tasks.DENSE), share)
        record |= {'pseudo_label_accuracy': share, **dict.fromkeys(LOSSES, 12345.678 * level / number)}
        records.append({key: value for key, value in record.items() if key not in but})
    return runs_lib.Run(f'{name}{seed}', {'data.tasks': list(tasks.DENSE)}, seed, 'teacher', records)


def groups(*names, **but):
    """Groups of runs by label; `but` names what those of a group lack."""
    return {name: {seed: run(name, seed, but.get(name, ())) for seed in (0, 1)} for name in names}


def figure_of(name, run_groups):
    with style.context():
        ((_, made),) = draw.figures(run_groups, (name,))
    return made


def look_of(line):
    return line.get_color(), line.get_marker(), str(line._unscaled_dash_pattern)


def looks_in(*drawn):
    """Label -> color, marker and dash, in all panels of the figures and in their legends: one for each label."""
    looks_by_label = {}
    for figure in drawn:
        (legend,) = figure.legends
        texts = [text.get_text() for text in legend.get_texts()]
        for name, line in zip(texts, legend.get_lines(), strict=True):
            looks_by_label.setdefault(name, set()).add(look_of(line))
        for line in itertools.chain(*(ax.lines for ax in figure.axes)):
            assert line.get_label() in texts
            looks_by_label[line.get_label()].add(look_of(line))
    assert all(len(label_looks) == 1 for label_looks in looks_by_label.values()), looks_by_label
    return {name: next(iter(label_looks)) for name, label_looks in looks_by_label.items()}


# --- looks


def test_a_method_has_one_color_in_all_panels_and_in_the_legend():
    """FedAvg has no loss of the server here: once it was blue in the panels without that, and pink in the legend."""
    names = ('semisfl', 'fedavg', 'fedswitch', 'supervised_only')
    lacking = {'algorithm=fedavg': SERVER, 'algorithm=supervised_only': LOSSES[2:], 'algorithm=fedswitch': SERVER}
    made = looks_in(figure_of('losses', groups(*(f'algorithm={name}' for name in names), **lacking)))
    assert {name: look[0] for name, look in made.items()} == {
        'SemiSFL': '#0072B2',
        'Supervised-only': '#000000',
        'FedAvg': '#56B4E9',
        'FedSwitch': '#009E73',
    }


@pytest.mark.parametrize('name', draw.OF_GROUPS)
def test_a_method_looks_the_same_in_every_figure(name):
    full_figure = figure_of(name, groups(*(f'algorithm={method}' for method in looks.of_methods())))
    made = looks_in(full_figure)
    assert {title: appearance[:2] for title, appearance in made.items()} == {
        look.title: (look.color, look.marker) for look in looks.of_methods().values()
    }
    for method in ('fedavg', 'splitfed'):
        single_figure = figure_of(name, groups(f'algorithm={method}'))
        assert looks_in(single_figure).items() <= made.items()


def test_a_group_keeps_its_look_in_a_figure_that_lacks_another():
    run_groups = groups('x=1', 'x=2', 'x=3', **{'x=1': ('k_s',)})
    made = looks_in(figure_of('k_s', run_groups), figure_of('accuracy_rounds', run_groups))
    assert set(made) == {'x=1', 'x=2', 'x=3'}


def test_studies_have_the_looks_of_runs(monkeypatch):
    """Rows of studies are methods by their titles, and keep their looks in a column where others have no run."""
    assert {name: looks.of_methods()[method].title for name, method in paper.METHODS.items()} == {
        name: name for name in paper.METHODS
    }
    tables, results = study_of(tuple(paper.METHODS), ('a', 'b', 'c'))
    results[tables[0].title, 'SemiFL', 'b'] = results[tables[0].title, 'SemiFL', 'b']._replace(runs={})
    made = study_figures(monkeypatch, tables, results)
    seen = looks_in(*(figure for name, figure in made.items() if 'values' not in name))
    assert {name: appearance[0] for name, appearance in seen.items()} == {
        look.title: look.color for look in looks.of_methods().values() if look.title in paper.METHODS
    }
    (values,) = (figure for name, figure in made.items() if name == '1-values')
    *rows, theirs = values.axes[0].containers
    assert theirs.get_label() == 'paper (hollow)'
    assert {row.get_label(): row.lines[0].get_color() for row in rows} == {
        name: appearance[0] for name, appearance in seen.items()
    }


def methods_of(kind):
    """The looks of methods of one kind: those of the other are judged by other scores, and in no figure with them."""
    return [look for name, look in looks.of_methods().items() if algorithms.get(name).dense == (kind == 'dense')]


@pytest.mark.parametrize('kind', ['classification', 'dense'])
def test_methods_differ_in_color_and_in_gray(kind):
    methods = methods_of(kind)
    assert len({look.color for look in methods}) == len({look.marker for look in methods}) == len(methods)
    others = list(looks.of([f'x={number}' for number in range(12)]).values())
    everything = [*methods, *others]
    assert len({(look.marker, look.dash) for look in everything}) == len(everything)
    assert not {look.color for look in methods} & {look.color for look in others}


def test_groups_of_one_method_share_its_color_and_differ_in_dash_and_marker():
    made = looks.of([f'SemiSFL, federation.alpha={alpha}' for alpha in range(12)] + ['SemiFL, x=1', 'SemiFL, x=2'])
    first, *_, fourth, fifth = made.values()
    assert first[1:] == looks.of_methods()['semisfl'][1:]
    assert fourth[1:] == looks.of_methods()['semifl'][1:]
    assert fourth.color == fifth.color
    semisfl_looks = [look for title, look in made.items() if title.startswith('SemiSFL')]
    assert {look.color for look in semisfl_looks} == {first.color}
    assert len({(look.marker, look.dash) for look in made.values()}) == 14
    mixed = looks.of(['mean_teacher', 'SemiSFL', 'alpha = 2', 'alpha = 2, code'])
    assert mixed['SemiSFL'] == looks.of_methods()['semisfl']
    assert mixed['mean_teacher'].color != mixed['alpha = 2'].color == mixed['alpha = 2, code'].color
    assert mixed['alpha = 2'].dash != mixed['alpha = 2, code'].dash


# Linear RGB as people without red and without green cones see it (Machado, Oliveira and Fernandes 2009, severity 1)
EYES = {
    'usual': np.eye(3),
    'protanopia': [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    'deuteranopia': [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(color, eyes):
    """CIE L*a*b* of a color seen by these eyes."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ np.clip(np.array(eyes) @ linear, 1e-3, 1) / XYZ.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize('eyes', EYES)
@pytest.mark.parametrize(
    'colors',
    [*([look.color for look in methods_of(kind)] for kind in ('classification', 'dense')), looks.CYCLE],
    ids=['classification', 'dense', 'others'],
)
def test_colors_are_told_apart_without_color_vision(colors, eyes):
    """A difference of 2.3 can just be seen in patches beside each other; lines need several times that."""
    seen = [lab(color, EYES[eyes]) for color in colors]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15
    assert all(perceived[0] < 75 for perceived in seen)  # dark enough for white paper


def test_markers_of_lines_do_not_hide_each_other():
    look = looks.of_methods()['semisfl']
    assert [look.line(80, index)['markevery'] for index in range(4)] == [(0, 10), (3, 10), (6, 10), (0, 10)]
    assert look.line(3, 5)['markevery'] == (0, 1)


# --- rendering


def study_of(rows, columns, measures=(ACCURACY,)):
    """A table of a study for each measure, and made-up runs for all of its cells."""
    tables, results = [], {}
    for measure in measures:
        cells = []
        for row, column in itertools.product(rows, columns):
            template = studies_toy.cell('semisfl', 1.0, Paper(50.0, 0.5, 'digits', 40), measure)
            cells.append(dataclasses.replace(template, row=row, column=column))
        curves_of = {'minutes': 'accuracy_minutes', 'gigabytes': 'accuracy_gigabytes'}.get(
            measure.kind, 'accuracy_rounds'
        )
        tables.append(Table(measure.kind, tuple(cells), figures=('values', curves_of, 'k_s')))
        for cell in cells:
            members = {seed: run(cell.row + cell.column, seed) for seed in (0, 1)}
            reference = {seed: run('another', seed) for seed in (0, 1)}
            results[measure.kind, cell.row, cell.column] = collect.CellResult(members, (0, 1), [], '', [], reference)
    return tables, results


def study_figures(monkeypatch, tables, results):
    """Name -> matplotlib figure."""
    monkeypatch.setattr(figures, 'figure', lambda name, part, caption, drawing: Figure(name, '', '', drawing, drawing))
    study = Study('toy', 'smoke', 'A toy', tuple(tables))
    return {figure.name: figure.png for figure in figures.draw(study, results)}


def overlap(a, b):
    """Pixels by which two boxes overlap in their narrower direction."""
    return min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)


def assert_nothing_is_cut(figure):
    """Legends, labels of axes and ticks, and titles lie inside the figure and apart; panels keep their room."""
    for dpi in (300, 100):
        figure.set_dpi(dpi)
        canvas = FigureCanvasAgg(figure)
        if dpi == 100:
            canvas.draw()
        else:
            figure.draw_without_rendering()  # the layout of a file, without its pixels
        renderer = canvas.get_renderer()
        boxes = {f'legend {index}': legend.get_window_extent(renderer) for index, legend in enumerate(figure.legends)}
        for index, ax in enumerate(figure.axes):
            boxes[f'panel {index}'] = ax.get_tightbbox(renderer)  # with title, labels and ticks
            assert min(ax.bbox.width, ax.bbox.height) > 0.7 * dpi, f'panel {index} is squeezed'
            assert ax.get_legend() is None
            shown = [
                tick.label1.get_window_extent(renderer) for tick in ax.xaxis.get_major_ticks() if tick.get_visible()
            ]
            shown = [bounds for bounds in shown if ax.bbox.x0 - 1 <= (bounds.x0 + bounds.x1) / 2 <= ax.bbox.x1 + 1]
            assert all(min(overlap(a, b)) <= 0 for a, b in itertools.pairwise(shown)), 'labels of ticks overlap'
        assert len(figure.legends) <= 1
        for name, box in boxes.items():
            inside = (
                box.x0 >= -0.5 and box.y0 >= -0.5 and box.x1 <= figure.bbox.x1 + 0.5 and box.y1 <= figure.bbox.y1 + 0.5
            )
            assert inside, (name, box, figure.bbox)
        for (a, box), (b, other) in itertools.combinations(boxes.items(), 2):
            assert min(overlap(box, other)) <= 1, (a, b, box, other)


LONG = tuple(
    f'algorithm={method}, augment.supervised=strong, data.num_labeled={labels}, federation.alpha=0.05, k_s_rule=paper'
    for method in ('semisfl', 'fedswitch_sl', 'supervised_only', 'a_method_from_outside')
    for labels in (250, 1000, 4000)
)
FIVE = tuple(f'algorithm={name}' for name in ('semisfl', 'fedswitch_sl', 'fedswitch', 'supervised_only', 'fedavg'))


SIZES = [
    *(pytest.param(names, marks=pytest.mark.slow, id=name) for name, names in (('one', LONG[:1]), ('four', LONG[:4]))),
    *(pytest.param(names, id=name) for name, names in (('five short', FIVE), ('twelve', LONG))),
]


@pytest.mark.parametrize('names', SIZES)
@pytest.mark.parametrize('name', draw.OF_GROUPS)
def test_nothing_is_cut_off_figures_of_runs(name, names):
    figure = figure_of(name, groups(*names))
    assert_nothing_is_cut(figure)
    assert len(figure.legends[0].get_texts()) == len(names)


@pytest.mark.parametrize('count', slow_but([1, 3, 5, 7, 10, len(LOSSES)], 1, 10))
def test_nothing_is_cut_off_any_number_of_losses(count):
    assert_nothing_is_cut(figure_of('losses', groups(*FIVE, **dict.fromkeys(FIVE, LOSSES[count:]))))


ROWS = ('SemiSFL', 'FedSwitch-SL', *(f'alpha = {n}, a row of a study with a long name' for n in range(10)))


@pytest.mark.parametrize('rows', slow_but([1, 4, 12], 12))
def test_nothing_is_cut_off_figures_of_studies(monkeypatch, rows):
    made = study_figures(monkeypatch, *study_of(ROWS[:rows], [f'Fashion-MNIST {n} to 85%' for n in range(5)]))
    assert len(made) == 1 + 2 * 5
    for name in ('1-values', '1-accuracy_rounds-Fashion-MNIST-0-to-85', '1-k_s-Fashion-MNIST-0-to-85'):
        assert_nothing_is_cut(made[name])


def test_nothing_is_cut_off_losses_and_spreads_of_studies(monkeypatch):
    (table,), results = study_of(ROWS[1:4], ('Non-IID',))
    made = study_figures(monkeypatch, [dataclasses.replace(table, figures=('loss_rounds', 'spread_rounds'))], results)
    assert list(made) == ['1-loss_rounds-Non-IID', '1-spread_rounds-Non-IID']
    for figure in made.values():
        assert_nothing_is_cut(figure)


def test_nothing_is_cut_off_what_studies_measure(monkeypatch):
    targets = {'minutes': 0.2, 'gigabytes': 0.2, 'rounds': 0.2, 'accuracy_after': 1}
    gains = {'delta_m': 'a row'}
    kinds = [Measure(kind, targets.get(kind, 0.0), gains.get(kind, '')) for kind in measures.KINDS]
    made = study_figures(monkeypatch, *study_of(ROWS[1:4], ('SVHN', 'a column of a study with a long name'), kinds))
    values = [figure for name, figure in made.items() if name.endswith('values')]
    assert len(values) == len(kinds)
    for figure in values:
        assert_nothing_is_cut(figure)


def test_nothing_is_cut_off_figures_of_one_run():
    with style.context():
        for clients in (10, 60):
            figure, ax = style.figure()
            inside.rates(ax, diagnostics.Rates(np.linspace(0, 1, clients), np.linspace(1, 0, clients)), 'Client')
            assert_nothing_is_cut(figure)
        figure, axes = style.figure(1, 2, 'page')
        inside.gap(axes, [5, 10], np.full((2, 3), 0.1), np.array(['bottom', 'top', 'proj']), [0.9, 0.95])
        assert_nothing_is_cut(figure)


def test_panels_drawn_one_after_another_share_a_legend():
    """For a figure of one's own: as high as its panels and one legend, in whatever order they come."""
    x = np.arange(3.0)
    first, second = (curves.Curve(name, x, x, x) for name in ('SemiSFL', 'FedAvg'))
    with style.context():
        figure, axes = style.figure(1, 2, 'page')
        curves.score(axes[0], [first])
        alone = figure.get_figheight()
        curves.k_s(axes[1], [second, first])
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ['SemiSFL', 'FedAvg']
        assert figure.get_figheight() == pytest.approx(alone, abs=0.02)  # one row, as before
        legends.below(figure)
        assert len(figure.legends) == 1
        assert_nothing_is_cut(figure)
        plain = style.matplotlib().figure.Figure(figsize=(4, 3))  # without a layout that makes room
        curves.score(plain.subplots(), [first, second])
        assert_nothing_is_cut(plain)
