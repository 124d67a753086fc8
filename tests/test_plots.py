"""Every plot function draws the data it was given, with expected numbers from arithmetic by hand."""

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from semisfl_jax import plots
from semisfl_jax.plots import collect, curves, draw, inside, style
from semisfl_jax.training import diagnostics
from tests.plots_toy import made_up

NAN = float('nan')
TWO = [
    curves.Curve('SemiSFL', np.array([5.0, 10.0]), np.array([0.5, 0.75]), np.array([0.1, 0.05])),
    curves.Curve('FedAvg', np.array([5.0, 10.0, 15.0]), np.array([0.25, 0.5, 1.0]), np.full(3, NAN)),
]


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


def heights(bars):
    return [bar.get_height() for bar in bars]


def test_accuracy_is_drawn_in_per_cent_with_bands_of_a_standard_error(drawn):
    _, ax = drawn()
    curves.score(ax, TWO, 'gigabytes')
    assert [points(line) for line in ax.lines] == [[[5, 50], [10, 75]], [[5, 25], [10, 50], [15, 100]]]
    (only,) = ax.collections  # one seed has no band
    assert band(only) == {5.0: pytest.approx((40, 60)), 10.0: pytest.approx((70, 80))}
    assert (ax.get_xlabel(), ax.get_ylabel()) == ('Traffic (GiB)', 'Test accuracy (%)')


def test_k_s_holds_until_the_next_round(drawn):
    _, ax = drawn()
    curves.k_s(ax, [curves.Curve('SemiSFL', np.array([1.0, 2.0, 3.0]), np.array([20.0, 20.0, 13.0]), np.full(3, NAN))])
    (line,) = ax.lines
    assert points(line) == [[1, 20], [2, 20], [3, 13]]
    assert line.get_drawstyle() == 'steps-post'
    assert ax.get_ylim()[0] == 0


def test_pseudo_labels_show_what_is_confident_and_what_is_wrong(drawn, monkeypatch):
    right = TWO[0]._replace(mean=np.array([0.9, 0.95]), error=np.array([0.01, 0.02]))
    monkeypatch.setattr(collect, 'curves', lambda groups, key: [TWO[0]] if key == 'mask_rate' else [right])
    axes = draw.FIGURES['pseudo_labels'].draw({}).axes
    assert points(axes[0].lines[0]) == [[5, 50], [10, 75]]
    np.testing.assert_allclose(points(axes[1].lines[0]), [[5, 10], [10, 5]])
    assert band(axes[1].collections[0]) == {5.0: pytest.approx((9, 11)), 10.0: pytest.approx((3, 7))}


def test_the_partition_has_a_bubble_where_there_are_images(drawn):
    _, ax = drawn()
    inside.partition(ax, np.array([[4, 0, 1], [0, 16, 0]]))
    (bubbles,) = ax.collections
    assert bubbles.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1]]  # client, class
    sizes = bubbles.get_sizes()
    np.testing.assert_allclose(sizes / sizes.max(), [4 / 16, 1 / 16, 1])


@pytest.mark.parametrize(('clients', 'shape'), [(15, (1, 2)), (16, (2, 1))])
def test_labeled_images_have_a_panel(drawn, monkeypatch, clients, shape):
    """Next to the unlabeled ones, or below them."""
    unlabeled, labeled = np.full((clients, 2), 7), np.eye(clients, 2, dtype=int) * 3
    monkeypatch.setattr(collect, 'holdings', lambda folder: np.stack([unlabeled, labeled]))
    figure = draw.FIGURES['partition'].draw(SimpleNamespace(folder=None))
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == shape
    assert figure.axes[1].collections[0].get_offsets().tolist() == [[0, 0], [1, 1]]  # client, class
    monkeypatch.setattr(collect, 'holdings', lambda folder: np.stack([unlabeled, 0 * labeled]))
    assert len(draw.FIGURES['partition'].draw(SimpleNamespace(folder=None)).axes) == 1


def test_confusion_is_a_share_of_the_true_class(drawn):
    _, ax = drawn()
    # class 0: 3 of 4 right; class 1 has no confident label; class 2: 1 of 2; the last row is of unknown classes
    inside.confusion(ax, np.array([[3, 1, 0], [0, 0, 0], [1, 0, 1], [7, 7, 7]]))
    shares = np.ma.filled(ax.images[0].get_array(), NAN)
    np.testing.assert_array_equal(shares, [[75, 25, 0], [NAN, NAN, NAN], [50, 0, 50]])
    texts = [(*text.get_position(), text.get_text()) for text in ax.texts]
    assert texts == [(0, 0, '75'), (1, 0, '25'), (0, 2, '50'), (2, 2, '50')]


