"""Trivial predictions of dense tasks: by hand on tiny maps, in the summary of a run, and as rows of studies."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from semisfl_jax import data, tasks
from semisfl_jax import runs as runs_lib
from semisfl_jax.studies import collect, plan, statistics
from semisfl_jax.studies.spec import Measure
from semisfl_jax.training import evaluation
from tests import runs, toy_scenes
from tests.studies_words import study
from tests.test_dense_run import SETTINGS

VOID = tasks.IGNORED
TRAIN = np.array(
    [[[0, 0], [0, 2]], [[0, 0], [1, 2]], [[0, 0], [1, VOID]], [[2, 2], [2, 2]], [[0, 1], [2, VOID]], [[2, 2], [2, 0]]],
    np.uint8,
)
HELD = np.array([0, 1, 2, 4])  # what the clients of a task hold


def scores(task, predict, state, images, truth):
    """By the evaluation of runs, in batches of two."""
    inputs = evaluation.batched(images, {task.name: truth}, 2, jax.device_put)
    return evaluation.compile_evaluate(predict, state, inputs, lambda name: task)(inputs, state)[task.name]


def constant(task, train, truth):
    """Of a task that learns from the maps HELD."""
    pixels = {task.name: task.constant(evaluation.count_pixels(train, HELD))}
    images = np.random.default_rng(0).integers(0, 256, (*truth.shape, 3), np.uint8)
    return scores(task, evaluation.predict_constants, pixels, images, truth)


def test_pixels_are_counted_where_clients_hold_them():
    """Of all images, 2 is the most frequent number, but not of these."""
    counted = np.zeros(VOID, int)
    counted[[0, 1, 2]] = 3 + 2 + 2 + 1, 1 + 1 + 1, 1 + 1 + 1
    assert np.bincount(TRAIN.ravel())[:3].argmax() == 2
    np.testing.assert_array_equal(evaluation.count_pixels(TRAIN, HELD), counted)


def test_the_most_frequent_class():
    """Class 0 everywhere is right on 5 of 11 pixels; 1 and 3 occur, too, and have an IoU of 0."""
    truth = np.array([[[0, 0], [1, 1]], [[0, 3], [3, VOID]], [[0, 0], [1, 1]]], np.uint8)
    assert constant(tasks.make('semseg', 4), TRAIN, truth) == {
        'miou': pytest.approx(5 / 11 / 3),
        'pixelaccuracy': pytest.approx(5 / 11),
    }


def test_all_pixels_are_salient_or_none():
    """3 of 4, 1 of 3 and 0 of 4 known pixels; where two of three images have no salient pixel, none is the better."""
    truth = np.array([[[1, 1], [1, 0]], [[0, 1], [0, VOID]], [[0, 0], [0, 0]]], np.uint8)
    task = tasks.make('saliency', 1)
    assert constant(task, TRAIN, truth) == {'iou': pytest.approx((3 / 4 + 1 / 3 + 0) / 3)}
    truth[1] = 0
    assert constant(task, TRAIN, truth) == {'iou': pytest.approx((0 + 1 + 1) / 3)}


def test_all_pixels_are_edges():
    """On a line, which is as thin as it can be: of three known pixels, two are edges."""
    truth = np.array([[[1, 1, 0, VOID]]], np.uint8)
    assert constant(tasks.make('edges', 1), TRAIN, truth) == {'odsf': pytest.approx(2 * 2 / (3 + 2))}


def test_the_mean_depth():
    """Of 0 to 2 in steps of 1/254, with the counts above: (3 + 2 * 3) / 14; that of the test maps would be another."""
    truth = np.array([[[0, 254], [VOID, 127]]], np.uint8)
    mean = 9 / 14 / 254
    error = np.mean((np.array([0, 254, 127]) / 254 - mean) ** 2) ** 0.5
    assert constant(tasks.make('depth', 1), TRAIN, truth) == {'rmse': pytest.approx(error, rel=1e-5)}


def test_keypoints_at_no_place_in_particular():
    """Every pixel is a peak, and all are as high: the first 20, of which none is near the one point."""
    truth = np.zeros((1, 30, 30), np.uint8)
    truth[0, 20, 20] = 1
    assert constant(tasks.make('keypoints', 2), TRAIN, truth) == {'ap': 0.0}


def test_all_objects_are_salient():
    """2 of 3 pixels of objects, 1 of 1, of which an unknown one is none; and nothing where nothing is: 1."""
    classes = np.array([[[5, 5], [0, 7]], [[0, VOID], [1, 0]], [[0, 0], [0, 0]]], np.uint8)
    truth = np.array([[[1, 1], [0, 0]], [[0, 0], [1, 0]], [[0, 0], [0, 0]]], np.uint8)
    found = scores(tasks.make('saliency', 1), evaluation.predict_objects, (), classes[..., None], truth)
    assert found == {'iou': pytest.approx((2 / 3 + 1 + 1) / 3)}


@pytest.fixture
def scenes(monkeypatch):
    """The toy scenes, in which a square is salient if its class is 1."""
    toy_scenes.small_model(monkeypatch)
    made = toy_scenes.load()
    squares = data.dataset.Targets(*((maps == 1).astype(np.uint8) for maps in made.targets['semseg'][:2]), 1)
    made = dataclasses.replace(made, targets={**made.targets, 'saliency': squares})
    monkeypatch.setitem(data.READERS, toy_scenes.NAME, lambda image_size: made)
    return made


def test_the_summary_of_a_run_has_them(tmp_path, capsys, scenes):
    """Of each seed from its own clients' maps; validation images are in none of these."""
    names = ('semseg', 'depth', 'saliency')
    clients = {'federation__num_clients': 9, 'federation__num_active': 9}
    options = {'data__tasks': names, 'data__num_unlabeled': 20, 'rounds': 1, 'eval_batch_size': 5}
    options |= {'seeds': '0,1', 'parallel__trials': 'loop'}
    assert runs.run(tmp_path, **SETTINGS | clients | options) == 0
    out, both = capsys.readouterr().out, json.loads((tmp_path / 'summary.json').read_text())
    expected = []
    for seed in (0, 1):
        folder = tmp_path / f'seed_{seed}'
        split = data.load_partition(folder / 'partition.npz')
        held = {n: np.concatenate(split.client_index[i::3]) for i, n in enumerate(names)}
        assert {len(rows) for rows in held.values()} == {20}
        train = {name: scenes.targets[name].train[held[name]] for name in names}
        test = {name: scenes.targets[name].test for name in names}
        most = np.bincount(train['semseg'].ravel()).argmax()
        miou = np.mean(test['semseg'] == most) / len(np.unique(test['semseg']))
        mean = np.mean(train['depth'][train['depth'] != VOID]) / 254
        depth = test['depth'][test['depth'] != VOID] / 254
        salient, objects = test['saliency'] == 1, test['semseg'] > 0
        empty = ~salient.any((1, 2))
        of_pixels = max(np.mean(salient), np.mean(empty))
        of_objects = np.mean(np.sum(salient & objects, (1, 2)) / np.sum(objects, (1, 2)))
        expected.append(
            {
                'constant': {
                    'semseg_miou': pytest.approx(miou),
                    'depth_rmse': pytest.approx(np.mean((depth - mean) ** 2) ** 0.5, rel=1e-5),
                    'saliency_iou': pytest.approx(of_pixels),
                },
                'objects': {'saliency_iou': pytest.approx(of_objects)},
            }
        )
        made = runs_lib.read(folder)
        assert made.trivial_scores == expected[-1]
        assert made.trivial('objects').records == [{'round': 1, 'saliency_iou': pytest.approx(of_objects)}]
    assert [trial['trivial_scores'] for trial in both['trials']] == expected
    depths = [trial['trivial_scores']['constant']['depth_rmse'] for trial in both['trials']]
    assert depths[0] != depths[1]
    assert both['trivial_scores']['constant']['depth_rmse']['mean'] == pytest.approx(np.mean(depths))
    line = next(line for line in out.splitlines() if line.startswith('constant prediction: semseg mIoU '))
    assert f', depth RMSE {np.mean(depths):.4f} ± ' in line  # in the order of the tasks
    assert f'all objects salient: saliency IoU at the best threshold {of_objects:.2%} ± 0.00%' in out


