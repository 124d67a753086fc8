"""What figures of several runs draw: a line for each group, with one look in all panels and in the legend."""

import numpy as np
import pytest

from semisfl_jax import runs as runs_lib
from semisfl_jax import tasks
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.plots import collect, curves, draw, style
from tests.helpers.plots_toy import GIB, made_up

NAN = float('nan')
TWO = [
    curves.Curve('SemiSFL', np.array([5.0, 10.0]), np.array([0.5, 0.75]), np.array([0.4, 0.7]), np.array([0.6, 0.8])),
    curves.Curve('FedAvg', np.array([5.0, 10.0, 15.0]), np.array([0.25, 0.5, 1.0]), np.full(3, NAN), np.full(3, NAN)),
]


@pytest.fixture(autouse=True)
def in_style():
    with style.context():
        yield


def figures_of(groups, *names):
    return dict(draw.figures(groups, names))


# --- dense tasks


def dense(seed=0, algorithm='m_fed', miou=(0.25, 0.5), sent=GIB):
    """A made-up run of two rounds with semantic segmentation, its headline, and depth."""
    records = []
    for number, value in enumerate(miou, start=1):
        scores = {'semseg_miou': value, 'semseg_pixelaccuracy': 0.9, 'depth_rmse': value / 2}
        losses = {'semseg_loss': 3 * value, 'depth_loss': value, 'loss_local': 2 * value}
        traffic = {'bytes_up': number * sent, 'bytes_down': number * sent, 'simulated_seconds': 60.0 * number}
        records.append({'round': number, 'k_s': 0, **scores, **losses, **traffic})
    return runs_lib.Run(f'run{seed}', {'algorithm': algorithm}, seed, 'semseg', runs_lib.rows(records), tasks.MIOU)


def test_each_task_has_a_panel_with_its_score():
    groups = {'algorithm=m_fed': {0: dense(), 1: dense(1, miou=(0.35, 0.7))}}
    groups['algorithm=mfed_fl'] = {0: dense(algorithm='mfed_fl', miou=(0.1, 0.2))}
    semseg, depth = figures_of(groups, 'scores')['scores'].axes
    assert [ax.get_title() for ax in (semseg, depth)] == ['Semantic segmentation', 'Depth']
    assert [ax.get_ylabel() for ax in (semseg, depth)] == ['Test mIoU (%)', 'Test RMSE']
    np.testing.assert_allclose([line.get_ydata() for line in semseg.lines], [[30, 60], [10, 20]])
    np.testing.assert_allclose([line.get_ydata() for line in depth.lines], [[0.15, 0.3], [0.05, 0.1]])


def test_scores_beside_accuracy_are_of_the_model_that_judges_a_method():
    groups = {
        'algorithm=semisfl': {0: made_up(0, [0.4, 0.8])},
        'algorithm=fedavg': {0: made_up(0, [0.2, 0.4], 'student')},
    }
    (macro,) = figures_of(groups, 'scores')['scores'].axes
    assert (macro.get_ylabel(), [line.get_ydata().tolist() for line in macro.lines]) == ('Test macro F1 (%)', [[5, 10]])
    by_key = curves.metric('student_macro_f1', groups).axes[0]
    assert by_key.get_ylabel() == 'Student test macro F1 (%)'
    assert [line.get_ydata().tolist() for line in by_key.lines] == [[10, 20], [5, 10]]
    assert curves.metric('k_s', groups).axes[0].get_ylabel() == 'k_s'


def test_losses_are_those_of_tasks_and_their_mean():
    figure = figures_of({'m_fed': {0: dense()}}, 'losses')['losses']
    assert [ax.get_title() for ax in figure.axes] == ['Semantic segmentation', 'Depth', 'Mean over tasks']
    np.testing.assert_allclose([ax.lines[0].get_ydata() for ax in figure.axes], [[0.75, 1.5], [0.25, 0.5], [0.5, 1]])


def test_a_contrastive_loss_that_is_0_throughout_has_no_panel_and_no_line():
    lines = [{'round': n, 'loss_supervised_ce': 1.0, 'loss_supervised_contrastive': 0.0} for n in (1, 2)]
    alone = {0: made_up(0, [0.5, 0.7])._replace(table=runs_lib.rows(lines))}
    assert [ax.get_title() for ax in figures_of({'a': alone}, 'losses')['losses'].axes] == ['Server: cross-entropy']
    louder = [{**line, 'loss_supervised_contrastive': 4.0} for line in lines]
    both = {0: alone[0]._replace(table=runs_lib.rows(louder))}
    drawn = figures_of({'a': alone, 'b': both}, 'losses')['losses'].axes
    assert [len(ax.lines) for ax in drawn] == [2, 1]


