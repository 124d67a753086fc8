"""Panoptic FPN: the semantic branch beside a twin in NumPy, and the merging rule by hand."""

import jax
import numpy as np

from semisfl_jax.models.detection import panoptic
from tests.helpers import convolution, dense_twin


def test_the_semantic_branch_is_that_of_its_paper():
    rng = np.random.default_rng(0)
    shapes = (12, 10), (6, 5), (3, 3), (2, 2)
    pyramid = [rng.normal(size=(1, *shape, 3)).astype(np.float32) for shape in shapes]
    branch = panoptic.SemanticBranch(5, width=8)
    variables = branch.init(jax.random.key(0), pyramid, False)
    variables = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), variables)
    layers = jax.tree.map(np.asarray, variables['params'])

    def step(x, name):
        x = convolution.convolve(x, layers[f'conv{name}']['kernel'], 1)
        grouped = x.reshape(*x.shape[:3], 2, 4)  # four channels, as 128 in 32 groups
        mean, var = (f(grouped, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
        x = ((grouped - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
        return dense_twin.relu(x * layers[f'norm{name}']['scale'] + layers[f'norm{name}']['bias'])

    total = step(pyramid[0], '0_0')
    for level in (1, 2, 3):
        x = pyramid[level]
        for index in range(level):
            x = dense_twin.resize(step(x, f'{level}_{index}'), *shapes[level - index - 1])
        total = total + x
    expected = convolution.convolve(total, layers['head']['kernel'], 0) + layers['head']['bias']
    np.testing.assert_allclose(branch.apply(variables, pyramid, False), expected, atol=1e-4)


def test_the_semantic_loss_leaves_out_what_has_no_truth():
    """Logits of 0 for 4 classes cost log 4."""
    targets = np.array([[[0, 3], [255, 255]]])
    np.testing.assert_allclose(panoptic.semantic_loss(np.zeros((1, 1, 1, 4)), targets, 255), np.log(4), rtol=1e-6)
    assert panoptic.semantic_loss(np.zeros((1, 1, 1, 4)), 0 * targets + 255, 255) == 0


def test_better_instances_come_first_and_stuff_fills_what_is_free():
    masks = np.zeros((4, 4, 10), bool)
    masks[0, :, :4] = masks[1, :, 2:6] = masks[2, :, 3:5] = masks[3, :, 8:] = True
    stuff = np.full((4, 10), 9)
    stuff[:, 6] = 8
    stuff[0, 9] = -1
    scores, labels = np.array([0.9, 0.8, 0.7, 0.4]), np.array([1, 2, 3, 1])
    segments, classes = panoptic.merge(masks, scores, labels, stuff, area=5)
    # The second keeps half of its pixels, the third none; the fourth's score is too low; 4 pixels of stuff 8 are few
    assert classes == [1, 2, 9]
    assert segments[0].tolist() == [1, 1, 1, 1, 2, 2, 0, 3, 3, 0]
    assert segments[1].tolist() == [1, 1, 1, 1, 2, 2, 0, 3, 3, 3]
    segments, classes = panoptic.merge(masks, scores, labels, stuff, overlap=0.4, area=4)
    assert classes == [1, 8, 9]
    assert segments[0].tolist() == [1, 1, 1, 1, 3, 3, 2, 3, 3, 0]