@pytest.mark.parametrize('scale', ['smoke', 'cpu', 'full'])
def test_studies_have_their_rows_and_make_no_run_for_them(scale):
    definition = study('mfed_table2', scale)
    main, sweep = definition.tables
    for table, row, columns in (
        (main, 'Constant prediction', main.columns),
        (sweep, 'Constant prediction', sweep.columns),
        (main, 'All objects salient', ['Saliency']),
        (sweep, 'All objects salient', ['Saliency, few', 'Saliency, many']),
    ):
        cells = [cell for cell in table.cells if cell.row == row]
        assert [cell.column for cell in cells] == list(columns)
        for cell in cells:
            other = table.at('Local' if table is main else 'lambda_0 = 0', cell.column)
            assert plan.jobs_of(cell) == plan.jobs_of(other)
            assert cell.measure._replace(trivial='') == other.measure
            assert cell.paper is None
    (table, *_) = study('mfed_table3', scale).tables
    assert [cell.column for cell in table.cells if cell.measure.trivial] == ['Stuff', 'Segmentation', 'Delta_m']


def test_no_test_is_made_of_them():
    """M-Fed is compared with the two other methods alone, in a table whose cells all have values."""
    (table,) = study('mfed_table3', 'smoke').tables
    line = {'round': 1, 'stuff_miou': 0.5, 'semseg_miou': 0.25}
    made = [
        runs_lib.Run(Path(str(seed)), {'data.tasks': ['stuff', 'semseg']}, seed, 'stuff', [line]) for seed in (0, 1, 2)
    ]
    made = {run.seed: run._replace(trivial_scores={'constant': line}, score=tasks.MIOU) for run in made}
    found = {
        (table.title, cell.row, cell.column): collect.CellResult(made, (0, 1, 2), [], '', [], made)
        for cell in table.cells
    }
    differences = statistics.difference_rows(dataclasses.replace(study('mfed_table3', 'smoke'), tables=(table,)), found)
    assert {line['minus'] for line in differences} == {'Local', 'FL per task'}
    assert [row[0] for row in statistics.difference_grid(table, differences).rows] == ['Local', 'FL per task']


def test_what_a_study_reads(tmp_path, scenes):
    """The levels of its runs, and the gain over the models of another row; nothing of runs that recorded none."""
    assert runs.run(tmp_path / 'cells' / 'a', **SETTINGS | {'rounds': 2}) == 0
    made = runs_lib.read(tmp_path / 'cells' / 'a')
    level = made.trivial_scores['constant']
    assert [record['round'] for record in made.trivial('constant').records] == [1, 2]
    found = collect.CellResult({0: made.trivial('constant')}, (0,), [], '', [], {0: made})
    assert collect.values(found, Measure('semseg_miou')) == {0: 100 * level['semseg_miou']}
    last = made.records[-1]
    gain = level['semseg_miou'] / last['semseg_miou'] - level['depth_rmse'] / last['depth_rmse']
    assert collect.values(found, Measure('delta_m', reference='Local')) == {0: pytest.approx(50 * gain)}
    old = made._replace(trivial_scores={})
    assert collect.values(found._replace(runs={0: old.trivial('constant')}), Measure('semseg_miou')) == {}
