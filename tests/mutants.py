"""Failures that the tests must notice: one change of the package at a time, and the tests that should fail under it.

    python -m tests.mutants                        all of them: each until a test fails
    python -m tests.mutants queue ema              those whose file or name contains one of these words
    python -m tests.mutants --slow --part=1/2      slow tests, too; of the first half
    python -m tests.mutants --matrix=kills.csv     all tests that fail, of every named file; resumes where it ended
    python -m tests.mutants --read=kills.csv       what that found: the tests that are alone in noticing something

For each mutant a copy of the repository is changed in one place, and the named test files are run on it. It prints
which test failed, or SURVIVED; the exit status is 1 if one survived. tests/test_mutants.py checks that the table fits
the package.
"""

import argparse
import collections
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutant(NamedTuple):
    """A failure: in `file` of the package, `old`, which stands there once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: str  # test files without `test_` and `.py`, the likeliest first


def of(file, tests, *changes):
    """The mutants of a file: (name, old, new), or (name, old, new, tests) where other tests find it."""
    return [Mutant(*change[:1], file, *change[1:3], *(change[3:] or (tests,))) for change in changes]


LOSSES = of(
    'core/losses.py',
    'losses phases',
    ('padding counts in a mean', 'values * weight', 'values'),
    ('a mean over all rows', 'jnp.maximum(jnp.sum(weight) if count is None else count, 1.0)', 'values.shape[0]'),
    ('shards divide by own rows', 'jnp.sum(weight) if count is None else count', 'jnp.sum(weight)', 'losses devices'),
    ('cross-entropy of the other sign', 'return -jnp.sum(jnp.where(chosen', 'return jnp.sum(jnp.where(chosen'),
    ('logits as log-probabilities', 'jax.nn.log_softmax(logits)', 'logits'),
    ('doubtful rows are consistent', '(logits, pseudo_labels) * confident', '(logits, pseudo_labels)'),
    ('temperature the wrong way', 'keys.T / temperature', 'keys.T * temperature'),
    ('empty slots in the denominator', 'jnp.where(mask, similarity, -jnp.inf)', 'similarity'),
    ('an anchor against itself', 'mask = mask & comparable', 'mask = mask'),
    ('doubtful keys attract', 'mask & references.confident[None, :]', 'mask'),
    ('doubtful keys do not repel', 'references.mask[None, :]', '(references.mask & references.confident)[None, :]'),
    ('sum over positives', ' / jnp.maximum(count, 1)', ''),
    ('other classes attract', 'labels[:, None] == references', 'labels[:, None] != references'),
    ('contrast of the other sign', '(count * log_total - attraction)', '(attraction - count * log_total)'),
    ('no reference at all', 'highest = jnp.where(jnp.isfinite(highest), highest, 0.0)', 'highest = highest'),
)

QUEUE = of(
    'core/queue.py',
    'queue phases',
    ('the first rows stay', 'offset + (pushed - 1 - offset) // size * size', 'jnp.where(offset < pushed, offset, -1)'),
    ('keys that are not due move the head', 'ring.head + pushed)', 'ring.head + rows)'),
    ('padding enters', 'row = place if mask is None', 'row = place if True'),
    ('an empty slot is filled', 'written = place >= 0', 'written = place >= -size'),
    ('stride from the first iteration', '(t + 1) % self.stride', 't % self.stride'),
    ('an empty slot has a class', 'jnp.full((size,), -1, jnp.int32)', 'jnp.zeros((size,), jnp.int32)'),
    ('empty slots of the paper count', "'auto': hparams.queue == 'single", "'auto': hparams.queue != 'single"),
    ('supervised keys are confident', "None if self.policy == 'single_ring' else batch.confident", 'batch.confident'),
    ('supervised keys of the ring repel', 'self.count_empty, every)', 'self.count_empty)'),
    ('levels survive a round without clients', "self.emptied() if self.policy == 'two_level' else self", 'self'),
    ('unlabeled level unseen', 'reversed(self.rings)', 'self.rings[:1]'),
)

EMA = of(
    'core/teacher.py',
    'ema phases',
    ('decay and 1 - decay swapped', 'trees.mix(teacher, student', 'trees.mix(student, teacher'),
    ('one update behind', '(t + 1.0)', 't'),
    ('warm-up where it is off', 'if not warmup', 'if warmup'),
)

FREQUENCY = of(
    'core/frequency.py',
    'frequency',
    ('half of the pairs is not enough', '>= 0.5', '> 0.5'),
    ('as fast is faster', 'fall_u > fall_s', 'fall_u >= fall_s'),
    ('the least lead of the code', '>= 1e-5', '> 0.0'),
    ('paper rounds to the nearest', 'math.floor(k_s / options.alpha)', 'round(k_s / options.alpha)'),
    ('paper rounds K_min up', 'math.floor(smallest)', 'math.ceil(smallest)'),
    ('code rounds down', 'max(round(max(', 'max(math.floor(max('),
    ('paper falls to 0', 'math.floor(smallest), 1)', 'math.floor(smallest))'),
    (
        'code falls to 0',
        'max(round(max(k_s / options.alpha, smallest)), 1)',
        'round(max(k_s / options.alpha, smallest))',
    ),
    ('checked before the horizon', 'rounds >= options.horizon and', 'True and'),
    ('checked every round', 'rounds % options.check_every == 0', 'True'),
    ('sums instead of means', 'current[None] / options.period', 'current[None]'),
    ('windows never end', '        current = np.zeros(4)', '        current = current'),
    ('windows that were not seen', '-min(rounds // options.period, len(windows)) :', ':'),
    ('one window too few', 'options.period + 1', 'options.period'),
    ('steps of the later window', 'fall_s / (lr[:-1] * k_s[:-1])', 'fall_s / (lr[1:] * k_s[1:])'),
    ('warm-up one round shorter', 'rounds <= options.pre_rounds', 'rounds < options.pre_rounds'),
    ('rounds without a loss are kept', '[np.isfinite(windows).all(axis=1)]', ''),
)

SAMPLING = of(
    'core/sampling.py',
    'sampling fedavg phases semifl',
    ('every epoch in one order', '_mix(seed_bits ^ _mix(epoch', '_mix(seed_bits ^ 0 * _mix(epoch'),
    ('with replacement', 'offset // size, offset % size', 'offset, 0 * offset'),
    ('every round reads the first images', 'participations * steps + iteration', 'iteration'),
    ('clients in one order', "rng.fold(key, 'client_batches', client)", "rng.fold(key, 'client_batches')"),
    ('steps count labeled rows', 'step * batch + position', 'step * batch_size + place'),
    ('labeled and unlabeled rows swapped', 'labeled_indices, rows)', 'rows, labeled_indices)'),
    (
        'room for labels that are not there',
        'head = jnp.where(_reserves(batches, labeled_size), labeled_rows, 0)',
        'head = labeled_rows',
    ),
    ('no room for labels where steps are the longest', " | (batches.steps == 'longest')", '', 'fed_shvr'),
    ('images of clients without labels are labeled', '(slot < head) & (labeled_size > 0)', 'slot < head'),
    ('a pass reads one row too many', 'positions < size', 'positions <= size'),
    ('a short last batch of a list', 'batches = length // batch_size', 'batches = -(-length // batch_size)'),
    ('epochs forget labeled rows', '-epochs * size // (batch_size - labels_in_batch)', '-epochs * size // batch_size'),
    ('the longest of two sets of labels', 'labels_in_batch), of_labeled)', 'labels_in_batch), 0)', 'fed_shvr'),
    ('a set of labels one place late', '>= federation.index.shape[1]', '> federation.index.shape[1]'),
    ('labels count where none are read', 'unlabeled + labeled if labeled_rows else unlabeled', 'unlabeled + labeled'),
    ('an image of the client before', "side='right'", "side='left'"),
    ('server batches overlap', 'step * batch_size + slot, jnp', 'step + slot, jnp'),
)

CROSS_ENTITY = of(
    'core/cross_entity.py',
    'phases semisfl',
    ('views of every round the same', "'cross_entity', index)", "'cross_entity')"),
    ('views of every client the same', 'rng.fold(key, name, client, t)', 'rng.fold(key, name, 0, t)'),
    ('students see the weak view', "(views.strong)(keys['strong']", "(views.weak)(keys['weak']"),
    ('a client steps by its share', 'g * context.num_participating', 'g'),
    ('clients without images are averaged', '(end.student.bottom, weight,', '(end.student.bottom, cohort.weight,'),
    ('rows of padding count', 'jnp.repeat(weight > 0', 'jnp.repeat(weight >= 0'),
    ('keys enter an iteration late', 'of_all, batch.t)', 'of_all, batch.t + 1)'),
    ('decay of the clients swapped', 'bottom, hparams.ema_decay', 'bottom, 1 - hparams.ema_decay'),
    ('keys of the last round stay', 'state.queue.emptied() if state.queue else ()', 'end.queue'),
    ('nobody moves the server', 'jnp.where(num_participating > 0, new, old)', 'new'),
    ('one pre-round more', 'round < phase.hparams.pre_rounds', 'round <= phase.hparams.pre_rounds'),
    ('the teacher takes the average', 'replace(student=student', 'replace(teacher=student, student=student'),
)

CROSS_ENTITY_LOSS = of(
    'core/cross_entity.py',
    'phases semisfl row_losses',
    ('the truth labels', 'jnp.where(labeled, truth, made.labels)', 'truth'),
    ('own labels are doubtful', 'made.confident | labeled', 'made.confident'),
    ('dropout of another stream', "keys['top_dropout'])", "keys['student_dropout'])"),
    ('consistency unweighted', 'hparams.consistency_weight * reduce(', '1 * reduce('),
    ('clustering unweighted', 'hparams.clustering_weight * metrics', 'metrics'),
    ('own losses of all rows', 'losses.row_mean(values, weight, context.num_rows)', 'jnp.mean(values)'),
    ('the first of several losses', 'reduce(operator.add, metrics.values())', 'next(iter(metrics.values()))'),
    ('doubtful labels are own ones', 'confident, labeled, references', 'confident, ~confident, references'),
)

LABELING = of(
    'core/cross_entity.py',
    'phases semisfl',
    ('batch statistics where running ones are due', "client_teacher_bn == 'train'", "client_teacher_bn != 'train'"),
    ('student and teacher swapped', 'jnp.where(teaches,', 'jnp.where(~teaches,'),
    ('every image counts for the switch', 'confident & self.unlabeled', 'labels >= 0'),
)

SUPERVISED = of(
    'core/supervised.py',
    'phases semisfl',
    ('one view for student and teacher', '(phase, state, other,', '(phase, state, views,'),
    ('contrast unweighted', 'hparams.contrastive_weight * contrastive', 'contrastive'),
    ('cross-entropy unweighted', 'phase.label_weight * cross_entropy', 'cross_entropy'),
    ('a row is its own positive', 'hparams.temperature, comparable)', 'hparams.temperature)'),
    ('the average one step behind', 'ema_coefficient(state.step + 1', 'ema_coefficient(state.step'),
    ('the average of the student before', '(state.teacher, student, keep)', '(state.teacher, state.student, keep)'),
    ('first round of the statistics', 'state.round == 0', 'state.round != 0'),
    ('statistics of the teacher lost', 'state.teacher._replace(bottom=bottom)', 'state.teacher'),
    ('running statistics in training', 'x, next(dropout_keys), True', 'x, next(dropout_keys), False'),
    ('rows that are not there train', 'if valid is None else valid.astype', 'if valid is None else 0 * valid.astype'),
    ('sums instead of means', 'total / k_s', 'total'),
    ('no key enters the queue', 'state.queue.push_supervised(keys)', 'state.queue'),
    ('every step with the same views', "rng.fold(key, 'supervised', number)", "rng.fold(key, 'supervised')"),
    ('every step ahead sees the same', 'views_ahead[i]', 'views_ahead[0]', 'semisfl'),
    ('every block draws the same', 'numbers = carry[0].step +', 'numbers = 0 +'),
    ('every step of a block reads the same', 'of_steps[i]', 'of_steps[0]'),
    ('blocks overlap', 'k_s - index * BLOCK, BLOCK', 'k_s - index, BLOCK'),
    ('kept momentum is forgotten', 'state = state.replace(opt_state=opt_state)', 'pass', 'phases semifl'),
)

LOCAL = of(
    'core/local.py',
    'phases fedavg',
    ('every round with the same views', "rng.fold(key, 'local', state.round)", "rng.fold(key, 'local')"),
    ('clients share their views', 'rng.fold(round_key, client)', 'round_key'),
    ('clients without images count', 'cohort.weight * (images > 0)', 'cohort.weight'),
    ('weighted where uniform is asked', "weighting == 'samples'", "weighting != 'samples'"),
    ('kept momentum starts anew', 'if fresh else client_state', 'if True else client_state'),
    ('sums over steps', 'jax.tree.map(lambda x: x / jnp.maximum(steps, 1), means), c', 'means, c'),
    ('rows without images count', '~batch.labeled & (jnp', '~batch.labeled | (jnp', 'fed_shvr'),
    ('padding writes what it keeps', 'work.client_state, weights.weight,', 'work.client_state, cohort.weight + 1,'),
    ('who sits out is averaged', 'ClientWeights(weight, share,', 'ClientWeights(weight, weights.share,'),
    ('another client reads', 'inputs.rows[t]', 'inputs.rows[0 * t]'),
)

DENSE = [
    *of(
        'tasks/dense_losses.py',
        'tasks_losses',
        ('unknown pixels count in a mean', 'jnp.where(known, values, 0)', 'values'),
        ('a mean over all pixels', 'count = jnp.sum(known, dtype=jnp.int32)', 'count = jnp.int32(known.size)'),
        ('the frequent side weighs more', 'positive.astype(outputs.dtype), 1 - share)', 'positive + 0.0, share)'),
        ('heat maps add up', 'heat = jnp.maximum(heat, ', 'heat = jnp.add(heat, '),
        ('heat maps of squares', 'for axis in (1, 2):', 'for axis in (1,):'),
    ),
    *of(
        'tasks/scores.py',
        'tasks_scores',
        ('padding counts in a score', 'targets != IGNORED) & valid[:, None, None]', 'targets != IGNORED)'),
        ('unknown pixels count in a score', '(targets != IGNORED) & ', '(targets != 7) & '),
        ('absent classes count as 0', 'present = union > 0', 'present = union >= 0'),
        ('an image without foreground counts as 0', 'np.maximum(union, 1), 1.0)', 'np.maximum(union, 1), 0.0)'),
        ('each image at its best threshold', 'iou.mean(axis=0).max()', 'iou.max(axis=1).mean()'),
        ('root of a sum', 'share(squares, pixels) ** 0.5', 'squares**0.5'),
    ),
    *of(
        'tasks/edges.py',
        'tasks_edges',
        ('edges are not thinned', 'return maps & ~(one', 'return maps & ~(0 & one'),
        ('one side is thinned', 'step(step(state[0], 0), 4)', 'step(step(state[0], 0), 0)'),
        ('a square of tolerance', 'np.hypot(dy, dx) <= radii[image]', 'np.maximum(abs(dy), abs(dx)) <= radii[image]'),
        (
            'a tolerance of at least a pixel',
            'radii = TOLERANCE * np.hypot',
            'radii = np.maximum(1, TOLERANCE) * np.hypot',
        ),
        ('a pixel is matched several times', 'np.ones(len(ends), np.int32)', 'np.full(len(ends), 2, np.int32)'),
        ('unknown pixels are predicted', 'jnp.where(known, exceeded', 'jnp.where(valid[:, None, None], exceeded'),
        ('precision alone', '2 * hits / (predicted + true)', 'hits / predicted'),
    ),
    *of(
        'tasks/scores.py',
        'tasks_scores',
        ('a point is taken twice', 'return free & ~chosen,', 'return free,'),
        ('the farthest point', 'jnp.argmin(distance, axis=-1)', 'jnp.argmax(distance * (within & free), axis=-1)'),
        ('every pixel is a peak', 'return maps >= around', 'return maps > -jnp.inf'),
        ('a curve that is not interpolated', 'prepend=0.0) * best', 'prepend=0.0) * precision'),
    ),
    *of(
        'training/evaluation.py',
        'dense_run',
        ('maps of clients of other tasks', '[names.index(task.name) :: len(names)]', ''),
        ('pixels without truth are objects', ' & (maps != tasks.IGNORED)', ''),
    ),
    *of(
        'algorithms/m_fed.py',
        'm_fed',
        ('g of the first round is a rounded mean', 'server=encoder if server', 'server=mean_encoder(models) if server'),
        ('no bound of lambda', 'options.growth**t, options.max_weight)', 'options.growth**t, jnp.inf)'),
    ),
    *of('augment/operations.py', 'augment', ('sharpened unseen', 'lookups.if_any(sharpness,', 'lookups.if_any(color,')),
    *of(
        'augment/lookups.py',
        'augment_views',
        ('images are not changed', '-(-jnp.sum(~same) // at_once)', 'jnp.sum(~same) // at_once'),
        ('a step that some need is left out', 'lax.cond(jnp.any(needed)', 'lax.cond(jnp.all(needed)'),
    ),
    *of('augment/operations.py', 'augment_views', ('shears are not mixed', 'moved_alone &= ~sheared', 'pass')),
    *of(
        'augment/geometry.py',
        'views_targets',
        ('turned the other way', 'row = across * x + along * y', 'row = along * y - across * x'),
        ('images shift against labels', 'return at + (_ONE >> 1) >> 16', 'return at >> 16'),
        ('points as labels', 'jnp.where(moved > 0, moved, unknown)', 'scale_rotate_labels(planes, scale, angle)'),
    ),
    *of(
        'augment/views.py',
        'views_targets',
        ('maps stay where they are', 'return _place(uniform, maps[:, None], options, move)[:, 0]', 'return maps'),
        ('views are not turned', 'if _scales(options):', 'if False:'),
    ),
]

OTHERS = [
    *of(
        'core/objectives.py',
        'phases fedavg',
        ('views of labeled rows swapped', 'view, images[:head])', 'images[:head], view)'),
        ('labeled rows are guessed', 'guessed = guessed_rows(hparams, batch)', 'guessed = batch.labeled | True'),
        ('teacher and student with the same noise', "('noise', 'teacher_noise')", "('noise', 'noise')"),
        ('the teacher sees no noise', 'weak + scale * of_labeler', 'weak'),
        ('consistency unweighted', 'hparams.consistency_weight * ramp', 'ramp'),
        ('labels in training mode', 'labeler, weak, None, False)', "labeler, weak, rng.fold(key, 'dropout'), True)"),
        ('a gradient through the labels', '(model, labeler,', '(model, with_parameters(labeler, parameters),'),
        ('annealing of the other side', '<= ceiling', '>= ceiling'),
    ),
    *of(
        'core/teacher.py',
        'pseudo_label',
        ('the threshold itself is doubtful', 'axis=-1) >= threshold', 'axis=-1) > threshold'),
        ('labeled rows in the mask rate', 'jnp.sum(unlabeled & confident),', 'jnp.sum(confident),'),
    ),
    *of(
        'core/objectives.py',
        'pseudo_label',
        ('the threshold itself is sure in uda', 'axis=-1) > threshold', 'axis=-1) >= threshold'),
        ('sharpening the wrong way', 'weak / temperature', 'weak * temperature'),
        ('a ramp of the other objective', "risen if local.objective == 'pseudo_label'", 'risen if True', 'phases'),
        ('a ramp that begins at its end', 'return risen if', 'return 1.0 - risen if', 'phases'),
    ),
    *of(
        'algorithms/fedswitch.py',
        'fedswitch',
        ('the boundary itself is skewed', 'skew(counts) > beta_iid', 'skew(counts) >= beta_iid'),
        ('no evidence is even', 'jnp.log(float(classes)))', '0.0)'),
    ),
    *of(
        'algorithms/semifl.py',
        'batch_norm semifl',
        ('images of server and clients swapped', '(positions < labeled)[:', '(positions >= labeled)[:'),
        ('the last batch left out', '-(-count // batch)', 'count // batch'),
    ),
    *of(
        'core/state.py',
        'phases semisfl',
        ('a teacher of its own', 'jax.tree.map(jnp.copy, student)', 'jax.tree.map(lambda x: 2 * x, student)'),
        ('predicts from raw images', 'views.normalize(images)', 'images'),
    ),
    *of(
        'core/local.py',
        'phases semisfl fedavg',
        ('one pre-round more', 'state.round < hparams.pre_rounds', 'state.round <= hparams.pre_rounds'),
        ('one stream of dropout', "rng.fold(key, 'bottom')", "rng.fold(key, 'top')", 'phases'),
    ),
    *of(
        'algorithms/fed_shvr.py',
        'fed_shvr',
        ('labels are not sharpened', 'jax.nn.softmax(finite * ', 'jax.nn.softmax(1.0 * '),
        ('no value of the labels themselves', 'alpha1 * divergence_from_uniform(targets)', '0.0'),
        ('no confidence penalty', 'divergence_from_uniform(targets) + confidence', 'divergence_from_uniform(targets)'),
    ),
    *of(
        'algorithms/fed_shvr.py',
        'fed_shvr',
        ('gradients are not corrected', 'jax.tree.map(jnp.add, gradient, correction)', 'gradient'),
        ('updates are not divided by their steps', 'x / jnp.maximum(steps, 1.0), update', 'x, update'),
        ('the average is taken over one step', 'mean_steps * update', 'update'),
        ('the correction stays in the gradient', '(scale > 0, scale, 1.0) - d, old)', '(scale > 0, scale, 1.0), old)'),
        (
            'clients weigh alike',
            'cohort, hparams).share',
            'cohort, hparams).weight',
        ),
        ('no ramp', 'options.alpha0 * risen', 'options.alpha0'),
        (
            'a ramp that nobody asked for',
            '    ramp_rounds: int = option(\n        25',
            '    ramp_rounds: int = option(\n        0',
        ),
        (
            'F with the labels of the truth',
            'received = label_logits(hparams, logits, labels)',
            'received = 9 * jax.nn.one_hot(labels, logits.shape[-1])',
            'global_loss',
        ),
    ),
    *of(
        'training/evaluation.py',
        'global_loss',
        (
            'clients weigh alike',
            "share = images if hparams.local.weighting == 'samples' else images > 0",
            'share = images > 0',
        ),
        ('a sum over images', 'w / max(len(own), 1)', 'w'),
        ('labels and guesses swapped', 'np.full(len(own), column)', 'np.full(len(own), 1 - column)'),
        (
            'the last batch counts twice',
            'weights = np.zeros((size, 2), np.float32)',
            'weights = np.ones((size, 2), np.float32)',
        ),
    ),
    *of(
        'algorithms/feddure.py',
        'feddure',
        ('a sum over unlabeled images', '(factors / values.size)', '(factors)'),
        ('a virtual step uphill', 'phi - rate * g', 'phi + rate * g'),
        ('no hidden layer of its own', "@ w['hidden']['kernel'] + w['hidden']['bias']", "@ w['hidden']['kernel']"),
        ('weights of labeled rows', 'guessed & (truth >= 0) & hit', '(truth >= 0) & hit'),
    ),
    *of(
        'algorithms/feddure.py',
        'feddure',
        ('d of the other sign', 'labeled(before) - labeled(coarse)', 'labeled(coarse) - labeled(before)'),
        ('d does not count', '(weight + effect)', 'weight'),
        ('a gradient through the factors', 'jax.lax.stop_gradient(weigh(', '(weigh('),
        ('C-reg by the old F-reg', 'descend(optimizers.fine, moments.fine, fine, gradient)', '(fine, moments.fine)'),
        ('F-reg with the model', 'before = coarse if options.coarse else', 'before ='),
        ('C-reg starts anew', 'parameters), coarse, fine', 'parameters), training.coarse, fine'),
        ('labeled rows teach C-reg', 'labels[head:])', '0 * labels[head:])'),
        ('clients begin with one F-reg', "rng.fold(key, 'fine', client)", "rng.fold(key, 'fine')"),
        ('weight decay of all', 'weight_decay=0.0', 'weight_decay=1.0'),
    ),
    *of(
        'core/hparams.py',
        'phases semisfl fedavg',
        ('the learning rate falls for longer', 'hparams.lr_rounds, 1.0)', 'hparams.lr_rounds, 1.5)'),
        ('momentum moves no farther', 'if not rho:', 'if True:', 'fed_shvr'),
        ('no L2 term', '*clip, *decay, step', '*clip, step'),
    ),
]

CLIENTS = [
    *of(
        'core/clients.py',
        'parallel memory devices',
        ('chunks do nothing', 'return partial(_in_turn, chunk) if chunk else', 'return partial(_in_turn, 0) if 0 else'),
        ('chunks keep their activations', 'jax.checkpoint(one) if chunk else one', 'one'),
        ('chunks of one', 'batch_size=chunk if chunk > 1 else None', 'batch_size=None'),
        ('a loop is a map', "how = 'loop' if machine.platform() == 'cpu' else 'vmap'", "how = 'vmap'"),
        ('a cohort that does not fill the devices', 'return -(-num_active // group) * group', 'return num_active'),
        ('trials that do not fill the devices', 'if trials % n == 0)', 'if trials >= n)'),
        ('shards are not summed', 'flat = jax.lax.psum(jnp.concatenate(', 'flat = (lambda x, _: x)(jnp.concatenate('),
        ('sums in other places', 'for index, part in zip(indices, ', 'for index, part in zip(indices[::-1], '),
        ('padding is gathered', 'return padded[: padded.shape[0] * num_active', 'return padded[: padded.shape[0] * 8'),
    ),
    *of(
        'config/failures.py',
        'failures',
        ('nobody failed, all are lost', 'bool(clients.failed.any()) and ', ''),
        ('the same clients fail in every round', "'failures', index)", "'failures')"),
        ('none fails inside a round', 'never = coin < options.before\n', 'never = coin < 1\n'),
        ('a broken iteration counts', 'np.floor(done * clients.steps)', 'np.ceil(done * clients.steps)'),
        ('the metrics of the server are lost', 'value if name in SERVER_METRICS else', 'value if 0 else'),
        (
            'a trace counts rounds from 0',
            'options.trace_hash).get(index, {})',
            'options.trace_hash).get(index + 1, {})',
        ),
    ),
    *of(
        'training/inputs.py',
        'failures train_stops data_federation local_run',
        ('who failed before the round drew', 'participants.ids[participants.started | ~participants.failed]', 'ids'),
        ('a resumed run has no past', 'itertools.count(min(first, config.pre_rounds))', 'itertools.count(first)'),
        ('images of the server are not seen', 'return count + steps * ', 'return steps * '),
    ),
    *of(
        'data/federation.py',
        'data_federation failures',
        ('all take part', 'participations[ids] += 1', 'participations += 1'),
        ('the failed weigh', 'valid &= ~np.pad(failed, (0, padding))', 'pass'),
        ('the same cohort in every round', "'cohort', round_index)", "'cohort')"),
        ('padding weighs', 'valid = np.arange(len(padded)) < len(ids)', 'valid = np.arange(len(padded)) >= 0'),
        ('rows of another client', 'np.concatenate(parts)', 'np.concatenate(parts[::-1])'),
    ),
]

SPLITS = [
    *of(
        'data/partition.py',
        'data_partition data_partitioners data_apportion data_partition_file validation',
        ('the images of the server at the clients, too', 'pool.append(rows[total:])', 'pool.append(rows)'),
        (
            'every seed splits alike',
            "rng.host(chosen['seed'], 'partition', 'order')",
            "rng.host(0, 'partition', 'order')",
        ),
        ('held-out images are trained on', 'labels[held_out] = _HELD_OUT', 'pass'),
        ('labels that are ignored stay', "if not chosen['use_client_labels']:", 'if False:'),
        ('the first images of every class', 'generator.permutation(rows)[:count]', 'rows[:count]'),
        ('all tasks split alike', "rng.host(chosen['seed'], 'task', name)", "rng.host(chosen['seed'], 'task')"),
        ('labels are not counted', 'client_labels[client_labels >= 0]', 'np.maximum(client_labels, 0)'),
    ),
    *of(
        'data/apportion.py',
        'data_partition data_partitioners data_apportion',
        ('the smallest remainder is rounded up', 'np.argsort(-remainder', 'np.argsort(remainder'),
        ('leftovers at the first clients', 'start += left', 'start += 0'),
        ('rows do not add up', 'within(entries, (demand, demand)', 'within(entries, (0 * demand, demand)'),
    ),
    *of(
        'data/partitioners.py',
        'data_partition data_partitioners data_apportion data_partition_file',
        ('one concentration for all', 'dirichlet(np.full(classes, settings.alpha)', 'dirichlet(np.full(classes, 1.0)'),
        ('full clients get more', 'shares[k] * (held < full)', 'shares[k]'),
        ('too few images for a client', 'dealt.sum(axis=1).min() >= least and ', ''),
        ('clients in the order of their classes', 'return generator.permutation(holds)', 'return holds'),
        ('an empty client takes from nobody', 'filled[largest, k] -= 1', 'pass'),
        ('own and other classes swapped', 'np.concatenate([owned, ~owned])', 'np.concatenate([~owned, owned])'),
    ),
]

PRICES = [
    *of(
        'costs/rounds.py',
        'costs costs_seconds failures',
        ('uploads of the lost are billed', 'clients.survived * cost.upload', 'clients.started * cost.upload'),
        ('up and down swapped', '(options.client_out, options.client_in)]', '(options.client_in, options.client_out)]'),
        ('links of every round alike', "'bandwidth', index)", "'bandwidth')"),
        ('nobody waits for the slowest', 'float(np.max(step[running])', 'float(np.min(step[running])'),
        ('a sequence at once', 'np.sum(made * (step + server_step))', 'np.max(made * (step + server_step))'),
        ('bits for bytes', "'Mbps': 1e6 / 8", "'Mbps': 1e6"),
        (
            'no wait until the deadline',
            'np.where(clients.late, np.maximum(',
            'np.where(clients.late & False, np.maximum(',
        ),
        ('iterations of the whole round', 'np.clip(np.floor((model.deadline - start) / step), 0, ', '(0 * step + '),
        ('the absent get no model', 'inactive = model.num_clients - int(np.sum(clients.started))', 'inactive = 0'),
        (
            'a client without images starts',
            'no_client, started = np.zeros(ids.shape, bool), images > 0',
            'no_client, started = np.zeros(ids.shape, bool), images >= 0',
        ),
    ),
    *of(
        'costs/prices.py',
        'costs costs_operations costs_seconds',
        ('features of the student alone', 'step_upload=2 * batch + NUMBER', 'step_upload=batch + NUMBER'),
        ('work of a batch', 'return Work(forward / _ROWS', 'return Work(forward'),
        ('activations with the weights', 'residual_bytes(2) - residual_bytes(1)', 'residual_bytes(1)'),
        (
            'no gradient of the features',
            'inputs = (variables, x) if of_inputs else (variables,)',
            'inputs = (variables,)',
        ),
        (
            'a mean over clients is not whole',
            'return round(float(self.metrics[name])',
            'return (float(self.metrics[name])',
        ),
        ('no momentum in memory', 'part + 2 * (part - statistics)', 'part + (part - statistics)'),
    ),
]

RUNS = [
    *of(
        'training/checkpoint.py',
        'checkpoint train_stops trials',
        ('any shapes will do', "f'{np.dtype(leaf.dtype).name} {list(np.shape(leaf))}'", "''"),
        ('the oldest first', 'map(set, saved)), reverse=True)', 'map(set, saved)))'),
        ('a round of some trials', 'set.intersection(*map(set, saved))', 'set.union(*map(set, saved))'),
        ('damage in some trials', 'if not any(faults):', 'if not all(faults):'),
        ('the last checkpoint goes, too', 'if number > round_number:', 'if number >= round_number:'),
    ),
    *of(
        'training/evaluation.py',
        'train_run trivial train_metrics',
        (
            'padding is scored',
            'valid = place((np.arange(len(filled)) < count)',
            'valid = place((np.arange(len(filled)) >= 0)',
        ),
        ('the last images are not scored', '-(-count // min(batch_size, count))', 'count // min(batch_size, count)'),
        ('the first of several models', 'task.score.best(values)', 'values[0]', 'm_fed mfed_local train_run'),
    ),
    *of(
        'training/metrics.py',
        'train_metrics train_stops train_run',
        ('the first evaluations', '*scores)[-_LAST:]', '*scores)[:_LAST]'),
        ('deviation of a population', 'ddof=1', 'ddof=0'),
        ('lines of an interrupted run stay', 'for text in _lines(path)[:rounds])', 'for text in _lines(path))'),
        ('half a line is read', "split(b'\\n')[:-1]", "split(b'\\n')"),
        ('the last is the best', 'headline.score.best(known) if known', 'known[-1] if known'),
        ('costs of one round', 'record |= cost._asdict()', "record |= {**cost._asdict(), 'bytes_up': 0}"),
    ),
    *of(
        'training/outputs.py',
        'train_run train_stops train_foreign',
        ('a run that is longer begins again', 'if completed > rounds:', 'if False:'),
        ('another split goes on', '.content_hash != partition.content_hash', ".content_hash == ''"),
        ('a shorter run is done', "summary['rounds'] >= rounds", 'True'),
        ('another configuration goes on', 'if differing := config_lib.differences(config, content):', 'if False:'),
        ('two runs in a folder', "filelock.FileLock(folder / '.lock', timeout=0)", 'ExitStack()'),
    ),
    *of(
        'training/loop.py',
        'loop train_run train_stops',
        (
            'evaluated a round late',
            'if last or number % config.eval_every == 0:',
            'if last or number % config.eval_every == 1:',
        ),
        (
            'saved a round late',
            'number % run.config.checkpoint_every == 0',
            'number % run.config.checkpoint_every == 1',
        ),
        ('no check of the weights', 'checks.check_weights(*place, number, state)', 'pass'),
    ),
    *of(
        'training/driver.py',
        'trials',
        (
            'one cohort for all trials',
            'lambda *leaves: np.stack(leaves), *cohorts',
            'lambda *leaves: np.stack(leaves[:1] * len(leaves)), *cohorts',
        ),
        ('one key for all trials', '[trial.key for trial in trials]', '[first.key for trial in trials]'),
        ('the first trial twice', 'jax.tree.map(lambda x: x[r], tree)', 'jax.tree.map(lambda x: x[0], tree)'),
    ),
]

STUDIES = [
    *of(
        'studies/statistics.py',
        'studies_report studies_measures claims',
        ('independent samples', 'stats.ttest_rel(a, b)', 'stats.ttest_ind(a, b)'),
        (
            'a normal interval',
            'stats.t.ppf(0.5 + CONFIDENCE / 2, self.seeds - 1)',
            'stats.norm.ppf(0.5 + CONFIDENCE / 2)',
        ),
        ('as for a single test', "multipletests(tested, method='holm')", "multipletests(tested, method='fdr_bh')"),
        ('power of another level', 'seeds, LEVEL) < POWER', 'seeds, 2 * LEVEL) < POWER'),
        ('seeds that only one has', 'first.keys() & second.keys()', 'second.keys()'),
    ),
    *of(
        'studies/measures.py',
        'studies_measures',
        ('the target is not reached', 'if record[run.key] >= target)', 'if record[run.key] > target)'),
        ('traffic up alone', "(record['bytes_up'] + record['bytes_down'])", "record['bytes_up']"),
        ('the first rounds', 'is not None][-last:]', 'is not None][:last]'),
        ('spread over rounds', 'scores.mean(axis=0)', 'scores.mean()'),
    ),
]

METHODS = [
    *of(
        'algorithms/semisfl_prior.py',
        'semisfl_prior',
        ('counts are never halved', 'hparams.options.decay * state.clients[ids]', 'state.clients[ids]'),
        ('counts of another client', 'state.clients[ids]', 'state.clients[: len(ids)]'),
        ('no class is counted once more', 'shares = (counts + 1.0)', 'shares = (counts + 1e-9)'),
        ('every anchor has C', 'if not hparams.options.all_anchors:', 'if False:'),
        (
            'who failed is in the mean',
            'trees.weighted_mean(of_all, weight,',
            'trees.weighted_mean(of_all, 0 * weight + 1,',
        ),
    ),
    *of(
        'core/teacher.py',
        'fedswitch semisfl_prior',
        ('doubtful images count', 'counted[..., None], axis=-2)', '1.0, axis=-2)'),
    ),
    *of(
        'algorithms/fedmatch.py',
        'fedmatch',
        ('a client helps itself', 'others = known & (jnp.arange(known.shape[0]) != client)', 'others = known'),
        ('the farthest help', '-jnp.where(others, distance, jnp.inf)', 'jnp.where(others, distance, -jnp.inf)'),
        (
            'helpers that are not there vote',
            'jnp.tensordot(valid.astype(jnp.float32), ',
            'jnp.tensordot(jnp.ones(valid.shape), ',
        ),
        (
            'divergence of the other sign',
            '(target - jax.nn.log_softmax(logits))',
            '(jax.nn.log_softmax(logits) - target)',
        ),
        ('a gradient of |psi| at 0', 'return x * jax.lax.stop_gradient(jnp.sign(x))', 'return jnp.abs(x)'),
        ('helpers a round early', 'due = (), (state.round + 1) %', 'due = (), (state.round + 2) %'),
        ('small entries of psi predict', 'jnp.where(jnp.abs(w) > options.l1_threshold, w, 0.0)', 'w'),
        (
            'unchanged entries are replaced',
            'part = jax.tree.map(jnp.where, changed, trained, received)',
            'part = jax.tree.map(jnp.where, changed, received, trained)',
        ),
        ('sigma moves with psi', 'gradient, momenta[name], both[name])', "gradient, momenta['psi'], both[name])"),
    ),
    *of(
        'algorithms/m_fed.py',
        'm_fed',
        ('g is a sum', 'sum(leaves) / len(leaves)', 'sum(leaves)'),
        ('half of the distance', 'strength * (0.5 * squared', 'strength * (squared'),
        ('a task without clients counts', 'jnp.where(anyone, value, jnp.nan)', 'value'),
        ('weights of the mean encoder', 'axis.psum(jnp.sum(weights.weight)) > 0', 'True'),
    ),
    *of(
        'algorithms/splitfed.py',
        'splitfed',
        (
            'the top begins anew with every client',
            'student = state.student._replace(top=top)',
            'student = state.student',
        ),
        ('clients in one order', 'jnp.argsort(draws)', 'jnp.arange(draws.shape[0])'),
        ('momentum of the top begins anew', "{**fresh.inner_states, 'server': momentum}", 'fresh.inner_states'),
    ),
    *of(
        'algorithms/semifl.py',
        'semifl',
        ('mixed the wrong way', 'share * weak + (1 - share) * other', '(1 - share) * weak + share * other'),
        ('passes without end', 'jnp.minimum(steps, -(-options.max_passes', 'jnp.maximum(steps, -(-options.max_passes'),
        ('statistics of a share of a batch', 'x / ((1 - MOMENTUM) * count)', 'x / count', 'batch_norm semifl'),
        ('nobody sits out', 'participates = sets.num_confident > 0', 'participates = sets.num_confident >= 0'),
        ('the server leaps', 'optax.apply_updates(start, updates))', 'trainable(average))'),
        ('doubtful images are drawn', 'Sets(jnp.argsort(~confident', 'Sets(jnp.argsort(confident'),
    ),
    *of(
        'algorithms/fedavg.py',
        'fedprox fedavg',
        ('a pull twice as strong', 'value + 0.5 * prox *', 'value + prox *'),
        (
            'a teacher that stands still',
            'return ema(teacher, student, hparams.local.teacher_decay) if',
            'return teacher if',
            'fedavg pseudo_label',
        ),
    ),
    *of(
        'algorithms/fedswitch.py',
        'fedswitch',
        ('teacher and student swapped', 'trusts_student = ~by_teacher(', 'trusts_student = by_teacher('),
    ),
]


# Written after tests/ had been cut to two thirds, from the code alone
AFTER_THE_CUT = [
    *of(
        'core/hparams.py',
        'phases semisfl fedavg fed_shvr',
        (
            'the learning rate begins at half',
            '0.5 * (hparams.lr - hparams.lr_min) * (1.0',
            '0.25 * (hparams.lr - hparams.lr_min) * (1.0',
        ),
        ('the L2 term is not clipped', '(*clip, *decay, step)', '(*decay, *clip, step)', 'phases semifl'),
        (
            'as many labels as other images',
            'config.batch_size // (1 + config.federation.mu)',
            'config.batch_size // (2 + 0 * config.federation.mu)',
            'config local_run fedavg',
        ),
    ),
    *of(
        'models/layers.py',
        'models_layers models batch_norm',
        ('biased after all', 'new_variance + share / fewer', 'new_variance'),
        ('BatchNorm forgets', 'momentum=MOMENTUM, epsilon=1e-5', 'momentum=1 - MOMENTUM, epsilon=1e-5'),
        ('no shortcut', 'y = x.astype(y.dtype) + y\n', 'y = y.astype(y.dtype)\n'),
        ('weights as wide as their variance', 'bound = fan_in**-0.5', 'bound = (fan_in / 3) ** -0.5'),
        (
            'dropout in evaluation',
            'deterministic=not train)(x)\n        return mean',
            'deterministic=False)(x)\n        return mean',
        ),
    ),
    *of(
        'augment/variants.py',
        'augment augment_views',
        ('a level beyond the last', '_choice(v, variant.levels - variant.first)', '_choice(v, variant.levels)'),
        ('every image is changed', '_sign(sign), applied < 0.5)', '_sign(sign), applied < 1.5)'),
        ('crops to the left alone', '_choice(left, 2 * pad[1] + 1)', '_choice(left, pad[1] + 1)'),
        ('more bits at low levels', 'return int(v * 4 / FULL_STRENGTH) + 4', 'return 8 - int(v * 4 / FULL_STRENGTH)'),
    ),
    *of(
        'config/resolve.py',
        'config fedavg_config trials presets',
        ('clients weigh alike by default', "'samples' if method.by_images", "'uniform' if method.by_images"),
        ('a schedule of one round', 'resolved.lr_rounds = resolved.rounds', 'resolved.lr_rounds = 1'),
        (
            'every trial with the first seed',
            'trial.update(seed=seed, seeds=())',
            'trial.update(seed=config.seeds[0], seeds=())',
        ),
        ('every key makes another run', 'if key not in INERT and not (', 'if not ('),
    ),
    *of(
        'training/diagnostics.py',
        'diagnostics',
        (
            'true class and label swapped',
            'np.where(truth < 0, classes, truth)) * classes + labels',
            'labels) * classes + np.where(truth < 0, 0, truth)',
        ),
        ('right among all images', '_ratio(np.diagonal(labels), given))', '_ratio(np.diagonal(labels), images))'),
        ('a sum of squares', 'return jnp.sqrt(jnp.stack(list(sums)))', 'return jnp.stack(list(sums))'),
    ),
    *of(
        'compare.py',
        'compare',
        ('seeds that only one has', 'sorted(first.keys() & second.keys())', 'sorted(first)[: len(second)]'),
        ('the first evaluations', 'float(np.mean(values[-last:]))', 'float(np.mean(values[:last]))'),
    ),
    *of(
        'plots/curves.py',
        'plots plots_runs plots_looks',
        ('bands of two errors', 'mean - error, mean + error', 'mean - 2 * error, mean + 2 * error'),
        ('right labels for wrong ones', 'curve._replace(mean=1.0 - curve.mean)', 'curve._replace(mean=curve.mean)'),
    ),
    *of(
        'core/losses.py',
        'losses phases',
        ('lower classes attract', '(labels[:, None] == references', '(labels[:, None] >= references'),
    ),
    *of(
        'core/local.py',
        'phases fedavg',
        ('a sum in place of the average', 'ClientWeights(weight, share,', 'ClientWeights(weight, weight,'),
    ),
    *of(
        'core/cross_entity.py', 'phases semisfl', ('a step of the average', 'g * context.num_participating', 'g * 1.0')
    ),
    *of(
        'training/driver.py',
        'trials',
        ('K_s of the first trial', 'np.int32(controller.k_s) for', 'np.int32(controllers[0].k_s) for'),
    ),
    *of(
        'algorithms/feddure.py',
        'regulators feddure',
        ('one weight for all', '(factors / values.size)', '((jnp.mean(factors) + 0 * factors) / values.size)'),
    ),
    *of(
        'data/partition_file.py',
        'data_partition_file',
        ('a split of other data', 'if partition.checksum != dataset.checksum:', 'if False:'),
    ),
    *of('runs.py', 'compare plots_runs', ('settings that differ are one group', '.add(json.dumps(value))', ".add('')")),
]

MUTANTS = [
    *LOSSES,
    *QUEUE,
    *EMA,
    *FREQUENCY,
    *SAMPLING,
    *CROSS_ENTITY,
    *CROSS_ENTITY_LOSS,
    *LABELING,
    *SUPERVISED,
    *LOCAL,
    *DENSE,
    *OTHERS,
    *CLIENTS,
    *SPLITS,
    *PRICES,
    *RUNS,
    *STUDIES,
    *METHODS,
    *AFTER_THE_CUT,
]


def changed(mutant, root=ROOT):
    """The mutant's file, changed."""
    text = Path(root, 'semisfl_jax', mutant.file).read_text()
    assert text.count(mutant.old) == 1, f'{mutant.file}: {mutant.old!r} stands there {text.count(mutant.old)} times'
    return text.replace(mutant.old, mutant.new)


