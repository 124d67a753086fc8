"""A client's objective on one batch: cross-entropy on its labels, consistency on unlabeled images, or both."""

import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

from semisfl_jax.core import losses, rng
from semisfl_jax.core.hparams import HParams, Local
from semisfl_jax.core.local import Batch, forward, guessed_rows
from semisfl_jax.core.state import with_parameters
from semisfl_jax.core.teacher import confidence_threshold, count_pseudo_labels, hard_labels, label_logits
from semisfl_jax.core.types import Array, LossValue, SplitModel, SplitParams, Views

# A rule: logits [B, K] of the labeler, logits [B, K] of the model in training, weight [B] -> loss [], labels [B],
# confident [B]
Rule = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


def fixmatch(threshold: float) -> Rule:
    """Builds FixMatch (Sohn et al., 2020): cross-entropy with hard labels on confident rows, averaged over all rows."""

    def rule(weak: Array, strong: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, confident = hard_labels(weak, threshold)
        return losses.row_mean(losses.consistency_rows(strong, labels, confident), weight), labels, confident

    return rule


def uda(threshold: float, temperature: float) -> Rule:
    """Builds UDA (Xie et al., 2020): KL(p || q) from the weak view's sharpened distribution p to the strong view's q.

    p = softmax(logits / temperature), with no gradient. Confidence is measured before sharpening and must be above the
    threshold; rows that are not confident add 0 and count in the mean. The authors' scripts for images use a threshold
    of 0.8 and a temperature of 0.4.

    Args:
      threshold: 0 disables masking.
      temperature: 1 disables sharpening.

    Returns:
      The rule.
    """

    def rule(weak: Array, strong: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, _ = hard_labels(weak, threshold)
        confident = jnp.max(jax.nn.softmax(weak), axis=-1) > threshold
        target = jax.nn.log_softmax(weak / temperature)
        rows = jnp.sum(jnp.exp(target) * (target - jax.nn.log_softmax(strong)), axis=-1)
        return losses.row_mean(rows * confident, weight), labels, confident

    return rule


def mean_teacher(threshold: float) -> Rule:
    """Builds mean teacher (Tarvainen and Valpola, 2017): the mean squared difference of the predicted probabilities.

    It is a mean over classes, too, as in the authors' code. Every row counts; with a `threshold` of infinity, none.
    """

    def rule(teacher: Array, student: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, confident = hard_labels(teacher, threshold)
        rows = jnp.mean((jax.nn.softmax(student) - jax.nn.softmax(teacher)) ** 2, axis=-1)
        return losses.row_mean(rows * confident if threshold else rows, weight), labels, confident

    return rule


def build_rule(hparams: HParams) -> Rule:
    """Builds the rule of `local.objective`, for logits from `label_logits`."""
    if hparams.local.objective == 'uda':
        return uda(confidence_threshold(hparams), hparams.uda.temperature)
    if hparams.local.objective == 'mean_teacher':
        return mean_teacher(math.inf if hparams.pseudo_labels == 'none' else 0.0)
    return fixmatch(confidence_threshold(hparams))


def ramp(local: Local, round_index: Array) -> Array | float:
    """Returns the share of its weight that the unlabeled loss has in a round; 1 from round `local.ramp_rounds` on.

    Linear with 'pseudo_label' (Lee, 2013, Eq. 16), exp(-5 (1 - x)^2) at a share x of the ramp with 'mean_teacher'
    (Tarvainen and Valpola, 2017). Other objectives have no ramp.

    Args:
      local: `objective` and `ramp_rounds` are read.
      round_index: [], from 0.

    Returns:
      A share up to 1.
    """
    if not local.ramp_rounds or local.objective not in ('pseudo_label', 'mean_teacher'):
        return 1.0
    risen = jnp.minimum(round_index / local.ramp_rounds, 1.0)
    return risen if local.objective == 'pseudo_label' else jnp.exp(-5.0 * (1.0 - risen) ** 2)


def signal_threshold(schedule: str, progress: Array, classes: int) -> Array:
    """Computes the threshold of UDA's training signal annealing.

    Labeled images count only while their label's probability is at most eta = alpha (1 - 1 / K) + 1 / K, with s =
    `progress` and alpha = s, exp(5 (s - 1)) or 1 - exp(-5 s) for `schedule` 'linear', 'exp' or 'log'.

    Args:
      schedule: 'linear', 'exp', 'log', or 'off', whose threshold is infinite.
      progress: [] in [0, 1].
      classes: K.

    Returns:
      eta [].
    """
    alpha = {
        'off': lambda s: jnp.full_like(s, jnp.inf),
        'linear': lambda s: s,
        'exp': lambda s: jnp.exp(5.0 * (s - 1.0)),
        'log': lambda s: 1.0 - jnp.exp(-5.0 * s),
    }[schedule](progress)
    return alpha * (1.0 - 1.0 / classes) + 1.0 / classes


# A client's loss on one batch: parameters, student, the variables that label weak views, batch, key, round_index []
# (from 0, for schedules) -> what a `ClientLoss` returns
Objective: TypeAlias = Callable[[SplitParams, SplitParams, SplitParams, Batch, Array, Array], LossValue]


def build_objective(model: SplitModel, views: Views, hparams: HParams) -> Objective:
    """Builds the objective selected by `local.objective`.

    'supervised' is the cross-entropy of labeled images. All others are `semi_supervised`, with these labelers:

    - 'fixmatch', 'uda': the client's own model
    - 'pseudo_label': the received model, so an image has the same label all round (Lee, 2013, in federated learning as
      Fed-Pseudo in the comparison of Wang et al., 2021); without strong views, as in `plain`
    - 'mean_teacher': an EMA of the client's model (Tarvainen and Valpola, 2017; Fed-MT in that comparison); both models
      see weak views with Gaussian noise (`local.input_noise`), each with its own draw

    Args:
      model: the model.
      views: the views.
      hparams: the hyper-parameters.

    Returns:
      The objective.
    """
    kind = hparams.local.objective
    if kind == 'supervised':
        return supervised(model, views)
    seen = {'pseudo_label': plain(views), 'mean_teacher': views._replace(strong=views.weak)}.get(kind, views)
    return semi_supervised(model, seen, hparams, build_rule(hparams))


def plain(views: Views) -> Views:
    """Returns views for `semi_supervised` that label the image itself and train on a weak view."""
    return views._replace(weak=lambda key, images: images, strong=views.weak)


def supervised(model: SplitModel, views: Views) -> Objective:
    """Builds the mean cross-entropy on the supervised view; every row of a batch is labeled."""

    def objective(
        parameters: SplitParams,
        student: SplitParams,
        labeler: SplitParams,
        batch: Batch,
        key: Array,
        round_index: Array,
    ) -> LossValue:
        x = views.normalize(views.supervised(rng.fold(key, 'supervised'), batch.images))
        logits, updated = forward(model, with_parameters(student, parameters), x, rng.fold(key, 'dropout'), True)
        value = losses.cross_entropy(logits, batch.labels, jnp.ones(batch.labels.shape))
        return value, (updated, {'loss_local': value}, {})

    return objective


def semi_supervised(model: SplitModel, views: Views, hparams: HParams, rule: Rule) -> Objective:
    """Builds L_s + `consistency_weight` L_u: cross-entropy of the labeled rows, the rule's consistency of the rest.

    Each is a mean over its own rows. All rows pass through the model in one batch, labeled ones in the supervised view,
    the rest in a strong view. The objective's `labeler` holds the variables that label the weak views: the client's own
    model or a teacher. Without labels at the clients there is no L_s. In UDA with signal annealing, labeled rows count
    in L_s only while the probability of their label is at most the threshold, which rises until round `lr_rounds`. If
    the objective has a ramp (`ramp`), the weight of L_u rises over the first rounds.

    Args:
      model: the model.
      views: the views.
      hparams: the hyper-parameters.
      rule: the consistency.

    Returns:
      The objective.
    """
    head = hparams.labeled_rows  # rows of a batch that may have labels

    def objective(
        parameters: SplitParams,
        student: SplitParams,
        labeler: SplitParams,
        batch: Batch,
        key: Array,
        round_index: Array,
    ) -> LossValue:
        x, weak = with_noise(hparams, key, *both_views(views, head, batch, key))
        guesses, _ = forward(model, labeler, weak, None, False)
        guesses = label_logits(hparams, guesses, batch.labels)
        logits, updated = forward(model, with_parameters(student, parameters), x, rng.fold(key, 'dropout'), True)
        guessed = guessed_rows(hparams, batch)
        consistency, labels, confident = rule(guesses, logits, guessed.astype(jnp.float32))
        value, means = with_labels(hparams, consistency, logits, batch, round_index)
        return value, (updated, means, count_pseudo_labels(labels, confident, batch.labels, guessed))

    return objective


def both_views(views: Views, head: int, batch: Batch, key: Array) -> tuple[Array, Array]:
    """Draws the two views of a batch that `semi_supervised` needs.

    It trains on the first: labeled rows in the supervised view, all remaining rows in a strong view. The second is a
    weak view of all rows, from which pseudo-labels are computed.

    Args:
      views: the views.
      head: number of leading rows that may be labeled.
      batch: the batch.
      key: the client's key in the iteration.

    Returns:
      The two views, normalized [B, H, W, C] each.
    """
    images = views.strong(rng.fold(key, 'strong'), batch.images)
    if head:
        view = views.supervised(rng.fold(key, 'supervised'), batch.images[:head])
        mixed = jnp.where(batch.labeled[:head, None, None, None], view, images[:head])
        images = jnp.concatenate([mixed, images[head:]])
    weak = views.normalize(views.weak(rng.fold(key, 'weak'), batch.images))
    return views.normalize(images), weak


def with_noise(hparams: HParams, key: Array, x: Array, weak: Array) -> tuple[Array, Array]:
    """Adds Gaussian noise to both views of `both_views`, a draw for each, if the objective is 'mean_teacher'."""
    scale = hparams.local.input_noise if hparams.local.objective == 'mean_teacher' else 0.0
    if not scale:
        return x, weak
    noise, weak_noise = (jax.random.normal(rng.fold(key, name), x.shape) for name in ('noise', 'teacher_noise'))
    return x + scale * noise, weak + scale * weak_noise


def with_labels(
    hparams: HParams, consistency: Array, logits: Array, batch: Batch, round_index: Array
) -> tuple[Array, dict[str, Array]]:
    """Computes the loss L_s + `consistency_weight` L_u of `semi_supervised`.

    Args:
      hparams: the hyper-parameters.
      consistency: L_u [].
      logits: [B, K], the student's, from which L_s is computed.
      batch: the batch.
      round_index: [], from 0.

    Returns:
      The loss [], and its terms by their names in metrics.jsonl.
    """
    head = hparams.labeled_rows
    unlabeled = hparams.consistency_weight * ramp(hparams.local, round_index) * consistency
    means, value = {'loss_unlabeled': unlabeled, 'loss_consistency': consistency}, unlabeled
    if head:
        rows = losses.cross_entropy_rows(logits[:head], batch.labels[:head])
        progress = jnp.minimum(round_index / hparams.lr_rounds, 1.0)
        ceiling = signal_threshold(hparams.uda.tsa, progress, logits.shape[-1])
        below = jax.lax.stop_gradient(jnp.exp(-rows)) <= ceiling
        means['loss_client_labels'] = losses.row_mean(rows, (batch.labeled[:head] & below).astype(jnp.float32))
        value = value + means['loss_client_labels']
    return value, means | {'loss_local': value}
