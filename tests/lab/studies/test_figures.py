"""The figures of a study whose runs are made up."""

import dataclasses

import numpy as np
import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.plots import curves, style
from semisfl_jax.lab.studies import engine, figures
from tests.helpers import studies_toy

STUDY = studies_toy.study()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp('study')
    return engine.run(STUDY, {}, str(home / 'root'), studies_toy.launcher(home))


@pytest.fixture(scope='module')
def results(folder):
    return studies_toy.results(STUDY, folder.parent)


def test_points_draw_means_errors_and_the_paper():
    with style.context():
        _, ax = style.figure()
        nothing = [np.nan] * 2
        rows = {
            'x': np.array([[1, 2], [0.5, np.nan], [4, np.nan]]),
            'y': np.array([[3, np.nan], [0.25, np.nan], nothing]),
        }
        curves.table(ax, ['a', 'b'], rows, 'unit')
    (first, _, bars), (second, _, _), *_ = (container.lines for container in ax.containers)
    assert ax.get_legend_handles_labels()[1][2:] == ['paper (hollow)', 'bar: ± standard error']
    np.testing.assert_allclose(first.get_ydata(), [1.0, 2.0])
    np.testing.assert_allclose(second.get_ydata(), [3.0, np.nan])
    segments = bars[0].get_segments()
    np.testing.assert_allclose(segments[0][:, 1], [0.5, 1.5])
    np.testing.assert_allclose(segments[1][:, 1], [2.0, 2.0])  # one seed, no error
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == 'none' and len(line.get_ydata())]
    np.testing.assert_allclose(hollow[0].get_ydata(), [4.0, np.nan])


def test_values_are_those_of_the_runs_beside_the_paper(results, monkeypatch):
    calls = []
    monkeypatch.setattr(curves, 'table', lambda *arguments: calls.append(arguments))
    drawn = list(figures.draw(STUDY, results))
    assert [figure.name for figure in drawn] == [
        *('1-values', '1-accuracy_rounds-Dir-1', '1-accuracy_rounds-Dir-0.5'),
        *('2-values', '3-values'),
    ]
    _, columns, rows, unit = calls[0]
    assert columns == ['Dir(1)', 'Dir(0.5)']
    mean, error, _ = rows['SemiSFL']
    np.testing.assert_allclose(mean, [92.0, 80.0])  # of studies_toy.ACCURACY
    np.testing.assert_allclose(error, [2.0 / 3**0.5, 0.0], atol=1e-9)  # 90, 92, 94 and 80, 80, 80
    np.testing.assert_allclose(rows['FedSwitch'][2], [85.5, 85.5])
    assert unit == 'Test accuracy after the last round (%)'
    assert np.isnan(calls[1][2]['SemiSFL'][2]).all()  # minutes: the paper's are of CIFAR-10


def test_a_row_may_have_the_name_of_a_method(results):
    table, lower = (
        STUDY.tables[0],
        {(title, row.lower(), column): found for (title, row, column), found in results.items()},
    )
    cells = tuple(dataclasses.replace(cell, row=cell.row.lower()) for cell in table.cells)
    with style.context():
        drawn = figures.FIGURES['accuracy_rounds'].draw(dataclasses.replace(table, cells=cells), lower)
        for _, _, figure in drawn:
            assert {line.get_label() for line in figure.axes[0].lines} == {'SemiSFL', 'FedSwitch'}


@pytest.mark.parametrize(
    ('name', 'x', 'y'),
    [  # two times a GiB and a minute a round (studies_toy); 90, 92 and 94 % deviate by 2 points
        ('accuracy_gigabytes', [2, 4, 6, 8], [62, 72, 82, 92]),
        ('accuracy_minutes', [1, 2, 3, 4], [62, 72, 82, 92]),
        ('k_s', [1, 2, 3, 4], [8] * 4),
        ('spread_rounds', [1, 2, 3, 4], [(8 / 3) ** 0.5] * 4),
    ],
)
def test_a_figure_shows_what_its_name_says(results, name, x, y):
    table = dataclasses.replace(STUDY.tables[0], cells=STUDY.tables[0].cells[:1])  # SemiSFL, Dir(1)
    with style.context():
        ((_, _, drawing),) = figures.FIGURES[name].draw(table, results)
        line = drawing.axes[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(), x)
    np.testing.assert_allclose(line.get_ydata(), y)


