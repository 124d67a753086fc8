"""What figures of several runs draw: a line for each group, with one look in all panels and in the legend."""

import re

import numpy as np
import pytest

from configs.studies import paper
from semisfl_jax import algorithms, tasks
from semisfl_jax import runs as runs_lib
from semisfl_jax.core.errors import UserError
from semisfl_jax.plots import collect, curves, draw, style
from tests import runs
from tests.plots_toy import GIB, made_up


@pytest.fixture(autouse=True)
def in_style():
    with style.context():
        yield


def figures_of(groups, *names):
    return dict(draw.figures(groups, names))


def test_a_curve_is_the_mean_over_seeds_with_its_error():
    members = {0: made_up(0, [0.5, 0.7]), 1: made_up(1, [0.6, 0.9], up=(GIB, 4 * GIB, 5 * GIB))}
    curve = collect.curve('semisfl', members, 'score')
    assert (curve.label, curve.x.tolist()) == ('SemiSFL', [2, 3])
    np.testing.assert_allclose(curve.mean, [0.55, 0.8])
    # standard deviation of two values: their difference over sqrt(2); over sqrt(2) again
    np.testing.assert_allclose(curve.error, [0.05, 0.1])
    traffic = collect.curve('semisfl', members, 'score', 'gigabytes')
    np.testing.assert_allclose(traffic.x, [5, 7])  # means of 2 + 2 and 4 + 2, of 3 + 3 and 5 + 3
    np.testing.assert_allclose(collect.curve('semisfl', members, 'score', 'minutes').x, [1, 1.5])
    assert np.isnan(collect.curve('semisfl', {0: members[0]}, 'score').error).all()


def test_a_long_label_is_a_name_that_a_file_can_have():
    names = {draw.slug(f'algorithm=semisfl, {"k_s=20, " * 50}k_u={k_u}') for k_u in (1, 2)}
    assert len(names) == 2
    assert max(map(len, names)) < 200


def test_what_is_missing_is_named():
    plain = made_up(0, [0.5, 0.7])
    bare = plain._replace(records=[{'round': 1, 'teacher_accuracy': 0.5}])
    with pytest.raises(UserError, match=r'run0/metrics\.jsonl.*bytes_up.*bytes_down'):
        collect.curve('semisfl', {0: bare}, 'score', 'gigabytes')
    with pytest.raises(UserError, match='mask_rate'):
        collect.curves({'semisfl': {0: plain}}, 'mask_rate')
    groups = {'a': {0: plain}, 'b': {0: bare}}
    assert [curve.label for curve in collect.curves(groups, 'score', 'minutes')] == ['a']
    assert list(collect.each(groups, {'a': 'loss_consistency', 'b': 'loss_fix'})) == ['a']


# --- dense tasks


def dense(seed=0, algorithm='m_fed', miou=(0.25, 0.5), sent=GIB):
    """A made-up run of two rounds with semantic segmentation, its headline, and depth."""
    records = []
    for number, value in enumerate(miou, start=1):
        scores = {'semseg_miou': value, 'semseg_pixelaccuracy': 0.9, 'depth_rmse': value / 2}
        losses = {'semseg_loss': 3 * value, 'depth_loss': value, 'loss_local': 2 * value}
        traffic = {'bytes_up': number * sent, 'bytes_down': number * sent, 'simulated_seconds': 60.0 * number}
        records.append({'round': number, 'k_s': 0, **scores, **losses, **traffic})
    return runs_lib.Run(f'run{seed}', {'algorithm': algorithm}, seed, 'semseg', records, tasks.MIOU)


def test_each_task_has_a_panel_with_its_score():
    groups = {'algorithm=m_fed': {0: dense(), 1: dense(1, miou=(0.35, 0.7))}}
    groups['algorithm=mfed_fl'] = {0: dense(algorithm='mfed_fl', miou=(0.1, 0.2))}
    semseg, depth = figures_of(groups, 'scores')['scores'].axes
    assert [ax.get_title() for ax in (semseg, depth)] == ['Semantic segmentation', 'Depth']
    assert [ax.get_ylabel() for ax in (semseg, depth)] == ['Test mIoU (%)', 'Test RMSE']
    np.testing.assert_allclose([line.get_ydata() for line in semseg.lines], [[30, 60], [10, 20]])
    np.testing.assert_allclose([line.get_ydata() for line in depth.lines], [[0.15, 0.3], [0.05, 0.1]])


def test_losses_are_those_of_tasks_and_their_mean():
    figure = figures_of({'m_fed': {0: dense()}}, 'losses')['losses']
    assert [ax.get_title() for ax in figure.axes] == ['Semantic segmentation', 'Depth', 'Mean over tasks']
    np.testing.assert_allclose([ax.lines[0].get_ydata() for ax in figure.axes], [[0.75, 1.5], [0.25, 0.5], [0.5, 1]])


def test_a_contrastive_loss_that_is_0_throughout_has_no_panel_and_no_line():
    lines = [{'round': n, 'loss_supervised_ce': 1.0, 'loss_supervised_contrastive': 0.0} for n in (1, 2)]
    alone = {0: made_up(0, [0.5, 0.7])._replace(records=lines)}
    assert [ax.get_title() for ax in figures_of({'a': alone}, 'losses')['losses'].axes] == ['Server: cross-entropy']
    both = {0: alone[0]._replace(records=[{**line, 'loss_supervised_contrastive': 4.0} for line in lines])}
    drawn = figures_of({'a': alone, 'b': both}, 'losses')['losses'].axes
    assert [len(ax.lines) for ax in drawn] == [2, 1]


