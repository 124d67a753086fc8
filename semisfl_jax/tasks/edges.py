"""The F-measure of edges at the best threshold for the set (odsF), as in the benchmark of BSDS.

At every threshold the predicted edges are thinned and matched one to one with the true edges, as many pixels as
possible within a tolerance. A matched predicted pixel is right, and a matched true pixel is found. True edges are
thinned, too, as in code for PASCAL-Context, so that a perfect prediction has an F of 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array
from semisfl_jax.tasks import scores
from semisfl_jax.tasks.scores import known_pixels
from semisfl_jax.tasks.task import ODSF, Scorer

# A pixel is an edge if its probability is above the threshold. BSDS has 99 thresholds; with 31, predictions and truth
# fit the 32 bits of a word and are thinned together
THRESHOLDS = np.arange(1, 32) / 32
TOLERANCE = 0.0075  # share of an image's diagonal, the most between the centers of matched pixels
TRUE_EDGE = 128  # in a code: the pixel is on a true edge; the rest counts the thresholds that its probability exceeds
AT_ONCE = 2**20  # pixels that are thinned and matched at a time
# Row and column of the 8 neighbors, from the right one on, counterclockwise
NEIGHBORS = ((0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1), (1, 0), (1, 1))


def scorer() -> Scorer:
    """Builds the scorer of odsF, from counts over the whole set."""
    return Scorer(_count, _finish)


def thin(maps: Array) -> Array:
    """Thins edges to a width of one pixel, as Guo and Hall (1989) do, like MATLAB's bwmorph and scikit-image's thin.

    `maps` is [B, H, W] of integers, in which every bit is a map of its own.
    """

    def step(maps: Array, turn: int) -> Array:
        """Removes pixels at the upper right, or after a half turn at the lower left."""
        height, width = maps.shape[1:]
        wide = jnp.pad(maps, ((0, 0), (1, 1), (1, 1)))
        n = [wide[:, 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in NEIGHBORS]
        starts = [~n[k] & (n[k + 1] | n[(k + 2) % 8]) for k in (0, 2, 4, 6)]  # of the edges that meet at the pixel
        one = (starts[0] ^ starts[1] ^ starts[2] ^ starts[3]) & ~(starts[0] & starts[1] | starts[2] & starts[3])
        pairs = [[n[k] | n[(k + 1) % 8] for k in range(first, 8, 2)] for first in (0, 1)]
        several, full = zip(*map(_two_and_four, pairs), strict=True)  # neither an end nor inside
        e, ne, north, se = (n[(k + turn) % 8] for k in (0, 1, 2, 7))
        return maps & ~(one & several[0] & several[1] & ~(full[0] & full[1]) & ~((ne | north | ~se) & e))

    def both(state: tuple[Array, Array]) -> tuple[Array, Array]:
        thinner = step(step(state[0], 0), 4)
        return thinner, jnp.any(thinner != state[0])

    return jax.lax.while_loop(lambda state: state[1], both, (maps, jnp.bool_(True)))[0]


def _two_and_four(bits: list[Array]) -> tuple[Array, Array]:
    """Returns whether at least two bits are set, and whether all four are."""
    a, b, c, d = bits
    return a & b | c & d | (a | b) & (c | d), a & b & c & d


def _count(outputs: Array, targets: Array, valid: Array, sizes: Array | None = None) -> tuple[Array, Array]:
    """Encodes all pixels, [B, H, W] uint8, 0 where they do not count, beside the `sizes` [B, 2] of the images."""
    known = known_pixels(targets, valid)
    probability = scores.bilinear(jax.nn.sigmoid(outputs[..., 0]), targets.shape[1:], sizes)
    exceeded = jnp.searchsorted(jnp.asarray(THRESHOLDS, jnp.float32), probability, side='left')
    codes = jnp.where(known, exceeded + TRUE_EDGE * (targets == 1), 0).astype(jnp.uint8)
    whole = jnp.broadcast_to(jnp.array(targets.shape[1:], jnp.int32), (len(targets), 2))
    return codes, whole if sizes is None else sizes


@jax.jit
def _thinned(codes: Array) -> Array:
    """Thins maps to [B, H, W] uint32: bit t is the prediction above threshold t, the last bit the truth."""
    exceeded = (codes % TRUE_EDGE).astype(jnp.uint32)
    above = jnp.left_shift(jnp.uint32(1), exceeded) - 1
    return thin(above | (codes // TRUE_EDGE).astype(jnp.uint32) << len(THRESHOLDS))


def _finish(counts: Any) -> dict[str, float]:
    codes, sizes = (x.reshape(-1, *x.shape[2:]) for x in counts)
    at_once = min(len(codes), max(1, AT_ONCE // codes[0].size))
    hits, predicted, true = np.zeros(len(THRESHOLDS), np.int64), np.zeros(len(THRESHOLDS), np.int64), 0
    for start in range(0, len(codes), at_once):
        block = np.zeros((at_once, *codes.shape[1:]), np.uint8)  # one shape, so that it compiles once
        part = codes[start : start + at_once]
        block[: len(part)] = part
        radii = TOLERANCE * np.hypot(*sizes[start : start + at_once].T)
        matched = _matched(np.asarray(_thinned(block))[: len(part)], radii)
        hits, predicted, true = hits + matched[0], predicted + matched[1], true + matched[2]
    return {ODSF.name: float(np.max(2 * hits / (predicted + true))) if true else float('nan')}


def _matched(maps: np.ndarray, radii: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Counts matched and predicted pixels [thresholds], and pixels on true edges, in `maps` from `_thinned`.

    `radii` [B] is the tolerance in pixels.
    """
    near = _near(maps >> len(THRESHOLDS) > 0, radii)
    matchable = np.diff(near.indptr) > 0
    pixels = np.flatnonzero(maps)
    bits = maps.reshape(-1)[pixels]
    hits, predicted = np.zeros((2, len(THRESHOLDS)), np.int64)
    for t in range(len(THRESHOLDS)):
        edges = pixels[bits >> t & 1 > 0]
        # All images at once: pixels of different images are never near each other
        hits[t] = largest_matching(near[edges[matchable[edges]]])
        predicted[t] = len(edges)
    return hits, predicted, near.shape[1]


