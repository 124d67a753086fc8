"""Targets and loss of an iteration of the cross-entity phase: what the server makes of the features it receives."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp

from semisfl_jax.core import losses, pseudo_label
from semisfl_jax.core.cross_entity_types import CrossEntity, Rows, Targets
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.losses import References
from semisfl_jax.core.state import with_parameters
from semisfl_jax.core.types import Array, SplitParams

TAKEN = ('loss_unlabeled', 'loss_consistency', 'loss_clustering')  # not a name of a `RowLosses`


def make_targets(
    phase: CrossEntity,
    teacher: SplitParams,
    features: Array,
    logits: Array,
    truth: Array,
    labeled: Array,
    mask: Array,
) -> tuple[Targets, Array, dict[str, Array]]:
    """Targets and keys of weak features [A' * B, D], a mask of the confident pseudo-labels, and counts.

    A client's own labels take precedence over pseudo-labels. Without a queue there are no keys.
    """
    labels, confident = pseudo_label.assign(phase.hparams, logits, truth)
    unlabeled = mask & ~labeled
    counts = pseudo_label.count(labels, confident, truth, unlabeled)
    keys = None if phase.memory is None else phase.model.project(teacher.proj, features)
    targets = Targets(keys, logits, jnp.where(labeled, truth, labels), confident | labeled, labeled, mask)
    return targets, unlabeled & confident, counts


def loss(
    phase: CrossEntity,
    parameters: SplitParams,
    student: SplitParams,
    x: Array,
    targets: Targets,
    references: References | None,
    count: Array,
    keys: dict[str, Array],
) -> tuple[Array, tuple[SplitParams, dict[str, Array]]]:
    """The local clients' share of H + C (Eq. 6).

    Args:
      phase: settings.
      parameters: of the student.
      student: bottoms [A', ...], top and projection head, whose parameters are replaced.
      x: normalized strong views [A', B, H, W, C].
      targets: of these rows [A' * B].
      references: keys that each anchor is compared with; None without a queue, and then there is no C.
      count: rows of all participating clients.
      keys: of dropout.

    Returns:
      The loss, the student with updated BatchNorm statistics, and metrics.
    """
    model, hparams = phase.model, phase.hparams
    student = with_parameters(student, parameters)
    weight = targets.mask.astype(jnp.float32)
    train_bottoms = phase.axis.map(lambda variables, x, key: model.bottom(variables, x, key, True))
    features, bottom = train_bottoms(student.bottom, x, keys['student_dropout'])  # sent to the server: [A', B, D]
    logits, top = model.tops(student.top, features, keys['top_dropout'])
    logits, features = logits.reshape(-1, logits.shape[-1]), features.reshape(-1, model.feature_size)
    projections = None if references is None else model.project(student.proj, features)
    if phase.row_losses is None:
        consistency = losses.consistency(logits, targets.labels, targets.confident, weight, count)
        value, metrics = hparams.consistency_weight * consistency, {'loss_consistency': consistency}
    else:
        teacher = targets.logits, targets.labels, targets.confident, targets.labeled
        found = check(phase.row_losses(Rows(logits, features, projections, *teacher, references)), weight.size)
        metrics = {name: losses.row_mean(row, weight, count) for name, row in found.items()}
        value = jnp.sum(jnp.stack(list(metrics.values())))
    if references is not None and projections is not None:  # one with the other
        clustering = losses.row_mean(clustering_rows(phase, projections, targets.labels, references), weight, count)
        value = value + hparams.clustering_weight * clustering
        metrics['loss_clustering'] = clustering
    metrics['loss_unlabeled'] = value
    return value, (SplitParams(bottom, top, student.proj), metrics)


def check(found: Mapping[str, Array], rows: int) -> Mapping[str, Array]:
    """What a `RowLosses` returned for so many rows R.

    Raises:
      UserError: it is not a dict of values [R], or a name is not one of a metric, or one that the phase writes itself.
    """
    if not isinstance(found, Mapping) or not found:
        what = 'an array' if hasattr(found, 'shape') else repr(found)
        raise UserError(f'row_losses returned {what}; return a dict of values [{rows}] by the names of their metrics')
    for name, values in found.items():
        if not str(name).startswith('loss_') or name in TAKEN:
            raise UserError(
                f'row_losses returned {name!r}; a name begins with loss_ and is not one of {", ".join(TAKEN)}, '
                'which the phase writes'
            )
        if (shape := jnp.shape(values)) != (rows,):
            raise UserError(
                f'row_losses returned {name!r} of shape {list(shape)}; return a value for each of the {rows} rows, '
                'whose mean the phase takes'
            )
    return found


def clustering_rows(phase: CrossEntity, projections: Array, labels: Array, references: References) -> Array:
    """C [A' * B] of the student's projections [A' * B, P] with labels [A' * B] (Eq. 5)."""
    # Anchors are mapped per client, so that a chunked map never holds all similarities [A * B, T].
    clustering_of_client = phase.axis.map(
        lambda rows, labels: losses.contrastive_rows(rows, labels, references, phase.hparams.temperature)
    )
    rows = projections.reshape(-1, phase.hparams.batch_size, projections.shape[-1])
    return clustering_of_client(rows, labels.reshape(rows.shape[:2])).reshape(-1)
