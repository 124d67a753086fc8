"""The two regulators of FedDure (Bai et al., AAAI 2024), which decide how much unlabeled images count at a client.

F-reg, the fine-grained one, is a small network f_w with parameters w that gives every unlabeled image a factor in
(0, 1), from the class probabilities that a model predicts for it. C-reg, the coarse-grained one, is a second model with
parameters phi that learns from the pseudo-labels alone; the change d of its cross-entropy on labeled images says
whether they helped. Equation numbers are those of the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax.core import rng
from semisfl_jax.core.teacher import count_pseudo_labels, pseudo_label_rates
from semisfl_jax.core.types import Array, Metrics, SplitParams
from semisfl_jax.models.layers import torch_uniform

Fine = Any  # w: {'hidden': {'kernel': [K, hidden], 'bias': [hidden]}, 'out': {'kernel': [hidden, 1], 'bias': [1]}}


class Unlabeled(NamedTuple):
    """The unlabeled images of a batch, R of them, as seen by a model that learns from their pseudo-labels."""

    probabilities: Array  # [R, K], its predictions
    # factors [R] -> mean over the images of factor times gradient of the cross-entropy; linear in the factors
    gradient: Callable[[Array], SplitParams]


def init_fine(key: Array, classes: int, hidden: int) -> Fine:
    """F-reg before the first round, a network K -> hidden -> 1, initialized like PyTorch's linear layers.

    Args:
      key: for the initial weights.
      classes: K.
      hidden: number of hidden units.

    Returns:
      Kernels [K, hidden] and [hidden, 1], biases [hidden] and [1].
    """
    w = {}
    for name, inputs, outputs in (('hidden', classes, hidden), ('out', hidden, 1)):
        uniform, layer_key = torch_uniform(inputs), rng.fold(key, name)
        w[name] = {
            'kernel': uniform(rng.fold(layer_key, 'kernel'), (inputs, outputs)),
            'bias': uniform(rng.fold(layer_key, 'bias'), (outputs,)),
        }
    return w


def weigh(w: Fine, probabilities: Array) -> Array:
    """F-reg's factors [R] of images with these class probabilities [R, K]."""
    features = jax.nn.relu(probabilities @ w['hidden']['kernel'] + w['hidden']['bias'])
    return jax.nn.sigmoid(features @ w['out']['kernel'] + w['out']['bias'])[:, 0]


def look(rows: Callable[[SplitParams], tuple[Array, Array]], parameters: SplitParams) -> Unlabeled:
    """The predictions and the gradient of a model with these parameters for the unlabeled images.

    `rows` maps parameters to the images' cross-entropies [R] against their pseudo-labels, and probabilities [R, K].
    """
    values, pullback, probabilities = jax.vjp(rows, parameters, has_aux=True)
    return Unlabeled(probabilities, lambda factors: pullback((factors / values.size).astype(values.dtype))[0])


def fine_gradient(
    w: Fine, unlabeled: Unlabeled, labeled: Callable[[SplitParams], Array], parameters: SplitParams, rate: Array
) -> Fine:
    """The gradient of F-reg (Eq. 6, 7): of the labeled images' loss after a step on the weighted unlabeled ones.

        phi-(w) = phi - rate mean_i H_i(w) grad CE_i(phi),    H_i(w) = f_w(probabilities_i)
        d CE(y, f(x; phi-(w))) / d w

    Exact, and without second derivatives: H_i is a factor and not differentiated in phi, so phi- is linear in the
    factors, and its derivative by H_i is -rate / R times the gradient of CE_i. Reverse-mode differentiation transposes
    that linear map, which takes about as long as the map.

    Args:
      w: F-reg.
      unlabeled: as seen with `parameters`.
      labeled: parameters -> cross-entropy [] of the labeled images.
      parameters: phi.
      rate: step size [].
    """

    def loss(w: Fine) -> Array:
        gradient = unlabeled.gradient(weigh(w, unlabeled.probabilities))
        return labeled(jax.tree.map(lambda phi, g: phi - rate * g, parameters, gradient))

    return jax.grad(loss)(w)


def count(labels: Array, confident: Array, truth: Array, guessed: Array, weight: Array) -> dict[str, Array]:
    """Counts of a batch, for `rates`: those of `count_pseudo_labels`, and of right and wrong pseudo-labels.

    Args:
      labels: [B] int32 pseudo-labels.
      confident: [B] bool, whether a label counts.
      truth: [B] int32 true classes, negative where unknown.
      guessed: [B] bool, whether a row is an unlabeled image.
      weight: [B] F-reg's factors.

    Returns:
      Numbers []; `right` and `wrong` are of rows whose truth is known, `right_weight` and `wrong_weight` sums of their
      factors.
    """
    right, wrong = (guessed & (truth >= 0) & hit for hit in (truth == labels, truth != labels))
    return count_pseudo_labels(labels, confident, truth, guessed) | {
        'right': jnp.sum(right),
        'wrong': jnp.sum(wrong),
        'right_weight': jnp.sum(weight * right),
        'wrong_weight': jnp.sum(weight * wrong),
    }


def rates(counts: dict[str, Array]) -> Metrics:
    """The metrics of a round from the results of `count`, summed over batches and clients."""
    means = {f'weight_{kind}': counts[f'{kind}_weight'] / counts[kind] for kind in ('right', 'wrong')}  # NaN: none
    return pseudo_label_rates(counts) | means