def test_a_figure_of_ones_own_is_one_of_every_column_that_has_its_data(results, monkeypatch):
    """It is given all rows, and drawn once for columns that read the same runs."""
    seen = []

    def draw(groups, kind):
        seen.append((kind, {row: sorted(runs) for row, runs in groups.items()}))
        if len(seen) > 1:
            raise UserError('no run has it')
        return style.figure()[0], ', mine'

    monkeypatch.setitem(figures.FIGURES, 'mine', figures.Entry('A', figures.by_column(draw)))
    again = dataclasses.replace(STUDY.tables[0].cells[0], column='again')  # as SemiSFL, Dir(1)
    table = dataclasses.replace(STUDY.tables[0], cells=(STUDY.tables[0].cells[0], again, *STUDY.tables[0].cells[2:]))
    tables = (dataclasses.replace(table, figures=('mine',)),)
    cells = results | {('Accuracies', 'SemiSFL', 'again'): results['Accuracies', 'SemiSFL', 'Dir(1)']}
    (drawn,) = figures.draw(dataclasses.replace(STUDY, tables=tables), cells)
    assert (drawn.name, drawn.part, drawn.caption) == ('1-mine-Dir-1', 'Accuracies', 'A, Dir(1), mine. Made up.')
    assert seen == [
        ('accuracy', {'SemiSFL': [0, 1, 2], 'FedSwitch': []}),
        ('accuracy', {'SemiSFL': [0, 1, 2], 'FedSwitch': [0, 1, 2]}),  # Dir(0.5)
    ]


def test_a_panel_has_means_of_successive_evaluations():
    numbers = np.arange(5.0)
    curve = curves.Curve(
        'a', numbers, 10 * numbers, *(10 * numbers + sign * np.array([1.0, 3.0, 2.0, 2.0, 5.0]) for sign in (-1, 1))
    )
    found = curves.binned(curve, 3)  # pairs, and what is left
    np.testing.assert_allclose(found.x, [0.5, 2.5, 4.0])
    np.testing.assert_allclose(found.mean, [5.0, 25.0, 40.0])
    np.testing.assert_allclose(found.high - found.mean, [2.0, 2.0, 5.0])
    np.testing.assert_allclose(found.mean - found.low, [2.0, 2.0, 5.0])
    np.testing.assert_allclose(curves.binned(curve, 5).mean, curve.mean)


def test_a_method_without_traffic_is_a_level_beside_the_others(folder):
    """The panels of rounds, bytes and minutes; costs are taken from one of two made-up methods."""
    found = studies_toy.results(STUDY, folder.parent)
    groups = {row: found['Accuracies', row, 'Dir(1)'].runs for row in ('SemiSFL', 'FedSwitch')}
    for run in groups['FedSwitch'].values():
        costs = run.table['key'].isin(['bytes_up', 'bytes_down', 'simulated_seconds'])
        run.table.loc[costs, 'value'] = 0.0
    with style.context():
        figure, _ = figures._prices(groups, '')
    assert [ax.get_xlabel() for ax in figure.axes] == ['Round', 'Traffic (GiB)', 'Simulated time (min)']
    assert [len(ax.lines) for ax in figure.axes] == [2, 2, 2]
    for ax in figure.axes[1:]:
        moving, level = ax.lines
        assert len(moving.get_xdata()) == 4
        np.testing.assert_allclose(level.get_ydata(), (88 + 91 + 90) / 3)
    np.testing.assert_allclose(figure.axes[1].lines[0].get_xdata(), [2, 4, 6, 8])  # GiB: one up and one down in a round
