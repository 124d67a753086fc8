"""FedSwitch's choice of who labels a client's images: the teacher or the student.

Only the abstract of the FedSwitch paper (arXiv 2301.10114) was available; it and the SemiSFL paper say that it switches
adaptively between the two, for better labels on non-IID clients, and that a hyper-parameter sets the boundary between
IID and non-IID. The rule here is a reconstruction: the confident pseudo-labels of a client are counted by class, and if
their shares h differ from the uniform distribution by more than beta_iid,

    KL(h || uniform) = log K + sum_k h_k log h_k  >  beta_iid,

the client counts as non-IID and the teacher labels its images; otherwise the student does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array

MODES = ('switch', 'teacher', 'student')  # who labels: chosen by the rule, or fixed


def histogram(labels: Array, counted: Array, classes: int) -> Array:
    """Class counts of labels [..., B] int32, restricted to rows with counted [..., B] -> [..., K] float32."""
    return jnp.sum(jax.nn.one_hot(labels, classes) * counted[..., None], axis=-2)


def skew(counts: Array) -> Array:
    """KL(h || uniform) in nats of counts [..., K] -> [...]: 0 if all classes are equally frequent.

    A single class gives the maximum, log K, and so do zero counts, since there is no evidence of IID data yet.
    """
    classes = counts.shape[-1]
    total = jnp.sum(counts, axis=-1, keepdims=True)
    some = jnp.maximum(total, 1.0)
    excess = (counts * classes - total) / some  # K h_k - 1, in integers: equal counts have a skew of exactly 0
    terms = jnp.where(counts > 0, counts / some * jnp.log1p(jnp.where(counts > 0, excess, 0.0)), 0.0)
    return jnp.where(total[..., 0] > 0, jnp.sum(terms, axis=-1), jnp.log(float(classes)))


def by_teacher(counts: Array, beta_iid: float) -> Array:
    """Whether the teacher labels: counts [..., K] -> bool [...]. At exactly `beta_iid` the student labels."""
    return skew(counts) > beta_iid