def test_the_score_of_a_task_stands_for_the_accuracy():
    drawn = figures_of({'m_fed': {0: dense()}}, 'accuracy_rounds', 'accuracy_gigabytes')
    assert drawn['accuracy_rounds'].axes[0].get_ylabel() == 'Test mIoU (%)'
    np.testing.assert_array_equal(drawn['accuracy_gigabytes'].axes[0].lines[0].get_xdata(), [2, 4])
    mixed = {'algorithm=m_fed': {0: dense()}, 'algorithm=semisfl': {0: made_up(0, [0.5, 0.7])}}
    (error,) = figures_of(mixed, 'accuracy_rounds').values()
    assert isinstance(error, UserError)


def test_who_sends_nothing_has_no_line_against_traffic():
    groups = {'algorithm=m_fed': {0: dense()}, 'algorithm=mfed_local': {0: dense(algorithm='mfed_local', sent=0)}}
    drawn = figures_of(groups, 'accuracy_rounds', 'accuracy_gigabytes')
    assert [line.get_label() for line in drawn['accuracy_rounds'].axes[0].lines] == ['M-Fed', 'Local']
    assert [line.get_label() for line in drawn['accuracy_gigabytes'].axes[0].lines] == ['M-Fed']
    (error,) = figures_of({'mfed_local': groups['algorithm=mfed_local']}, 'accuracy_gigabytes').values()
    assert 'run0' in str(error)


def test_what_does_not_apply_is_not_drawn():
    of_dense = figures_of({'m_fed': {0: dense()}}, 'k_s', 'confusion', 'classes', 'clients', 'mask_history', 'gap')
    of_classes = figures_of({'semisfl': {0: made_up(0, [0.5, 0.7])}}, 'scores', 'predictions')
    for name, error in {**of_dense, **of_classes}.items():
        assert ('k_s=0' if name == 'k_s' else 'dense tasks') in str(error)


# --- looks


def looks_in(figure):
    """Label -> looks, in all panels and in the legend."""
    (legend,) = figure.legends
    found = {text.get_text(): set() for text in legend.get_texts()}
    panels = [(line.get_label(), line) for ax in figure.axes for line in ax.lines]
    for label, line in (*zip(found, legend.get_lines(), strict=True), *panels):
        found[label].add((line.get_color(), line.get_marker(), str(line._unscaled_dash_pattern)))
    return found


@pytest.mark.parametrize('name', ['losses', 'scores'])
def test_a_group_has_one_look_in_all_panels_and_in_the_legend(name):
    """FedAvg has no loss of the server here: once it was blue in the panels without that, and pink in the legend."""
    groups, losses = {}, tuple(curves.LOSS_LABELS)
    for method, lacking in {'semisfl': (), 'fedavg': losses[:2], 'supervised_only': losses[2:]}.items():
        scores = dict.fromkeys((tasks.score_key(task, tasks.score(task).name) for task in tasks.DENSE), 0.5)
        record = {'round': 1, **scores, **dict.fromkeys(set(losses) - set(lacking), 1.0)}
        run = runs_lib.Run(method, {'data.tasks': list(tasks.DENSE)}, 0, 'teacher', [record])
        groups[f'algorithm={method}'] = {0: run}
    looks = looks_in(figures_of(groups, name)[name])
    assert looks.keys() == {style.group_title(group) for group in groups}
    assert [len(each) for each in looks.values()] == [1] * 3


def test_groups_and_methods_differ_in_look():
    """Rows of studies are methods by their titles; groups of one method share its color."""
    looks = style.method_looks()
    assert {name: looks[method].title for name, method in paper.METHODS.items()} == {
        name: name for name in paper.METHODS
    }
    for dense_ in (False, True):
        methods = [look for name, look in looks.items() if algorithms.get(name).dense == dense_]
        assert len({look.color for look in methods}) == len({look.marker for look in methods}) == len(methods)
    every = style.looks([method.label for method in algorithms.METHODS.values()])
    assert len({look[1:] for look in every.values()}) == len(every) == len(algorithms.METHODS)
    made = style.looks([f'SemiSFL, federation.alpha={alpha}' for alpha in range(12)] + ['SemiFL, x=1', 'SemiFL, x=2'])
    assert made['SemiSFL, federation.alpha=0'][1:] == looks['semisfl'][1:]
    assert len({look.color for look in made.values()}) == 2
    assert len({(look.marker, look.dash) for look in made.values()}) == 14


def test_a_figure_of_the_user_is_registered(monkeypatch):
    monkeypatch.setattr(draw, 'FIGURES', dict(draw.FIGURES))
    draw.of_run('mine', 'text')(lambda run: f'of {run.seed}')
    groups = {'algorithm=a': {seed: made_up(seed, [0.5]) for seed in (1, 0)}}
    assert list(draw.figures(groups, ['mine'])) == [('mine', 'of 0')]
    groups['algorithm=b'] = {2: made_up(2, [0.5])}
    assert list(draw.figures(groups, ['mine'])) == [('mine-a', 'of 0'), ('mine-b', 'of 2')]


def test_matplotlib_is_imported_only_when_a_figure_is_made():
    for path in (runs.ROOT / 'semisfl_jax/plots').glob('*.py'):
        assert not re.search(r'^(import|from) (matplotlib|sklearn)', path.read_text(), re.MULTILINE), path