def largest_matching(pairs: Any) -> int:
    """Returns how many rows of a sparse matrix can each take a column of their own in which they have an entry.

    Solved as a flow from a source through rows and columns to a sink: SciPy's `maximum_bipartite_matching` retries
    paths that have led nowhere, and may take minutes for one image where every pixel has many candidates.
    """
    from scipy import sparse  # slow to import, and only scores of edges need it
    from scipy.sparse import csgraph

    rows, columns = pairs.shape
    source, sink = rows + columns, rows + columns + 1
    starts = np.concatenate([pairs.indptr, pairs.nnz + np.arange(1, columns + 1), [pairs.nnz + columns + rows] * 2])
    ends = np.concatenate([rows + pairs.indices, np.full(columns, sink), np.arange(rows)]).astype(np.int32)
    graph = sparse.csr_array((np.ones(len(ends), np.int32), ends, starts.astype(np.int32)), shape=(sink + 1, sink + 1))
    return csgraph.maximum_flow(graph, source, sink).flow_value


def _near(truth: np.ndarray, radii: np.ndarray) -> Any:
    """Returns which pixels may be matched with which true ones: [B * H * W, true pixels], a sparse matrix."""
    from scipy import sparse  # slow to import, and only scores of edges need it

    images, height, width = truth.shape
    image, y, x = np.nonzero(truth)
    reach = int(radii.max(initial=0))
    rows, columns = [], []
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            row, column = y + dy, x + dx
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            pair = np.flatnonzero(inside & (np.hypot(dy, dx) <= radii[image]))
            rows.append((image[pair] * height + row[pair]) * width + column[pair])
            columns.append(pair)
    pairs = np.concatenate(rows), np.concatenate(columns)
    return sparse.csr_array((np.ones(len(pairs[0]), np.int8), pairs), shape=(images * height * width, len(image)))
