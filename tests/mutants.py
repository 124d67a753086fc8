"""Failures that the tests must notice: one change of the package at a time, and the tests that should fail under it.

    python -m tests.mutants              all of them
    python -m tests.mutants queue ema    those whose file or name contains one of these words

For each mutant a copy of the package is changed in one place, and the default selection of the named test files is run
on it, file by file until a test fails. It prints which test that was, or SURVIVED; the exit status is 1 if one did.
tests/test_mutants.py checks that the table fits the package.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COPIED = ('semisfl_jax', 'tests', 'configs', 'docs', 'colabs', 'launch.py', 'pyproject.toml', 'README.md')


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
    ('keys that are not due move the head', 'ring.head + pushed)', 'ring.head + rows)', 'failures'),
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
    'sampling fedavg phases semifl semifl_pieces',
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
    'phases semisfl fedswitch_sl',
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
    'phases semisfl fedswitch_sl row_losses',
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
    'phases semisfl fedswitch_sl',
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
    ('kept momentum is forgotten', 'state = state.replace(opt_state=opt_state)', 'pass', 'phases semifl semifl_pieces'),
)

LOCAL = of(
    'core/local.py',
    'phases fedavg splitfed',
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
        'tasks_keypoints',
        ('a point is taken twice', 'return free & ~chosen,', 'return free,'),
        ('the farthest point', 'jnp.argmin(distance, axis=-1)', 'jnp.argmax(distance * (within & free), axis=-1)'),
        ('every pixel is a peak', 'return maps >= around', 'return maps > -jnp.inf'),
        ('a curve that is not interpolated', 'prepend=0.0) * best', 'prepend=0.0) * precision'),
    ),
    *of(
        'training/evaluation.py',
        'trivial',
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
        'augment_batches',
        ('images are not changed', '-(-jnp.sum(~same) // at_once)', 'jnp.sum(~same) // at_once'),
        ('a step that some need is left out', 'lax.cond(jnp.any(needed)', 'lax.cond(jnp.all(needed)'),
    ),
    *of('augment/operations.py', 'augment_batches', ('shears are not mixed', 'moved_alone &= ~sheared', 'pass')),
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
        'switching',
        ('the boundary itself is skewed', 'skew(counts) > beta_iid', 'skew(counts) >= beta_iid'),
        ('no evidence is even', 'jnp.log(float(classes)))', '0.0)'),
    ),
    *of(
        'algorithms/semifl.py',
        'static_batch_norm semifl semifl_pieces',
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
        ('one stream of dropout', "rng.fold(key, 'bottom')", "rng.fold(key, 'top')", 'phases splitfed'),
    ),
    *of(
        'algorithms/fed_shvr.py',
        'sharpened',
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
        'regulators feddure',
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
]


def changed(mutant, root=ROOT):
    """The mutant's file, changed."""
    text = Path(root, 'semisfl_jax', mutant.file).read_text()
    assert text.count(mutant.old) == 1, f'{mutant.file}: {mutant.old!r} stands there {text.count(mutant.old)} times'
    return text.replace(mutant.old, mutant.new)


def killer(root, name, environment):
    """The first test of tests/test_NAME.py in `root` that fails, or None."""
    options = ('-x', '-p', 'no:cacheprovider', '-p', 'no:xdist', '-rfE', '--tb=no')
    command = [sys.executable, '-m', 'pytest', *options, f'tests/test_{name}.py']
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)
    if result.returncode == 0:
        return None
    failed = re.search(r'^(?:FAILED|ERROR) (?:tests/test_)?(.*?)(?: - |$)', result.stdout, re.MULTILINE)
    assert result.returncode == 1, result.stdout + result.stderr
    assert failed, result.stdout + result.stderr
    return failed[1]


def copy(root):
    """What the tests need of this repository."""
    for name in COPIED:
        if Path(ROOT, name).is_dir():
            shutil.copytree(Path(ROOT, name), Path(root, name), ignore=shutil.ignore_patterns('__pycache__'))
        else:
            shutil.copy(Path(ROOT, name), root)


def main(words):
    if {'-h', '--help'} & set(words):
        print(__doc__)
        return 0
    chosen = [m for m in MUTANTS if not words or any(word in f'{m.file} {m.name}' for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory() as root:
        copy(root)
        # Most programs are the same under most mutants.
        paths = {'PYTHONPATH': root, 'TESTS_CACHE': f'{root}/programs', 'PYTHONDONTWRITEBYTECODE': '1'}
        for mutant in chosen:
            file = Path(root, 'semisfl_jax', mutant.file)
            file.write_text(changed(mutant))
            found = (killer(root, name, os.environ | paths) for name in mutant.tests.split())
            killed_by = next(filter(None, found), None)
            file.write_text(Path(ROOT, 'semisfl_jax', mutant.file).read_text())
            survivors += killed_by is None
            print(f'{mutant.file}: {mutant.name}:', f'killed by {killed_by}' if killed_by else 'SURVIVED', flush=True)
    print(f'{len(chosen) - survivors} of {len(chosen)} killed')
    return int(survivors > 0)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
