"""FedSwitch's choice of who labels a client's images: the teacher or the student.

Of the FedSwitch paper (arXiv 2301.10114) only the abstract was at hand; it and the SemiSFL paper say that
it switches adaptively between the two, for better labels on non-IID clients, and that a hyper-parameter says how IID is
IID. The rule here is a reconstruction: the confident pseudo-labels of a client are counted by class, and where their
shares h differ from uniform ones by more than beta_iid,

    KL(h || uniform) = log K + sum_k h_k log h_k  >  beta_iid,

the client counts as non-IID and the teacher labels its images; else the student does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from semisfl_jax.types import Array

MODES = ('switch', 'teacher', 'student')  # who labels: as the rule says, or always the same


def histogram(labels: Array, counted: Array, classes: int) -> Array:
    """How often each class occurs: labels [..., B] int32, those with counted [..., B] alone -> [..., K] float32."""
    return jnp.sum(jax.nn.one_hot(labels, classes) * counted[..., None], axis=-2)


def skew(counts: Array) -> Array:
    """KL(h || uniform) in nats of counts [..., K] -> [...]: 0 where all classes are equally frequent.

    One class alone gives log K, the highest value, and so do no counts at all: nothing speaks for IID data yet.
    """
    classes = counts.shape[-1]
    total = jnp.sum(counts, axis=-1, keepdims=True)
    some = jnp.maximum(total, 1.0)
    excess = (counts * classes - total) / some  # K h_k - 1, in integers: equal counts have a skew of exactly 0
    terms = jnp.where(counts > 0, counts / some * jnp.log1p(jnp.where(counts > 0, excess, 0.0)), 0.0)
    return jnp.where(total[..., 0] > 0, jnp.sum(terms, axis=-1), jnp.log(float(classes)))


def by_teacher(counts: Array, beta_iid: float) -> Array:
    """Whether the teacher labels: counts [..., K] -> bool [...]. At exactly `beta_iid` it is the student."""
    return skew(counts) > beta_iid
