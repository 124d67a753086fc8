"""odsF: thinning pixel by pixel, hand-made maps, real scenes, and SciPy's assignment of each image by itself."""

import jax
import numpy as np
import pytest
import scipy.ndimage
import scipy.optimize
import scipy.sparse.csgraph
import scipy.spatial

from semisfl_jax import tasks
from semisfl_jax.data import maps
from semisfl_jax.tasks import IGNORED, edges


def odsf(probability, targets, sizes=None):
    """Of one batch of probabilities [B, H, W]."""
    p = np.clip(np.asarray(probability, np.float64), 1e-6, 1 - 1e-6)[..., None]
    scorer = tasks.make('edges', 1).scorer
    counts = scorer.count(np.log(p / (1 - p)).astype(np.float32), targets, np.ones(len(targets), bool), sizes)
    return scorer.finish(jax.tree.map(lambda x: np.asarray(x)[None], counts))['odsf']


def blank(side):
    return np.zeros((1, side, side), np.uint8)


def thin_by_hand(edge):
    """Guo and Hall's algorithm pixel by pixel, as in their paper: edge [H, W] bool, 0 at its border."""
    edge = edge.copy()
    while True:
        before = edge.copy()
        for turn in (0, 4):
            gone = []
            for y, x in np.argwhere(edge):
                around = [edge[y - 1, x], edge[y - 1, x + 1], edge[y, x + 1], edge[y + 1, x + 1]]
                around += [edge[y + 1, x], edge[y + 1, x - 1], edge[y, x - 1], edge[y - 1, x - 1]]
                p2, p3, p4, p5, p6, p7, p8, p9 = np.roll(around, turn).tolist()  # clockwise from the upper one
                c = (not p2 and (p3 or p4)) + (not p4 and (p5 or p6))
                c += (not p6 and (p7 or p8)) + (not p8 and (p9 or p2))
                n1 = (p9 or p2) + (p3 or p4) + (p5 or p6) + (p7 or p8)
                n2 = (p2 or p3) + (p4 or p5) + (p6 or p7) + (p8 or p9)
                m = (p2 or p3 or not p5) and p4
                if c == 1 and 2 <= min(n1, n2) <= 3 and not m:
                    gone.append((y, x))
            for pixel in gone:
                edge[pixel] = False
        if (edge == before).all():
            return edge


def blobs(count, shape, seed=0):
    """Random shapes [count, *shape], some of them thick, with an empty border."""
    noise = scipy.ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=(count, *shape)), (0, 1.5, 1.5))
    inside = np.pad(np.ones((shape[0] - 2, shape[1] - 2), bool), 1)
    return (noise > 0.05) & inside


def test_every_bit_is_thinned_by_itself():
    shapes = blobs(32, (24, 20))
    words = np.sum(shapes.astype(np.uint32) << np.arange(32, dtype=np.uint32)[:, None, None], axis=0, dtype=np.uint32)
    thinned = np.asarray(edges.thin(words[None]))[0]
    for bit, edge in enumerate(shapes):
        np.testing.assert_array_equal(thinned >> bit & 1 > 0, thin_by_hand(edge), err_msg=str(bit))
    assert shapes.sum() > 2 * np.bitwise_count(thinned).sum() > 0


def test_edges_match_within_a_disk():
    """0.0075 of the diagonal is 1.018 pixels at a side of 96, 0.998 at 94 and 2.036 at 192. Diagonal neighbors are 1.41
    pixels apart: near enough from 134 on, where the tolerance is 1.421."""
    cases = (
        (96, 0, 1, 1),
        (96, 0, 2, 0),
        (94, 0, 1, 0),
        (192, 0, 2, 1),
        (192, 0, 3, 0),
        (133, 1, 1, 0),
        (134, 1, 1, 1),
    )
    for side, down, across, near in cases:
        truth, guess = blank(side), blank(side)
        truth[0, 9, 9], guess[0, 9 + down, 9 + across] = 1, 1
        assert odsf(guess, truth) == near, (side, down, across)


