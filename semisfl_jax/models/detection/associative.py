"""Associative embedding (Newell, Huang and Deng, Associative Embedding, 2017): joints as heat maps, people by tags.

A model has 2 * J outputs for each pixel: the heat map and the tag of each of J joints. Joints of one person have
similar tags. What the paper leaves open is as in the authors' code (pose-ae-train), except that joints keep their
fractions of pixels.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array

SIGMA, SIDE = 2.0, 128  # of the Gaussian around a joint, in pixels of a map of this side
TAG_WEIGHT = 1e-3  # of the two losses of tags beside that of heat maps
SEEN, SAME = 0.03, 1.0  # of `group`: the least heat of a joint, and the largest distance of tags within a person


def heat_maps(joints: Array, visible: Array, height: int, width: int, sigma: float = SIGMA) -> Array:
    """Puts a Gaussian around every joint, and takes the maximum over people.

    Args:
      joints: [G, J, 2], x and y in pixels of the map.
      visible: [G, J] bool.
      height: of the map.
      width: of the map.
      sigma: of the Gaussian, in pixels of the map.

    Returns:
      [height, width, J] in [0, 1].
    """
    x, y = (
        jnp.exp(-((jnp.arange(length) - joints[..., axis, None]) ** 2) / (2 * sigma**2))
        for axis, length in enumerate((width, height))
    )
    return jnp.max(y[:, :, :, None] * x[:, :, None] * visible[..., None, None], axis=0).transpose(1, 2, 0)


def losses(outputs: Array, joints: Array, visible: Array, known: Array, sigma: float = SIGMA) -> dict[str, Array]:
    """Computes the losses of an image (Newell et al., 2017, Eq. 1, in the form of the authors' code).

    'pull' is the squared distance of tags from the mean of their person, averaged over joints and people; 'push' is
    exp(-d^2) of the means of two people, averaged over pairs and halved.

    Args:
      outputs: [h, w, 2 * J], heat maps first.
      joints: [G, J, 2], x and y in pixels of the map, within it where visible.
      visible: [G, J] bool; people without visible joints do not count.
      known: [h, w] bool, False where people are not annotated: heat does not count there.
      sigma: as in `heat_maps`.

    Returns:
      'heat', 'pull' and 'push', [] each, weighted.
    """
    height, width, count = outputs.shape[0], outputs.shape[1], outputs.shape[2] // 2
    error = outputs[..., :count] - heat_maps(joints, visible, height, width, sigma)
    heat = jnp.mean(error**2 * known[..., None])
    at = jnp.clip(jnp.round(joints).astype(jnp.int32), 0, jnp.array([width - 1, height - 1]))
    tags = outputs[at[..., 1], at[..., 0], count + jnp.arange(count)]  # [G, J]
    number = jnp.maximum(visible.sum(axis=1), 1)
    means = jnp.sum(tags * visible, axis=1) / number
    people = visible.any(axis=1)
    total = people.sum()
    distances = jnp.sum((tags - means[:, None]) ** 2 * visible, axis=1) / number
    near = jnp.exp(-((means[:, None] - means) ** 2))
    pairs = people[:, None] & people & ~jnp.eye(len(people), dtype=bool)
    push = jnp.sum(near * pairs) / jnp.maximum(total * (total - 1), 1) / 2
    return {'heat': heat, 'pull': TAG_WEIGHT * jnp.sum(distances) / jnp.maximum(total, 1), 'push': TAG_WEIGHT * push}


def peaks(outputs: Array, keep: int) -> Array:
    """Returns the highest local maxima (3 x 3) of each heat map: x, y, heat and tag, [J, keep, 4], best first.

    Args:
      outputs: [h, w, 2 * J], as in `losses`.
      keep: how many of each joint; where there are fewer, the heat is 0.
    """
    height, width, count = outputs.shape[0], outputs.shape[1], outputs.shape[2] // 2
    heat = outputs[..., :count]
    highest = jax.lax.reduce_window(heat, -jnp.inf, jax.lax.max, (3, 3, 1), (1, 1, 1), 'SAME')
    flat = jnp.where(heat == highest, jnp.maximum(heat, 0), 0).reshape(height * width, count).T
    best, index = jax.lax.top_k(flat, keep)
    tags = jnp.take_along_axis(outputs[..., count:].reshape(height * width, count).T, index, axis=1)
    return jnp.stack([index % width, index // width, best, tags], axis=-1)


def group(
    found: np.ndarray, least: float = SEEN, same: float = SAME, order: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Groups joints to people, on the host: joint by joint, each is given to the person with the nearest mean tag.

    The pairs of a joint's peaks and people have the smallest sum of distances, rounded, and of better heat among
    equals; a peak too far from the people that are left starts one.

    Args:
      found: [J, K, 4] of `peaks`.
      least: the heat that a peak has to exceed.
      same: the distance of tags below which a peak belongs to a person.
      order: in which joints are given to people, those of the head first; None: as they are.

    Returns:
      People [P, J, 3], x, y and heat, 0 where a joint is missing, and their scores [P], the mean heat over all joints.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import, and only this needs it

    people: list[np.ndarray] = []
    tags: list[list[float]] = []
    for joint in range(len(found)) if order is None else order:
        rows = found[joint][found[joint][:, 2] > least]
        means = np.array([np.mean(of_person) for of_person in tags])
        distances = np.abs(rows[:, None, 3] - means[None])  # [peaks, people]
        costs = 100 * np.round(distances) - rows[:, None, 2]
        given = dict(zip(*linear_sum_assignment(costs), strict=True))
        for index, row in enumerate(rows):
            person = given.get(index)
            if person is None or distances[index, person] >= same:
                person = len(people)
                people.append(np.zeros((len(found), 3)))
                tags.append([])
            people[person][joint] = row[:3]
            tags[person].append(float(row[3]))
    joined = np.array(people).reshape(-1, len(found), 3)
    return joined, joined[..., 2].mean(axis=1)
