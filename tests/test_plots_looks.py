"""Every method has one look in all figures, distinguishable without color vision, and legends name all groups."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from configs.studies import paper
from semisfl_jax import algorithms, tasks
from semisfl_jax import runs as runs_lib
from semisfl_jax.plots import curves, draw, style

ROUNDS = 12
LOSSES = tuple(curves.LOSS_LABELS)
OF_GROUPS = [name for name, entry in draw.FIGURES.items() if not entry.of_run]


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


def test_a_method_has_one_color_in_all_panels_and_in_the_legend():
    """FedAvg has no loss of the server here: once it was blue in the panels without that, and pink in the legend."""
    names = ('semisfl', 'fedavg', 'fedswitch', 'supervised_only')
    lacking = {'algorithm=fedavg': LOSSES[:2], 'algorithm=supervised_only': LOSSES[2:]}
    made = looks_in(figure_of('losses', groups(*(f'algorithm={name}' for name in names), **lacking)))
    assert {name: look[0] for name, look in made.items()} == {
        'SemiSFL': '#0072B2',
        'Supervised-only': '#000000',
        'FedAvg': '#56B4E9',
        'FedSwitch': '#009E73',
    }


@pytest.mark.parametrize('name', OF_GROUPS)
def test_a_method_looks_the_same_in_every_figure(name):
    made = looks_in(figure_of(name, groups(*(f'algorithm={method}' for method in style.method_looks()))))
    assert {title: appearance[:2] for title, appearance in made.items()} == {
        look.title: (look.color, look.marker) for look in style.method_looks().values()
    }
    assert looks_in(figure_of(name, groups('algorithm=splitfed'))).items() <= made.items()


def test_rows_of_studies_are_methods_by_their_titles():
    assert {name: style.method_looks()[method].title for name, method in paper.METHODS.items()} == {
        name: name for name in paper.METHODS
    }


def methods_of(kind):
    """The looks of methods of one kind: those of the other are judged by other scores, and in no figure with them."""
    return [look for name, look in style.method_looks().items() if algorithms.get(name).dense == (kind == 'dense')]


@pytest.mark.parametrize('kind', ['classification', 'dense'])
def test_methods_differ_in_color_and_in_gray(kind):
    methods = methods_of(kind)
    assert len({look.color for look in methods}) == len({look.marker for look in methods}) == len(methods)
    others = list(style.looks([f'x={number}' for number in range(12)]).values())
    everything = [*methods, *others]
    assert len({(look.marker, look.dash) for look in everything}) == len(everything)
    assert not {look.color for look in methods} & {look.color for look in others}


def test_groups_of_one_method_share_its_color_and_differ_in_dash_and_marker():
    made = style.looks([f'SemiSFL, federation.alpha={alpha}' for alpha in range(12)] + ['SemiFL, x=1', 'SemiFL, x=2'])
    assert made['SemiSFL, federation.alpha=0'][1:] == style.method_looks()['semisfl'][1:]
    assert len({look.color for look in made.values()}) == 2
    assert len({(look.marker, look.dash) for look in made.values()}) == 14
    mixed = style.looks(['mean_teacher', 'SemiSFL', 'alpha = 2', 'alpha = 2, code'])
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
    [*([look.color for look in methods_of(kind)] for kind in ('classification', 'dense')), style.CYCLE],
    ids=['classification', 'dense', 'others'],
)
def test_colors_are_told_apart_without_color_vision(colors, eyes):
    """A difference of 2.3 can just be seen in patches side by side; lines need several times that."""
    seen = [lab(color, EYES[eyes]) for color in colors]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15
    assert all(perceived[0] < 75 for perceived in seen)  # dark enough for white paper


LONG = tuple(
    f'algorithm={method}, augment.supervised=strong, data.num_labeled={labels}, federation.alpha=0.05, k_s_rule=paper'
    for method in ('semisfl', 'fedswitch_sl', 'supervised_only', 'a_method_from_outside')
    for labels in (250, 1000, 4000)
)


@pytest.mark.parametrize('name', ['accuracy_rounds', 'losses'])
def test_long_legends_fit_and_panels_have_their_height(name):
    heights = []
    for names in (LONG[:1], LONG):
        figure = figure_of(name, groups(*names))
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert len(legend.get_texts()) == len(names)
        box = legend.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        heights.append(figure.axes[0].bbox.height)
    assert heights[1] == pytest.approx(heights[0], rel=0.15)


def test_panels_drawn_one_after_another_share_a_legend():
    x = np.arange(3.0)
    first, second = (curves.Curve(name, x, x, x) for name in ('SemiSFL', 'FedAvg'))
    with style.context():
        figure, axes = style.figure(1, 2, 'page')
        curves.score(axes[0], [first])
        alone = figure.get_figheight()
        curves.k_s(axes[1], [second, first])
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ['SemiSFL', 'FedAvg']
        assert figure.get_figheight() == pytest.approx(alone, abs=0.02)  # one row, as before
        style.legend(figure)
        assert len(figure.legends) == 1
