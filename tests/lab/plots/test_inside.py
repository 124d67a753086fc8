"""Every plot function draws the data it was given, with expected numbers from arithmetic by hand."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import semisfl_jax as sfl
from semisfl_jax import tasks
from semisfl_jax.lab.plots import collect, draw, inside, style
from semisfl_jax.training import diagnostics
from tests.helpers import plots_toy

NAN = float('nan')


@pytest.fixture
def drawn():
    """Makes Axes in the style of the package."""
    with style.context():
        yield style.figure


def points(line):
    return np.column_stack(line.get_data()).tolist()


def heights(bars):
    return [bar.get_height() for bar in bars]


def test_the_partition_has_a_bubble_where_there_are_images(drawn):
    _, ax = drawn()
    inside.partition(ax, np.array([[4, 0, 1], [0, 16, 0]]))  # two classes, and images of no known one
    (bubbles,) = ax.collections
    assert bubbles.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1]]  # client, class
    sizes = bubbles.get_sizes()
    np.testing.assert_allclose(sizes / sizes.max(), [4 / 16, 1 / 16, 1])
    assert (ax.get_ylabel(), list(ax.get_yticks())) == ('Class (top row: unknown)', [0, 1])


def test_confusion_is_a_share_of_the_true_class(drawn):
    _, ax = drawn()
    # class 0: 3 of 4 right; class 1 has no confident label; class 2: 1 of 2; the last row is of unknown classes
    inside.confusion(ax, np.array([[3, 1, 0], [0, 0, 0], [1, 0, 1], [7, 7, 7]]))
    shares = np.ma.filled(ax.images[0].get_array(), NAN)
    np.testing.assert_array_equal(shares, [[75, 25, 0], [NAN, NAN, NAN], [50, 0, 50]])
    texts = [(*text.get_position(), text.get_text()) for text in ax.texts]
    assert texts == [(0, 0, '75'), (1, 0, '25'), (0, 2, '50'), (2, 2, '50')]


@pytest.mark.parametrize('figure', ['confusion', 'classes', 'mask_history', 'accuracy_per_class', 'queue', 'partition'])
@pytest.mark.parametrize('names', [['10', 'cat'], []])
def test_classes_have_their_names(monkeypatch, figure, names):
    """In place of numbers, on the axes of classes and on no other."""
    arrays = {'teacher_confident': np.ones((3, 3, 2), int), 'unlabeled': np.ones((3, 3), int), 'round': np.array(2)}
    arrays |= {'queue_levels': np.array(['ring']), 'queue': np.ones((1, 2, 3, 2), int), 'queue_empty': np.array([0])}
    monkeypatch.setattr(collect, 'history', lambda run, last=0: [arrays])
    monkeypatch.setattr(collect, 'holdings', lambda folder: (np.ones((3, 3), int), np.zeros((3, 3), int)))
    run = plots_toy.made_up(0, (0.5, 0.5))._replace(began={'images': {'outline': {'class_names': names}}})
    with style.context():
        ax = draw.FIGURES[figure].draw(run).axes[0]
        shown = {axis.axis_name: [text.get_text() for text in axis.get_ticklabels()] for axis in (ax.xaxis, ax.yaxis)}
    named = {'confusion': 'xy', 'mask_history': 'y', 'accuracy_per_class': 'y', 'partition': 'y'}.get(figure, 'x')
    for axis, texts in shown.items():
        assert (texts == ['10', 'cat']) == (bool(names) and axis in named), (axis, texts)


def test_the_accuracy_of_each_class_is_a_row():
    """Evaluated in rounds 2 and 3; class 1 has no test images."""
    with style.context():
        ax, key = draw.FIGURES['accuracy_per_class'].draw(plots_toy.made_up(0, (0.25, 0.5))).axes
    (shades,) = ax.collections
    assert np.ma.filled(shades.get_array(), -1).tolist() == [[25, 50], [-1, -1]]
    assert (shades.get_coordinates()[0, :, 0].tolist(), key.get_ylabel()) == ([1.5, 2.5, 3.5], 'Test accuracy (%)')


def test_feature_space_has_names(drawn):
    _, ax = drawn()
    inside.feature_space(ax, np.eye(2), np.array([1, 0]), names=['10', 'cat'])
    assert sorted(text.get_text() for text in ax.texts) == ['10', 'cat']


@pytest.mark.parametrize(('rounds', 'edges'), [([10, 20, 40], [5, 15, 30, 50]), ([4], [3.5, 4, 4.5])])
def test_pixels_of_the_mask_history_end_half_way_between_rounds(drawn, rounds, edges):
    """Pixels end half way between the rounds."""
    _, ax = drawn()
    mask = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])[: len(rounds)]
    inside.class_history(ax, rounds, mask, 'shares')
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


def test_rates_are_pairs_of_points(drawn):
    _, ax = drawn()
    inside.rates(ax, diagnostics.Rates(np.array([0.5, 0.0]), np.array([0.75, NAN])), 'Client')
    confident, right = ax.lines
    np.testing.assert_allclose(points(confident), [[0, 50], [1, 0]])
    np.testing.assert_array_equal(points(right), [[0, 75], [1, NAN]])


def test_the_gap_shows_distance_and_agreement_of_teacher_and_student(drawn, monkeypatch):
    pieces, norm = np.array(['bottom', 'top', 'proj']), np.array([10.0, 1, 0])
    history = [
        {'round': number, 'pieces': pieces, 'norm': norm, 'distance': np.array(distance), 'agreement': np.array(equal)}
        for number, distance, equal in ((5, [1, 0.2, 0], [[9, 1], [0, 0]]), (10, [3, 0.4, 0], [[90, 0], [5, 5]]))
    ]
    monkeypatch.setattr(collect, 'history', lambda run, last=0: history)
    left, right = draw.FIGURES['gap'].draw(SimpleNamespace(folder=None, headline='teacher')).axes
    assert [points(line) for line in left.lines] == [[[5, 0.1], [10, 0.3]], [[5, 0.2], [10, 0.4]]]
    assert points(right.lines[0]) == [[5, 90], [10, 95]]


# --- maps of dense tasks


def shown(image):
    """[H, W, 4] colors, as a picture has them."""
    return np.round(image.to_rgba(image.get_array()), 2)


RED = np.full((2, 2, 3), (200, 0, 0), np.uint8)
WHITE, CLEAR = [1, 1, 1, 1], [0, 0, 0, 0]


def test_classes_have_their_colors_and_pixels_without_truth_none(drawn):
    _, ax = drawn()
    inside.dense_map(ax, tasks.make('semseg', 3), np.array([[0, 1], [2, 255]], np.uint8), RED)
    first, second = ([*np.round(to_rgb(color), 2), 1] for color in inside.class_colors(3, background=True)[1:])
    assert first != second
    np.testing.assert_array_equal(shown(ax.images[0]), [[WHITE, first], [second, CLEAR]])


def test_of_several_models_the_first_is_drawn(monkeypatch):
    """Images of one pixel, whose number is their row; the models of a task add 1 and 2 to it, or to logit 2."""
    images = np.arange(8, dtype=np.uint8).reshape(8, 1, 1, 1)
    truth = {'semseg': images[..., 0] % 3, 'depth': images[..., 0]}

    def predict(state, images):
        depth = images.astype(jnp.float32) / 100
        semseg = jnp.concatenate([0 * depth, 0 * depth, state + 0 * depth], axis=-1)
        return {'semseg': (semseg, -semseg), 'depth': (depth + 0.01, depth + 0.02)}

    trial = SimpleNamespace(
        algorithm=SimpleNamespace(tasks={n: tasks.make(n, k) for n, k in (('semseg', 3), ('depth', 1))}),
        dataset=SimpleNamespace(test_images=images, test_labels=np.array([5, 5, 5, 5, 5, 5, 7, 6]), test_sizes=None),
        test_truth=truth,
    )
    trained = SimpleNamespace(experiment=trial, round=9, predict=lambda images: predict(jnp.float32(1), images))
    monkeypatch.setattr(sfl, 'load_trained', lambda folder: trained)
    drawn, maps, number, models = collect.predictions('run')
    rows = [0, 1, 2, 3, 6, 7]
    assert (number, models, drawn.ravel().tolist()) == (9, 2, rows)
    assert [task.name for task, _, _ in maps] == ['semseg', 'depth']
    for task, shown, _ in maps:
        np.testing.assert_array_equal(shown, truth[task.name][rows])
    semseg, depth = (predicted.ravel() for _, _, predicted in maps)
    assert semseg.tolist() == [2] * 6  # the second model has 0
    np.testing.assert_allclose(depth, [2.54 * (row + 1) for row in rows], rtol=1e-6)
    # Truths of 2 x 1 and 1 x 3 pixels are drawn as large as the images, by what is under their centers
    truth['depth'] = np.full((8, 2, 3), 255, np.uint8)
    truth['depth'][::2, :2, 0], truth['depth'][1::2, 0] = [[5, 6]], [7, 8, 9]
    trial.dataset.test_sizes = np.array([[2, 1], [1, 3]] * 4)
    assert collect.predictions('run')[1][1][1].ravel().tolist() == [6, 8, 6, 8, 6, 8]