def failures(root, name, environment, *options):
    """The tests of tests/test_NAME.py in `root` that fail."""
    options = ('-p', 'no:cacheprovider', '-p', 'no:xdist', '-rfE', '--tb=no', *options)
    command = [sys.executable, '-m', 'pytest', *options, f'tests/test_{name}.py']
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)
    failed = re.findall(r'^(?:FAILED|ERROR) (?:tests/test_)?(.*?)(?: - |$)', result.stdout, re.MULTILINE)
    assert (result.returncode, bool(failed)) in ((0, False), (1, True)), result.stdout + result.stderr
    return failed


def copy(root):
    """The tracked files of this repository but for results."""
    tracked = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split('\0')):
        if not name.startswith('results/') and Path(ROOT, name).exists():
            Path(root, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(ROOT, name), Path(root, name))


def read(path):
    """Prints, of a matrix, the tests that alone kill a mutant, then how many each file kills and who survived."""
    with Path(path).open(newline='') as file:
        rows = list(csv.DictReader(file))
    killers = collections.defaultdict(list)
    for row in rows:
        killers[row['file'], row['mutant']] += row['failed'].split(';') if row['failed'] else []
    for (file, name), tests in sorted(killers.items()):
        if len(tests) == 1:
            print(f'alone: {tests[0]}: {file}: {name}')
    of_files = collections.Counter(row['tests'] for row in rows if row['failed'])
    for name in sorted({row['tests'] for row in rows}):
        print(f'{name}: kills {of_files[name]}')
    survivors = sorted(f'{file}: {name}' for (file, name), tests in killers.items() if not tests)
    print('\n'.join(f'SURVIVED {survivor}' for survivor in survivors))
    print(f'{len(killers) - len(survivors)} of {len(killers)} killed')
    return int(bool(survivors))


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('words', nargs='*')
    parser.add_argument('--slow', action='store_true')
    parser.add_argument('--part', default='1/1')
    parser.add_argument('--matrix', type=Path)
    parser.add_argument('--read', type=Path)
    given = parser.parse_args(arguments)
    if given.read:
        return read(given.read)
    part, parts = map(int, given.part.split('/'))
    chosen = [m for m in MUTANTS if not given.words or any(word in f'{m.file} {m.name}' for word in given.words)]
    chosen, survivors, done = chosen[part - 1 :: parts], 0, set()
    if given.matrix and given.matrix.exists():
        with given.matrix.open(newline='') as file:
            done = {(row['file'], row['mutant'], row['tests']) for row in csv.DictReader(file)}
    elif given.matrix:
        given.matrix.write_text('file,mutant,tests,failed\n')
    options = (*(('-m', '') if given.slow else ()), *(() if given.matrix else ('-x',)))
    with tempfile.TemporaryDirectory() as root:
        copy(root)
        # Most programs are the same under most mutants.
        paths = {'PYTHONPATH': root, 'TESTS_CACHE': f'{root}/programs', 'PYTHONDONTWRITEBYTECODE': '1'}
        for mutant in chosen:
            file, killed_by = Path(root, 'semisfl_jax', mutant.file), []
            file.write_text(changed(mutant))
            for name in mutant.tests.split():
                if (mutant.file, mutant.name, name) in done or (killed_by and not given.matrix):
                    continue
                killed_by += (failed := failures(root, name, os.environ | paths, *options))
                if given.matrix:
                    with given.matrix.open('a', newline='') as table:
                        csv.writer(table).writerow([mutant.file, mutant.name, name, ';'.join(failed)])
            file.write_text(Path(ROOT, 'semisfl_jax', mutant.file).read_text())
            survivors += not killed_by
            print(
                f'{mutant.file}: {mutant.name}:', f'killed by {killed_by[0]}' if killed_by else 'SURVIVED', flush=True
            )
    print(f'{len(chosen) - survivors} of {len(chosen)} killed')
    return int(survivors > 0)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
