"""SemiSFL + client priors, of this package and of no paper: the teacher's labels, corrected by what a client has.

A client has few of the classes, and the same ones in every round. What the server has given it so far tells which: pi
are the shares of its confident pseudo-labels, each class counted once more. By Bayes' rule, where only the shares of
classes differ, the posterior of a client is that of the model times the ratio of the priors, so the teacher's logit of
class k gets

    log(pi_client(k) / pi_cohort(k)),

pi_cohort being the mean over the active clients. Label and confidence are of the sum. An image without a confident
label has no clustering regularization (docs/client-priors.md).
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from semisfl_jax import core
from semisfl_jax.algorithms.method import Look
from semisfl_jax.algorithms.ranges import linear
from semisfl_jax.algorithms.registry import register
from semisfl_jax.algorithms.semisfl import METHOD as SEMISFL
from semisfl_jax.algorithms.semisfl import semisfl
from semisfl_jax.core import trees
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.keys import key as option
from semisfl_jax.core.state import num_classes
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, Array, ClientAxis, SplitModel, Views

LABELED_OTHERWISE = {'pseudo_labels': ('true', 'none')}
UNCORRECTED = {**LABELED_OTHERWISE, 'prior.weight': 0}


@dataclasses.dataclass(frozen=True)
class Prior:
    """`config.prior`."""

    weight: float = option(
        1.0,
        'factor of the log of the ratio; 0: the labels are those of SemiSFL',
        at_least=0,
        idle=LABELED_OTHERWISE,
    )
    decay: float = option(
        0.5,
        "share of a client's counts that is kept from one of its rounds to the next; 0: those of the round alone",
        at_least=0,
        at_most=1,
        idle=UNCORRECTED,
    )
    divisor: str = option(
        'cohort',
        "by which a client's shares of classes are divided: 'cohort': their mean over the active clients | 'none'",
        choices=('cohort', 'none'),
        idle=UNCORRECTED,
    )
    all_anchors: bool = option(
        False,
        'True: images without a confident label have clustering regularization, too, as in SemiSFL',
        idle=LABELED_OTHERWISE,
    )


def semisfl_prior(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds SemiSFL + client priors.

    A round is that of SemiSFL with another labeler. `State.clients` are counts [N, K] of the confident pseudo-labels
    of every client and class. With `pseudo_labels` 'true' and 'none' nothing is corrected: rounds are SemiSFL's.
    """
    if hparams.pseudo_labels != 'method':
        return semisfl(model, views, hparams, axis)
    uncounted = semisfl(model, views, hparams, axis, build_labeler(hparams, axis))

    def init(key: Array) -> core.State:
        state = uncounted.init(key)
        return state.replace(clients=jnp.zeros((hparams.num_clients, num_classes(model, state.student.top))))

    return uncounted._replace(init=init)


def build_labeler(hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> core.Labeler:
    """The teacher, corrected by the counts [A', K] of the iterations before; its own labels count in the next."""

    def start(ids: Array, state: core.State) -> Array:
        return hparams.options.decay * state.clients[ids]

    def label(weak: core.WeakViews, counts: Array) -> core.Labels:
        classes = counts.shape[-1]
        correction = log_ratio(counts, weak.weight, hparams.options.divisor, axis)
        correction = jnp.repeat(hparams.options.weight * correction, len(weak.truth) // len(weak.ids), axis=0)
        logits = weak.teacher_logits + correction
        labels, confident = core.assign_pseudo_labels(hparams, logits, weak.truth)
        counts += weak.label_counts(labels, confident, classes)
        if not hparams.options.all_anchors:
            labels = jnp.where(confident, labels, classes)  # of no class: no key is a positive, so there is no C
        return core.Labels(logits, labels, confident, counts)

    return core.Labeler(label, start, keeps=True)


def log_ratio(counts: Array, weight: Array, divisor: str, axis: ClientAxis) -> Array:
    """log(pi_client / pi_cohort) [A', K] of the counts [A', K] of the local clients, or with `divisor` 'none' the log
    of pi_client. In the mean are the clients of `weight` [A'] 1, in the same order on any number of devices."""
    shares = (counts + 1.0) / jnp.sum(counts + 1.0, axis=-1, keepdims=True)
    if divisor == 'none':
        return jnp.log(shares)
    of_all, weight = axis.all_gather((shares, weight))
    return jnp.log(shares / trees.weighted_mean(of_all, weight, otherwise=jnp.ones(counts.shape[-1])))


METHOD = register(
    dataclasses.replace(
        SEMISFL,
        name='semisfl_prior',
        build=semisfl_prior,
        title='SemiSFL + client priors',
        source='a method of this package, of no paper: SemiSFL (Xu et al., arXiv 2307.15870) with corrected labels',
        options=Prior,
        k_s_rule='coverage',
        group='prior',
        official='it is of no paper',
        look=Look('#6677FF', '8', '--'),
        ranges={**SEMISFL.ranges, 'prior.decay': linear(0.0, 1.0)},
    )
)
