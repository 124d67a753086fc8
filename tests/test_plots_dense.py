"""Figures of dense tasks: predictions beside truths, a score for each task, and what does not apply to them."""

import itertools
from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import launch
from configs import default
from semisfl_jax import config as config_lib
from semisfl_jax import runs as runs_lib
from semisfl_jax import tasks
from semisfl_jax.core.errors import UserError
from semisfl_jax.models import dense_zoo
from semisfl_jax.plots import __main__ as command
from semisfl_jax.plots import collect, draw, inside, style
from semisfl_jax.training import load
from tests import narrow, needs, runs, toy_scenes
from tests.plots_toy import GIB, made_up


@pytest.fixture(autouse=True)
def in_style():
    with style.context():
        yield


def dense(seed=0, algorithm='m_fed', miou=(0.25, 0.5), sent=GIB):
    """A made-up run of two rounds with semantic segmentation, its headline, and depth."""
    records = []
    for number, value in enumerate(miou, start=1):
        scores = {'semseg_miou': value, 'semseg_pixelaccuracy': 0.9, 'depth_rmse': value / 2}
        losses = {'semseg_loss': 3 * value, 'depth_loss': value, 'loss_local': 2 * value}
        traffic = {'bytes_up': number * sent, 'bytes_down': number * sent, 'simulated_seconds': 60.0 * number}
        records.append({'round': number, 'k_s': 0, **scores, **losses, **traffic})
    return runs_lib.Run(f'run{seed}', {'algorithm': algorithm}, seed, 'semseg', records, tasks.MIOU)


def figures_of(groups, *names):
    return dict(draw.figures(groups, names))


def test_each_task_has_a_panel_with_its_score():
    groups = {'algorithm=m_fed': {0: dense(), 1: dense(1, miou=(0.35, 0.7))}}
    groups['algorithm=mfed_fl'] = {0: dense(algorithm='mfed_fl', miou=(0.1, 0.2))}
    figure = figures_of(groups, 'scores')['scores']
    semseg, depth = figure.axes
    assert [ax.get_title() for ax in figure.axes] == ['Semantic segmentation', 'Depth']
    assert [ax.get_ylabel() for ax in figure.axes] == ['Test mIoU (%)', 'Test RMSE']
    np.testing.assert_allclose([line.get_ydata() for line in semseg.lines], [[30, 60], [10, 20]])
    np.testing.assert_allclose([line.get_ydata() for line in depth.lines], [[0.15, 0.3], [0.05, 0.1]])


def test_losses_are_those_of_tasks_and_their_mean():
    figure = figures_of({'m_fed': {0: dense()}}, 'losses')['losses']
    assert [ax.get_title() for ax in figure.axes] == ['Semantic segmentation', 'Depth', 'Mean over tasks']
    np.testing.assert_allclose([ax.lines[0].get_ydata() for ax in figure.axes], [[0.75, 1.5], [0.25, 0.5], [0.5, 1]])


def test_the_score_of_a_task_stands_for_the_accuracy():
    names = ('accuracy_rounds', 'accuracy_gigabytes', 'accuracy_minutes')
    drawn = figures_of({'m_fed': {0: dense()}}, *names)
    assert list(drawn) == list(names)
    assert drawn['accuracy_rounds'].axes[0].get_ylabel() == 'Test mIoU (%)'
    np.testing.assert_array_equal(drawn['accuracy_gigabytes'].axes[0].lines[0].get_xdata(), [2, 4])
    mixed = {'algorithm=m_fed': {0: dense()}, 'algorithm=semisfl': {0: made_up(0, [0.5, 0.7])}}
    (error,) = figures_of(mixed, 'accuracy_rounds').values()
    assert 'accuracy and some by miou' in str(error)


def test_who_sends_nothing_has_no_line_against_traffic():
    groups = {'algorithm=m_fed': {0: dense()}, 'algorithm=mfed_local': {0: dense(algorithm='mfed_local', sent=0)}}
    drawn = figures_of(groups, 'accuracy_rounds', 'accuracy_gigabytes')
    assert [line.get_label() for line in drawn['accuracy_rounds'].axes[0].lines] == ['M-Fed', 'Local']
    assert [line.get_label() for line in drawn['accuracy_gigabytes'].axes[0].lines] == ['M-Fed']
    (error,) = figures_of({'mfed_local': groups['algorithm=mfed_local']}, 'accuracy_gigabytes').values()
    assert str(error) == 'run0 sends nothing'


def test_what_does_not_apply_is_not_drawn():
    of_dense = figures_of({'m_fed': {0: dense()}}, 'k_s', 'confusion', 'classes', 'clients', 'mask_history', 'gap')
    of_classes = figures_of({'semisfl': {0: made_up(0, [0.5, 0.7])}}, 'scores', 'predictions')
    for name, error in {**of_dense, **of_classes}.items():
        assert ('k_s=0' if name == 'k_s' else 'dense tasks') in str(error)


def test_dense_tasks_have_no_diagnostics():
    config = default.get_config()
    config.update_from_flattened_dict(narrow.ROUND | needs.changes('m_fed') | {'diagnostics_every': 5})
    with pytest.raises(UserError, match='diagnostics_every=5: diagnostics are of class labels, but m_fed trains dense'):
        config_lib.check(config)


# --- maps


@pytest.fixture
def ax():
    return style.figure()[1]


def shown(image):
    """[H, W, 4] colors, as a picture has them."""
    return np.round(image.to_rgba(image.get_array()), 2)