def test_the_score_of_a_task_stands_for_the_accuracy():
    drawn = figures_of({'m_fed': {0: dense()}}, 'accuracy_rounds', 'accuracy_gigabytes')
    assert drawn['accuracy_rounds'].axes[0].get_ylabel() == 'Test mIoU (%)'
    np.testing.assert_array_equal(drawn['accuracy_gigabytes'].axes[0].lines[0].get_xdata(), [2, 4])
    mixed = {'algorithm=m_fed': {0: dense()}, 'algorithm=semisfl': {0: made_up(0, [0.5, 0.7])}}
    (error,) = figures_of(mixed, 'accuracy_rounds').values()
    assert isinstance(error, UserError)


def test_who_sends_nothing_is_a_level_against_traffic():
    groups = {'algorithm=m_fed': {0: dense()}, 'algorithm=mfed_local': {0: dense(algorithm='mfed_local', sent=0)}}
    sent, nothing = figures_of(groups, 'accuracy_gigabytes')['accuracy_gigabytes'].axes[0].lines
    assert [sent.get_label(), nothing.get_label()] == ['M-Fed', 'Local']
    np.testing.assert_allclose(points(sent), [[2, 25], [4, 50]])
    np.testing.assert_allclose(points(nothing), [[0, 50], [4, 50]])
    (error,) = figures_of({'mfed_local': groups['algorithm=mfed_local']}, 'accuracy_gigabytes').values()
    assert 'none of the runs sends anything' in str(error)


@pytest.mark.parametrize(
    ('interval', 'low', 'high'),
    [
        ('se', 44.23, 55.77),  # of 40, 50 and 60: a deviation of 10, over sqrt(3): 5.77
        ('ci95', 25.16, 74.84),  # Student's t with two degrees of freedom is 4.303
        ('range', 40.0, 60.0),
    ],
)
def test_a_band_is_what_was_asked_for(interval, low, high):
    groups = {'semisfl': {seed: made_up(seed, [0.1, value]) for seed, value in enumerate((0.4, 0.5, 0.6))}}
    with style.context(interval):
        figure = figures_of(groups, 'accuracy_rounds')['accuracy_rounds']
    assert band(figure.axes[0].collections[0])[3] == pytest.approx((low, high), abs=0.01)
    assert figure.legends[0].get_texts()[-1].get_text() == f'band: {style.INTERVALS[interval]}'


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
        scores = dict.fromkeys((tasks.score_key(task, tasks.smallest(task).score.name) for task in tasks.DENSE), 0.5)
        record = {'round': 1, **scores, **dict.fromkeys(set(losses) - set(lacking), 1.0)}
        run = runs_lib.Run(method, {'data.tasks': list(tasks.DENSE)}, 0, 'teacher', runs_lib.rows([record]))
        groups[f'algorithm={method}'] = {0: run}
    looks = looks_in(figures_of(groups, name)[name])
    assert looks.keys() == {style.group_title(group) for group in groups}
    assert [len(each) for each in looks.values()] == [1] * 3


@pytest.fixture
def drawn():
    """Makes Axes in the style of the package."""
    with style.context():
        yield style.figure


def points(line):
    return np.column_stack(line.get_data()).tolist()


def band(collection):
    """{x: (lowest, highest)} of a band."""
    corners = collection.get_paths()[0].vertices
    return {x: (corners[corners[:, 0] == x, 1].min(), corners[corners[:, 0] == x, 1].max()) for x in set(corners[:, 0])}


def test_accuracy_is_drawn_in_per_cent_with_bands_of_a_standard_error(drawn):
    _, ax = drawn()
    curves.score(ax, TWO, 'gigabytes')
    assert [points(line) for line in ax.lines] == [[[5, 50], [10, 75]], [[5, 25], [10, 50], [15, 100]]]
    (only,) = ax.collections  # one seed has no band
    assert ax.get_legend_handles_labels()[1][-1] == 'band: ± standard error'
    assert band(only) == {5.0: pytest.approx((40, 60)), 10.0: pytest.approx((70, 80))}
    assert (ax.get_xlabel(), ax.get_ylabel()) == ('Traffic (GiB)', 'Test accuracy (%)')


def test_pseudo_labels_show_what_is_confident_and_what_is_wrong(drawn, monkeypatch):
    right = TWO[0]._replace(mean=np.array([0.9, 0.95]), low=np.array([0.89, 0.93]), high=np.array([0.91, 0.97]))
    monkeypatch.setattr(collect, 'curves', lambda groups, key: [TWO[0]] if key == 'mask_rate' else [right])
    axes = draw.FIGURES['pseudo_labels'].draw({}).axes
    assert points(axes[0].lines[0]) == [[5, 50], [10, 75]]
    np.testing.assert_allclose(points(axes[1].lines[0]), [[5, 10], [10, 5]])
    assert band(axes[1].collections[0]) == {5.0: pytest.approx((9, 11)), 10.0: pytest.approx((3, 7))}
