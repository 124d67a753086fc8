"""The data that the figures of a study draw."""

import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.plots import curves, style
from semisfl_jax.studies import collect, engine, figures
from tests import studies_toy

NAMES = ('SemiSFL', 'FedSwitch')
STUDY = studies_toy.study()


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('study')
    engine.run(STUDY, {}, str(folder / 'root'), studies_toy.launcher(folder))
    return folder / 'root'


def test_points_draw_means_errors_and_the_paper():
    with style.context():
        _, ax = style.figure()
        ours = {
            'x': (np.array([1.0, 2.0]), np.array([0.5, np.nan])),
            'y': (np.array([3.0, np.nan]), np.array([0.25, np.nan])),
        }
        curves.table(ax, ['a', 'b'], ours, {'x': np.array([4.0, np.nan])}, 'unit')
    (first, _, bars), (second, _, _), _ = (container.lines for container in ax.containers)
    np.testing.assert_allclose(first.get_ydata(), [1.0, 2.0])
    np.testing.assert_allclose(second.get_ydata(), [3.0, np.nan])
    segments = bars[0].get_segments()
    np.testing.assert_allclose(segments[0][:, 1], [0.5, 1.5])
    np.testing.assert_allclose(segments[1][:, 1], [2.0, 2.0])  # one seed, no error
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == 'none' and len(line.get_ydata())]
    np.testing.assert_allclose(hollow[0].get_ydata(), [4.0, np.nan])
    assert hollow[0].get_color() == first.get_color() != second.get_color()
    assert first.get_xdata()[0] < hollow[0].get_xdata()[0] < second.get_xdata()[0] < first.get_xdata()[1]


def test_figures_of_a_study(root):
    drawn = list(figures.draw(STUDY, collect.find(STUDY, root, {})))
    assert [figure.name for figure in drawn] == [
        *('1-values', '1-accuracy_rounds-Dir-1', '1-accuracy_rounds-Dir-0.5'),
        *('2-values', '3-values'),
    ]
    assert all(figure.caption.endswith('Made up.') for figure in drawn)
    # Accuracies are of the same data as the paper's, its minutes are not
    assert ['the paper' in figure.caption for figure in drawn if 'values' in figure.name] == [True, False, False]


def test_values_are_those_of_the_runs_beside_the_paper(root, monkeypatch):
    calls = []
    monkeypatch.setattr(curves, 'table', lambda *arguments: calls.append(arguments))
    list(figures.draw(STUDY, collect.find(STUDY, root, {})))
    _, columns, ours, paper, unit = calls[0]
    assert columns == ['Dir(1)', 'Dir(0.5)']
    np.testing.assert_allclose(ours['SemiSFL'][0], [92.0, 80.0])  # means of studies_toy.ACCURACY
    np.testing.assert_allclose(ours['SemiSFL'][1], [2.0 / 3**0.5, 0.0], atol=1e-9)  # 90, 92, 94 and 80, 80, 80
    np.testing.assert_allclose(paper['FedSwitch'], [85.5, 85.5])
    assert unit == 'Test accuracy after the last round (%)'

    assert np.isnan(calls[1][3]['SemiSFL']).all()  # minutes: the paper's are of CIFAR-10


def test_a_panel_has_means_of_successive_evaluations():
    numbers = np.arange(5.0)
    curve = curves.Curve('a', numbers, 10 * numbers, np.array([1.0, 3.0, 2.0, 2.0, 5.0]))
    found = curves.binned(curve, 3)  # pairs, and what is left
    np.testing.assert_allclose(found.x, [0.5, 2.5, 4.0])
    np.testing.assert_allclose(found.mean, [5.0, 25.0, 40.0])
    np.testing.assert_allclose(found.error, [2.0, 2.0, 5.0])
    np.testing.assert_allclose(curves.binned(curve, 5).mean, curve.mean)


def test_a_method_without_traffic_is_a_level_beside_the_others(root):
    """The panels of rounds, bytes and minutes; costs are taken from one of two made-up methods."""
    found = collect.find(STUDY, root, {})
    table = STUDY.tables[0]
    groups = {row: found[table.title, row, 'Dir(1)'].runs for row in NAMES}
    for run in groups['FedSwitch'].values():
        for record in run.records:
            record.update(bytes_up=0, bytes_down=0, simulated_seconds=0.0)
    with style.context():
        figure, means = figures._prices(groups, style.looks(list(NAMES)))
    axes = figure.axes
    assert not means  # four evaluations
    assert [ax.get_xlabel() for ax in axes] == ['Round', 'Traffic (GiB)', 'Simulated time (min)']
    assert [len(ax.lines) for ax in axes] == [2, 2, 2]
    for ax in axes[1:]:
        moving, level = ax.lines
        assert len(moving.get_xdata()) == 4
        np.testing.assert_allclose(level.get_ydata(), (88 + 91 + 90) / 3)
    np.testing.assert_allclose(axes[1].lines[0].get_xdata(), [2, 4, 6, 8])  # GiB: one up and one down in a round


@pytest.mark.parametrize(
    ('mean', 'error', 'limits'),
    [  # 80 to 90 % and 40 to 90 %, and a twentieth of that on either side
        ([0.1, 0.2, *np.linspace(0.8, 0.9, 18)], np.full(20, np.nan), (79.5, 90.5)),  # without the first tenth
        ([0.5, 0.7], np.array([0.1, 0.2]), (37.5, 92.5)),  # with the bands
    ],
)
def test_an_axis_of_scores(mean, error, limits):
    rounds = np.arange(float(len(mean)))
    shown = [
        curves.Curve('a', rounds, np.array(mean), error),
        curves.Curve('b', rounds, np.full_like(error, np.nan), error),
    ]
    with style.context():
        _, ax = style.figure()
        figures._begin_late([ax], shown, tasks.Score('accuracy', 'accuracy'))
    np.testing.assert_allclose(ax.get_ylim(), limits)