RED = np.full((2, 2, 3), (200, 0, 0), np.uint8)
WHITE, CLEAR = [1, 1, 1, 1], [0, 0, 0, 0]


def test_classes_have_their_colors_and_pixels_without_truth_are_hatched(ax):
    inside.dense_map(ax, tasks.make('semseg', 3), np.array([[0, 1], [2, 255]], np.uint8), RED)
    first, second = ([*np.round(to_rgb(color), 2), 1] for color in ('#0072B2', '#D55E00'))
    np.testing.assert_array_equal(shown(ax.images[0]), [[WHITE, first], [second, CLEAR]])
    assert ax.patch.get_hatch()


def test_probabilities_are_white_to_black(ax):
    inside.dense_map(ax, tasks.make('edges', 1), np.array([[0.0, 0.5], [1.0, 255]]), RED)
    (white, _), (black, nothing) = shown(ax.images[0]).tolist()
    assert (white, black, nothing) == (WHITE, [0, 0, 0, 1], CLEAR)


def test_keypoints_are_dots(ax):
    inside.dense_map(ax, tasks.make('keypoints', 2), np.array([[0, 2], [1, 255]], np.uint8), RED)
    (dots,) = ax.collections
    dots.update_scalarmappable()
    assert dots.get_offsets().tolist() == [[1, 0], [0, 1]]  # column, row
    np.testing.assert_allclose(dots.get_facecolors()[:, :3], [to_rgb('#D55E00'), to_rgb('#0072B2')])


def test_colors_of_classes_differ():
    colors = [to_rgb(color) for color in inside.class_colors(255, background=True)]
    assert len(set(colors)) == 255
    assert colors[0] == (1, 1, 1)
    few = np.array(colors[:11])
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(few, 2)) > 0.25


@pytest.mark.parametrize(
    ('name', 'outputs', 'numbers'),
    [
        ('semseg', 3, ['0', '1', '2']),
        ('stuff', 40, [str(number) for number in range(0, 40, 4)]),
        ('keypoints', 2, ['1', '2']),
        ('depth', 1, ['0', '1']),
    ],
)
def test_a_figure_has_images_maps_and_a_key(name, outputs, numbers):
    """The key numbers classes downward and scales upward."""
    maps = np.zeros((2, 3, 4, 5), np.uint8)
    figure = inside.predictions(np.zeros((3, 4, 5, 1), np.uint8), [(tasks.make(name, outputs), *maps)])
    assert len(figure.axes) == 3 * 3 + 1
    key = figure.axes[-1]
    assert [text.get_text() for text in key.get_yticklabels()] == numbers
    assert key.yaxis_inverted() == (name != 'depth')
    assert key.get_ylabel() == tasks.make(name, outputs).title


@pytest.mark.parametrize(('most', 'rows'), [(2, [0, 2]), (4, [0, 1, 2, 5]), (9, range(6))])
def test_images_are_the_first_of_each_label(most, rows):
    assert collect.various(np.array([3, 3, 1, 3, 1, 2]), most).tolist() == list(rows)


def test_of_several_models_the_first_is_drawn(monkeypatch):
    """Images of one pixel, whose number is their row; the models of a task add 1 and 2 to it, or to logit 2."""
    images = np.arange(8, dtype=np.uint8).reshape(8, 1, 1, 1)
    truth = {'semseg': images[..., 0] % 3, 'depth': images[..., 0]}

    def predict(state, images):
        depth = images.astype(jnp.float32) / 100
        semseg = jnp.concatenate([0 * depth, 0 * depth, state + 0 * depth], axis=-1)
        return {'semseg': (semseg, -semseg), 'depth': (depth + 0.01, depth + 0.02)}

    trial = SimpleNamespace(
        algorithm=SimpleNamespace(
            predict=predict, tasks={n: tasks.make(n, k) for n, k in (('semseg', 3), ('depth', 1))}
        ),
        dataset=SimpleNamespace(test_images=images, test_labels=np.array([5, 5, 5, 5, 5, 5, 7, 6]), test_sizes=None),
        test_truth=truth,
    )
    monkeypatch.setattr(load, 'experiment', lambda folder: trial)
    monkeypatch.setattr(load, 'state', lambda folder, built: (9, jnp.float32(1)))
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


# --- a real run


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """One round of local training: two clients for each of two tasks, of a narrow model."""
    made = tmp_path_factory.mktemp('dense') / 'run'
    small = {'rounds': 1, 'federation.num_clients': 4, 'federation.num_active': 4, 'batch_size': 8, **runs.PLAIN}
    small = toy_scenes.NEEDS | {'algorithm': 'mfed_local', 'data.num_labeled': 48} | small
    words = [f'--config.{key}={value}' for key, value in small.items()]
    families = dense_zoo.DENSE_ARCHITECTURES
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(families, 'scene_net', partial(narrow.encoder_decoder, *narrow.DENSE['scene_net']))
        assert (
            launch.main(['launch.py', f'--config={runs.ROOT}/configs/digit_scenes.py', f'--workdir={made}', *words])
            == 0
        )
        yield made


@pytest.mark.slow
def test_the_command_draws_a_dense_run(folder, tmp_path, capsys):
    capsys.readouterr()
    assert command.main(['plots', str(folder), f'--out={tmp_path}']) == 0
    printed = capsys.readouterr().out
    files = {'accuracy_rounds', 'accuracy_minutes', 'scores', 'losses', 'partition', 'predictions'}
    assert {path.stem for path in tmp_path.iterdir()} == files
    assert f'not drawn  accuracy_gigabytes: {folder} sends nothing\n' in printed
