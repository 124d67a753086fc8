"""SemiSFL + client priors, a method of this package without a paper: teacher labels, corrected for each client.

A client holds few classes, and the same ones in every round. The pseudo-labels it has received show which: pi are the
shares of its confident pseudo-labels, with one added to the count of each class. If clients differ only in their shares
of classes, Bayes' rule multiplies the model's posterior by the ratio of the priors. So the teacher's logit of class k
gets

    log(pi_client(k) / pi_cohort(k)),

where pi_cohort is the mean over the active clients. The corrected logits give both label and confidence. Images without
a confident label have no clustering regularization (docs/client-priors.md).
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from semisfl_jax import core
from semisfl_jax.algorithms import Look, option, ranges, register
from semisfl_jax.algorithms.semisfl import METHOD as SEMISFL
from semisfl_jax.algorithms.semisfl import semisfl
from semisfl_jax.core import trees


def semisfl_prior(
    model: core.SplitModel,
    views: core.Views,
    hparams: core.HParams,
    axis: core.ClientAxis = core.LOCAL_CLIENTS,
    labeler: core.Labeler | None = None,
) -> core.Algorithm:
    """Builds SemiSFL + client priors.

    A round is SemiSFL's with a different labeler. `State.clients` holds counts [N, K] of confident pseudo-labels by
    client and class. With `pseudo_labels` 'true' or 'none' there is nothing to correct, and rounds are SemiSFL's.

    Args:
      model: the model, cut between clients and server.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `Prior` as options.
      axis: the clients of a round; by default, all are local.
      labeler: labels the clients' images, with counts by client and class as its state; None: that of `build_labeler`.

    Returns:
      The method as pure functions. Its headline model is the teacher.
    """
    if hparams.pseudo_labels != 'method':
        return semisfl(model, views, hparams, axis)
    corrected = semisfl(model, views, hparams, axis, labeler or build_labeler(hparams, axis))

    def init(key: Array) -> core.State:
        state = corrected.init(key)
        return state.replace(clients=jnp.zeros((hparams.num_clients, core.num_classes(model, state.student.top))))

    return corrected._replace(init=init)


def build_labeler(hparams: core.HParams, axis: core.ClientAxis = core.LOCAL_CLIENTS) -> core.Labeler:
    """Builds the labeler: the teacher, corrected by the pseudo-labels of earlier iterations.

    Its state is their counts [A', K]. A pseudo-label counts from the next iteration on.

    Args:
      hparams: the hyper-parameters, with `Prior` as options.
      axis: the clients of a round, whose mean prior the correction needs.

    Returns:
      A labeler whose counts persist from round to round.
    """
    options = hparams.options

    def target(weak: core.WeakViews, counts: Array) -> Array:
        correction = options.weight * log_ratio(counts, weak.weight, options.divisor, axis)
        return weak.teacher_logits + jnp.repeat(correction, len(weak.unlabeled) // len(weak.ids), axis=0)

    return core.Labeler(
        core.reaches(hparams.threshold),
        target,
        start=lambda ids, state: options.decay * state.clients[ids],
        update=core.count_confident,
        keeps=True,
        unsure_anchors=options.all_anchors,
    )


def log_ratio(counts: Array, weight: Array, divisor: str, axis: core.ClientAxis) -> Array:
    """Returns log(pi_client / pi_cohort) [A', K] of the local clients.

    Args:
      counts: confident pseudo-labels by client and class [A', K].
      weight: [A'], 1 for clients that enter the cohort's mean, else 0.
      divisor: 'cohort', or 'none' for log(pi_client) alone.
      axis: gathers the clients in the same order on any number of devices.
    """
    shares = (counts + 1.0) / jnp.sum(counts + 1.0, axis=-1, keepdims=True)
    if divisor == 'none':
        return jnp.log(shares)
    cohort_shares, weight = axis.all_gather((shares, weight))
    return jnp.log(shares / trees.weighted_mean(cohort_shares, weight, otherwise=jnp.ones(counts.shape[-1])))


# --- the record

LABELED_OTHERWISE = {'pseudo_labels': ('true', 'none')}
UNCORRECTED = {**LABELED_OTHERWISE, 'prior.weight': 0}


# fmt: off
@dataclasses.dataclass(frozen=True)
class Prior:
    """The keys of `config.prior`."""

    weight: float = option(1.0, at_least=0, idle=LABELED_OTHERWISE, help='factor of the log-ratio of priors; 0: labels '
        'are those of SemiSFL')
    decay: float = option(0.5, at_least=0, at_most=1, idle=UNCORRECTED, help="share of a client's counts that passes "
        'from one of its rounds to the next; 0: each round counts anew')
    divisor: str = option('cohort', choices=('cohort', 'none'), idle=UNCORRECTED, help="divides a client's shares of "
        "classes: 'cohort': their mean over the active clients | 'none': nothing")
    all_anchors: bool = option(False, idle=LABELED_OTHERWISE, help='True: images without a confident label also have '
        'clustering regularization, as in SemiSFL')
# fmt: on


METHOD = dataclasses.replace(
    SEMISFL,
    name='semisfl_prior',
    build=semisfl_prior,
    title='SemiSFL + client priors',
    source='a method of this package without a paper: SemiSFL (Xu et al., arXiv 2307.15870) with corrected labels',
    options=Prior,
    k_s_rule='coverage',
    group='prior',
    official='it has no paper',
    look=Look('#6677FF', '8', '--'),
    ranges={**SEMISFL.ranges, 'prior.decay': ranges.linear(0.0, 1.0)},
)
register(METHOD)
