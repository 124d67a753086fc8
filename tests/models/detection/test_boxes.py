"""Boxes, anchors and suppression by hand and beside torchvision, there with RoIAlign and matching."""

import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.models.detection import boxes, matching, roi_align
from tests.helpers.detection import some_boxes


def test_overlap_by_hand():
    """[0, 4]^2 and [2, 6] x [0, 4] share 8 of 24; a box without area shares nothing, with itself neither."""
    several = jnp.array([[0, 0, 4, 4], [2, 0, 6, 4], [3, 3, 3, 5]], jnp.float32)
    np.testing.assert_allclose(boxes.iou(several, several), [[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 0]], rtol=1e-6)


def test_a_coded_box_is_decoded_and_growth_is_bounded():
    references, coded = some_boxes(20), some_boxes(20, seed=1)
    offsets = boxes.encode(coded, references, (10, 10, 5, 5))
    np.testing.assert_allclose(boxes.decode(offsets, references, (10, 10, 5, 5)), coded, atol=1e-4)
    grown = boxes.decode(jnp.array([[0.0, 0, 50, 0]]), jnp.array([[0.0, 0, 16, 16]]))[0]
    np.testing.assert_allclose(grown[2] - grown[0], 1000, rtol=1e-5)  # 1000 / 16 times 16


def test_flipped_and_clipped_by_hand():
    box = jnp.array([[-3.0, 1, 4, 9]])
    assert boxes.flip(box, 10).tolist() == [[6, 1, 13, 9]]
    assert boxes.clip(box, 8, 10).tolist() == [[0, 1, 4, 8]]


def suppressed(found, scores, groups, threshold):
    """Greedy suppression as it is defined, in plain Python."""
    table, stays = np.asarray(boxes.iou(found, found)), []
    for i in np.argsort(-scores, kind='stable'):
        overlaps = table[i, stays]
        if not any(o > threshold and groups[i] == groups[j] for o, j in zip(overlaps, stays, strict=True)):
            stays.append(i)
    return stays


@pytest.mark.parametrize('count', [1, 60])
def test_suppression_keeps_what_the_greedy_rule_keeps(count):
    rng = np.random.default_rng(3)
    found, scores, groups = some_boxes(count), rng.uniform(size=count).astype(np.float32), rng.integers(0, 3, count)
    valid = rng.uniform(size=count) < 0.9
    expected = [np.flatnonzero(valid)[i] for i in suppressed(found[valid], scores[valid], groups[valid], 0.3)]
    kept, there = boxes.suppress(found, scores, groups, valid, 0.3, keep=80)
    assert np.asarray(kept)[np.asarray(there)].tolist() == expected
    assert len(expected) in (1, *range(20, 54))  # some go
    best, there = boxes.suppress(found, scores, groups, valid, 0.3, keep=1)
    assert best.tolist() == expected[:1]


def test_all_of_it_is_as_in_torchvision():
    torch = pytest.importorskip('torch')
    ops = pytest.importorskip('torchvision.ops', exc_type=ImportError)
    from torchvision.models.detection import _utils, anchor_utils, image_list

    found, references, tensor = some_boxes(50), some_boxes(50, seed=1), torch.tensor
    coder = _utils.BoxCoder((10.0, 10.0, 5.0, 5.0))
    offsets = boxes.encode(found, references, coder.weights)
    expected = coder.encode_single(tensor(found), tensor(references))
    np.testing.assert_allclose(offsets, expected, atol=1e-4)
    decoded = coder.decode_single(expected, tensor(references))
    np.testing.assert_allclose(boxes.decode(offsets, references, coder.weights), decoded, atol=1e-4)
    np.testing.assert_allclose(boxes.iou(found, references), ops.box_iou(tensor(found), tensor(references)), atol=1e-6)

    scores = np.random.default_rng(0).uniform(size=50).astype(np.float32)
    groups = np.arange(50) % 3
    kept, there = boxes.suppress(found, scores, groups, np.ones(50, bool), 0.3, 50)
    expected = ops.batched_nms(tensor(found), tensor(scores), tensor(groups), 0.3)
    assert np.asarray(kept)[np.asarray(there)].tolist() == expected.tolist()

    shapes = (50, 38), (25, 19)
    generator = anchor_utils.AnchorGenerator(((32,), (64,)), ((0.5, 1.0, 2.0),) * 2)
    images = image_list.ImageList(torch.zeros(1, 3, 200, 152), [(200, 152)])
    expected = generator(images, [torch.zeros(1, 1, *shape) for shape in shapes])[0]
    ours = np.concatenate(boxes.anchors((200, 152), shapes, (32, 64), (0.5, 1, 2)))
    np.testing.assert_array_equal(ours, expected)

    valid = np.arange(8) < 6
    for best in (False, True):
        matcher = _utils.Matcher(0.7, 0.3, allow_low_quality_matches=best)
        expected = matcher(ops.box_iou(tensor(references[:6]), tensor(found)))
        np.testing.assert_array_equal(matching.match(references[:8], valid, found, 0.3, 0.7, best), expected)

    maps = {str(i): torch.randn(1, 5, 64 // 2**i, 48 // 2**i) for i in range(4)}
    grown = np.concatenate([found, 12 * found])  # the larger reach beyond the image
    pool = ops.MultiScaleRoIAlign(list(maps), 7, 2)
    expected = pool(maps, [tensor(grown)], [(256, 192)]).permute(0, 2, 3, 1)
    levels = roi_align.levels_of(grown, 2, 5) - 2
    assert len({*levels.tolist()}) > 1
    ours = roi_align.roi_align([x[0].permute(1, 2, 0).numpy() for x in maps.values()], (4, 8, 16, 32), grown, levels, 7)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
