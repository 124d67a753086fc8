"""Boxes, RoIAlign, matching and sampling beside torchvision, with which they agree where it is installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.models.detection import boxes, matching, roi_align


def some_boxes(count, seed=0, side=64):
    rng = np.random.default_rng(seed)
    low, size = rng.uniform(0, 0.7 * side, (count, 2)), rng.uniform(2, 0.5 * side, (count, 2))
    return np.concatenate([low, low + size], axis=1).astype(np.float32)


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


def test_objects_are_matched_by_hand():
    """Overlaps with the only object [0, 4]^2: 1, 0.5 (4 x 2), 0.25 (2 x 2), 0."""
    found = jnp.array([[0, 0, 4, 4], [0, 0, 4, 2], [0, 0, 2, 2], [8, 8, 9, 9]], jnp.float32)
    objects, valid = jnp.array([[0, 0, 4, 4], [0, 0, 0, 0]], jnp.float32), jnp.array([True, False])
    between, background = matching.BETWEEN, matching.BACKGROUND
    assert matching.match(objects, valid, found, 0.3, 0.7, False).tolist() == [0, between, background, background]
    assert matching.match(objects, valid, found[2:], 0.3, 0.7, True).tolist() == [0, background]
    assert matching.match(objects, valid & False, found, 0.3, 0.7, True).tolist() == [background] * 4


def test_samples_have_at_most_their_share_of_positive_boxes():
    positive, negative = jnp.arange(20) < 8, jnp.arange(20) >= 15  # 8 and 5
    chosen, there = matching.sample(jax.random.key(0), positive, negative, 8, 0.25)
    assert (np.asarray(chosen)[:2] < 8).all()
    assert there.sum() == 7  # 2 of 8, and 5
    assert sorted(np.asarray(chosen)[2:7].tolist()) == [15, 16, 17, 18, 19]
    chosen, there = matching.sample(jax.random.key(0), positive, negative, 4, 0.5)
    assert there.all()
    assert len({*np.asarray(chosen).tolist()}) == 4


def bilinear(values, y, x):
    """A value between the elements of a map, as RoIAlign defines it, in plain Python."""
    h, w = values.shape[:2]
    if not (-1 <= y <= h and -1 <= x <= w):
        return 0 * values[0, 0]
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    low_y, low_x = int(y), int(x)
    high_y, high_x = min(low_y + 1, h - 1), min(low_x + 1, w - 1)
    top = values[low_y, low_x] * (1 - x + low_x) + values[low_y, high_x] * (x - low_x)
    bottom = values[high_y, low_x] * (1 - x + low_x) + values[high_y, high_x] * (x - low_x)
    return top * (1 - y + low_y) + bottom * (y - low_y)


def test_roi_align_is_the_mean_of_four_samples_in_each_bin():
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(16, 12, 3)).astype(np.float32), rng.normal(size=(8, 6, 3)).astype(np.float32)]
    found = np.concatenate([some_boxes(6), [[-9.0, 50, 20, 90], [5, 5, 5.5, 6]]]).astype(np.float32)
    levels = np.array([0, 1, 0, 1, 0, 1, 0, 1])
    result = roi_align.roi_align(maps, (4, 8), found, levels, 3)
    for box, level, got in zip(found / np.array([4, 8])[levels][:, None], levels, result, strict=True):
        w, h = np.maximum(box[2:] - box[:2], 1)
        rows = box[1] + (np.arange(6) + 0.5) / 6 * h
        columns = box[0] + (np.arange(6) + 0.5) / 6 * w
        samples = np.array([[bilinear(maps[level], y, x) for x in columns] for y in rows])
        np.testing.assert_allclose(got, samples.reshape(3, 2, 3, 2, 3).mean(axis=(1, 3)), atol=1e-5)


def test_boxes_are_read_from_the_level_of_their_size():
    """A side of 224 is read from P4; half of it from P3, twice from P5 (Lin et al., 2017, Eq. 1)."""
    sides = np.array([1, 111, 112, 223, 224, 448, 5000], np.float32)
    found = np.stack([0 * sides, 0 * sides, sides, sides], axis=1)
    assert roi_align.levels_of(found, 2, 5).tolist() == [2, 2, 3, 3, 4, 5, 5]


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