def test_tolerance_follows_the_size_of_an_image():
    """Images of 96 x 96 in maps of 192 x 192, whose tolerance would be 2.036 pixels."""
    truth, guess, sizes = np.full((1, 192, 192), IGNORED, np.uint8), np.zeros((1, 96, 96)), np.full((1, 2), 96)
    truth[:, :96, :96] = 0
    truth[0, 9, 9], guess[0, 9, 11] = 1, 1
    assert odsf(guess, truth, sizes) == 0
    truth[0, 9, 10] = 1
    assert odsf(guess, truth, sizes) == pytest.approx(2 / 3)


def test_unknown_pixels_are_not_judged():
    truth, guess = blank(96), blank(96)
    truth[0, 20:40, 30], guess[0, 20:40, 30], guess[0, 60:80, 30] = 1, 1, 1
    assert odsf(guess, truth) == pytest.approx(2 / 3)
    truth[0, 60:80, 30] = IGNORED
    assert odsf(guess, truth) == 1
    truth[0, 20:30, 30] = IGNORED
    assert odsf(guess, truth) == 1
    assert np.isnan(odsf(guess, np.full_like(truth, IGNORED)))
    assert odsf(np.zeros((1, 96, 96)), truth) == 0


def test_equals_the_best_assignment_of_each_image():
    """All thresholds one by one; the tolerance is 2.25 pixels."""
    rng, shape = np.random.default_rng(5), (300, 9)
    probability = rng.choice([0.0, 0.1, 0.4, 0.6, 0.9], (3, *shape), p=[0.6, 0.1, 0.1, 0.1, 0.1])
    probability[:, :, [0, -1]] = probability[:, [0, -1]] = 0
    targets = (rng.uniform(size=(3, *shape)) < 0.1).astype(np.uint8)
    targets[:, :, [0, -1]] = targets[:, [0, -1]] = 0
    radius = 0.0075 * (300**2 + 9**2) ** 0.5
    best, without = 0.0, 0.0
    for threshold in (0.05, 0.3, 0.5, 0.8):
        hits, found, predicted, true = 0, 0, 0, 0
        for guess, truth in zip(probability > threshold, targets > 0, strict=True):
            a, b = (np.argwhere(thin_by_hand(edge)) for edge in (guess, truth))
            near = np.linalg.norm(a[:, None] - b[None], axis=-1) <= radius
            rows, columns = scipy.optimize.linear_sum_assignment(near, maximize=True)
            hits, predicted, true = hits + near[rows, columns].sum(), predicted + len(a), true + len(b)
            found += near.any(axis=1).sum() + near.any(axis=0).sum()
        best, without = max(best, 2 * hits / (predicted + true)), max(without, found / (predicted + true))
    assert odsf(probability, targets) == pytest.approx(best)
    assert 0.3 < best < without - 0.05  # matching one to one makes a difference


def test_the_largest_matching_equals_that_of_scipy():
    """Of a noisy prediction of 100 x 130 pixels. Of images of 375 x 500, SciPy's algorithm would take minutes."""
    rng = np.random.default_rng(0)
    smooth = scipy.ndimage.gaussian_filter(rng.normal(size=(100, 130)), 6)
    truth = maps.borders(np.digitize(smooth / smooth.std(), [-0.5, 0.5]))
    noise = scipy.ndimage.gaussian_filter(rng.normal(size=truth.shape), 2)
    guess = 16 * scipy.ndimage.gaussian_filter(truth.astype(float), 1.5) - 4 + 6 * noise > -2
    thin = [np.asarray(edges.thin(edge[None].astype(np.uint8)))[0] > 0 for edge in (guess, truth)]
    trees = [scipy.spatial.cKDTree(np.argwhere(edge)) for edge in thin]
    near = scipy.sparse.csr_array(trees[0].sparse_distance_matrix(trees[1], 3.0, output_type='coo_matrix') > 0)
    found = edges.largest_matching(scipy.sparse.csr_array(near, dtype=float))
    assert found == np.sum(scipy.sparse.csgraph.maximum_bipartite_matching(near) >= 0)
    assert 100 < found < min(near.shape)


def test_blocks_equal_the_whole(monkeypatch):
    truth = blobs(5, (40, 40)).astype(np.uint8)
    guess = 0.8 * blobs(5, (40, 40), seed=1) + 0.2 * truth
    whole = odsf(guess, truth)
    monkeypatch.setattr(edges, 'AT_ONCE', 2 * 40 * 40)
    assert odsf(guess, truth) == whole
    assert 0.05 < whole < 0.95