def test_rates_are_pairs_of_points(drawn):
    _, ax = drawn()
    inside.rates(ax, diagnostics.Rates(np.array([0.5, 0.0]), np.array([0.75, NAN])), 'Client')
    confident, right = ax.lines
    np.testing.assert_allclose(points(confident), [[0, 50], [1, 0]])
    np.testing.assert_array_equal(points(right), [[0, 75], [1, NAN]])


@pytest.mark.parametrize(('rounds', 'edges'), [([10, 20, 40], [5, 15, 30, 50]), ([4], [3.5, 4, 4.5])])
def test_the_history_of_masks(drawn, rounds, edges):
    """Pixels end half way between the rounds."""
    _, ax = drawn()
    mask = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])[: len(rounds)]
    inside.mask_history(ax, rounds, mask)
    (shades,) = ax.collections
    values = np.reshape(shades.get_array(), (2, -1))
    np.testing.assert_allclose(values[:, :: values.shape[1] // len(rounds)], 100 * mask.T)
    assert shades.get_coordinates()[0, :, 0].tolist() == edges
    assert shades.get_coordinates()[:, 0, 1].tolist() == [-0.5, 0.5, 1.5]


def test_the_queue_is_stacked_by_what_is_known_of_its_labels(drawn):
    unsure = [[1, 0], [0, 2], [0, 1]]
    sure = [[5, 1], [2, 6], [0, 3]]  # rows: true class 0, 1, unknown; columns: label
    _, ax = drawn()
    inside.queue(ax, np.array([unsure, sure]), 9, 'unlabeled')
    bars_by_label = {bars.get_label(): (heights(bars), [bar.get_y() for bar in bars]) for bars in ax.containers}
    assert bars_by_label == {
        'right': ([5, 6], [0, 0]),
        'wrong': ([2, 1], [5, 6]),
        'class unknown': ([0, 3], [7, 7]),
        'not confident': ([1, 3], [7, 10]),
    }
    assert '21 of 30' in ax.get_title()


def test_the_gap(drawn, monkeypatch):
    pieces, norm = np.array(['bottom', 'top', 'proj']), np.array([10.0, 1, 0])
    history = [
        {'round': number, 'pieces': pieces, 'norm': norm, 'distance': np.array(distance), 'agreement': np.array(equal)}
        for number, distance, equal in ((5, [1, 0.2, 0], [[9, 1], [0, 0]]), (10, [3, 0.4, 0], [[90, 0], [5, 5]]))
    ]
    monkeypatch.setattr(collect, 'history', lambda folder, last: history)
    left, right = draw.FIGURES['gap'].draw(SimpleNamespace(folder=None, headline='teacher')).axes
    assert [points(line) for line in left.lines] == [[[5, 0.1], [10, 0.3]], [[5, 0.2], [10, 0.4]]]
    assert points(right.lines[0]) == [[5, 90], [10, 95]]


def test_points_of_feature_space_stand_by_class(drawn):
    _, ax = drawn()
    where = np.array([[0, 0], [2, 1], [4, 8], [10, 10]])
    inside.feature_space(ax, where, np.array([3, 3, 3, 1]))
    one, three = ax.collections
    assert one.get_offsets().tolist() == [[10, 10]]
    assert three.get_offsets().tolist() == [[0, 0], [2, 1], [4, 8]]
    assert [(*text.get_position(), text.get_text()) for text in ax.texts] == [(10, 10, '1'), (2, 1, '3')]  # medians
    assert not np.array_equal(one.get_facecolor(), three.get_facecolor())


def test_tsne_is_repeatable_and_separates_what_is_far_apart():
    rng = np.random.default_rng(0)
    apart = np.concatenate([rng.normal(0, 1, (20, 6)), rng.normal(50, 1, (20, 6))])
    plane = collect.tsne(apart)
    np.testing.assert_array_equal(plane, collect.tsne(apart))
    distance = np.linalg.norm(plane[:, None] - plane[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (distance.argmin(axis=1) // 20 == np.arange(40) // 20).all()


def test_matplotlib_is_imported_only_when_a_figure_is_made():
    for path in Path(plots.__file__).parent.glob('*.py'):
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [alias.name for node in top for alias in node.names] + [getattr(node, 'module', '') for node in top]
        assert not [name for name in names if name and name.split('.')[0] in ('matplotlib', 'sklearn')], path


def test_a_figure_of_the_user_is_registered(monkeypatch):
    monkeypatch.setattr(draw, 'FIGURES', dict(draw.FIGURES))
    draw.of_run('mine', 'text')(lambda run: f'of {run.seed}')
    groups = {'algorithm=a': {seed: made_up(seed, [0.5]) for seed in (1, 0)}}
    assert list(draw.figures(groups, ['mine'])) == [('mine', 'of 0')]
    groups['algorithm=b'] = {2: made_up(2, [0.5])}
    assert list(draw.figures(groups, ['mine'])) == [('mine-a', 'of 0'), ('mine-b', 'of 2')]
