"""Tasks of objects: scores of the host, trivial predictions, figures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.training import evaluation
from tests.helpers import toy_objects


def perfect(name, targets):
    """Outputs that equal the truth."""
    if name == 'persons':
        shown = targets['visible'] > 0
        tags = np.broadcast_to(5.0 * np.arange(toy_objects.MOST)[:, None, None], (*shown.shape, 1))
        peaks = np.concatenate([targets['joints'], shown[..., None], tags], axis=-1)
        return {'peaks': np.float32(peaks.swapaxes(1, 2))}  # [m, J, G, 4]
    labels = targets['labels'].astype(np.int32)
    masks = np.ones((*labels.shape, tasks.objects.MASK, tasks.objects.MASK), np.float32)
    found = {'boxes': targets['boxes'], 'scores': np.float32(labels > 0), 'labels': labels, 'masks': masks}
    more = {'semantic': targets['semantic']} if name == 'panoptic' else {}
    return found | {'valid': labels > 0} | more


@pytest.mark.parametrize('name', tasks.PARTS)
def test_predictions_that_equal_the_truth_have_a_score_of_1(name):
    """The compiled evaluation returns them in batches, of which the last is filled, and the host scores them."""
    dataset = toy_objects.load()
    task, targets = dataset.outline.task(name), dataset.targets[name]
    outputs = perfect(name, targets.test)

    def predict(state, images):
        rows = images[:, 0, 0, 0].astype(int)
        return {name: jax.tree.map(lambda x: x[rows], state)}

    numbers = np.broadcast_to(np.arange(toy_objects.TEST, dtype=np.uint8)[:, None, None, None], (6, 4, 4, 3))
    batches = evaluation.batched(numbers, {}, 4, jnp.asarray)
    evaluate = evaluation.compile_evaluate(predict, jax.tree.map(jnp.asarray, outputs), batches, lambda _: task)
    scores = evaluate(batches, outputs, {name: (targets.test, None, toy_objects.SIDE)})[name]
    assert scores[task.score.name] == pytest.approx(1.0)
    shifted = outputs | (
        {'peaks': outputs['peaks'] + np.float32([9, 9, 0, 0])}
        if name == 'persons'
        else {'labels': 3 - outputs['labels']}
    )
    assert evaluate(batches, shifted, {name: (targets.test, None, toy_objects.SIDE)})[name][task.score.name] < 0.6


def test_constants_by_hand():
    """Two images, of which rows 0 and 2 are read."""
    boxes, labels = np.zeros((3, 2, 4), np.float32), np.array([[1, 2], [2, 2], [1, 0]], np.uint8)
    boxes[0], boxes[2, 0] = [[0, 0, 4, 4], [1, 2, 3, 8]], [2, 4, 8, 6]
    semantic = np.repeat(np.uint8([1, 0, 1]), 9).reshape(3, 3, 3)
    semantic[2, :2] = 2  # things do not count
    task = tasks.make('panoptic', 5, stuff=2)
    found = task.constant({'boxes': boxes, 'labels': labels, 'semantic': semantic}, np.array([0, 2]))
    assert found['boxes'].tolist() == [[1, 2, 6, 5], [1, 2, 3, 8], [0, 0, 0, 0]]
    assert found['scores'].tolist() == [1.0, 0.5, 0.0]
    assert found['labels'].tolist() == [1, 2, 3]
    assert found['valid'].tolist() == [True, True, False]
    assert (found['semantic'] == 1).all()
    joints = np.float32([[[[1, 2], [3, 4]]], [[[9, 9], [9, 9]]], [[[3, 6], [0, 0]]]])
    visible = np.uint8([[[2, 1]], [[2, 2]], [[2, 0]]])
    found = tasks.make('persons', 2).constant({'joints': joints, 'visible': visible}, np.array([0, 2]))
    assert found['peaks'][:, 0].tolist() == [[2, 4, 1, 0], [3, 4, 1, 0]]


def test_figures_show_classes_of_segments_and_people():
    """Of the truth, and of predictions that equal it."""
    dataset, side = toy_objects.load(), toy_objects.SIDE
    classes, stuff = dataset.targets['semseg'].test, dataset.targets['panoptic'].test['semantic']
    expected = {'instances': classes, 'panoptic': np.where(stuff == 2, classes, 3 + stuff)}
    for name in tasks.PARTS:
        task, targets = dataset.outline.task(name), dataset.targets[name].test
        maps = [task.show(parts, side) for parts in (targets, perfect(name, targets))]
        if name == 'persons':
            joints = [targets['joints'][:, :, k][targets['visible'][:, :, k] > 0] for k in range(4)]
            for drawn in maps:
                assert {*np.unique(drawn)} <= {0, 1, 2}
                assert (drawn > 0).sum() == sum(map(len, joints)) + len(joints[0])  # corners and centers
        else:
            for drawn in maps:
                np.testing.assert_array_equal(drawn, expected[name], err_msg=name)
