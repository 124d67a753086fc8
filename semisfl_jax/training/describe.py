"""Describes a run in the few lines that are printed before it starts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from semisfl_jax.base.errors import count, size
from semisfl_jax.core import trees
from semisfl_jax.core.state import trainable
from semisfl_jax.data import Partition
from semisfl_jax.training.experiment import Experiment

_PSEUDO_LABELS = {
    'true': 'ORACLE: pseudo-labels are replaced by the true labels, which no real method has',
    'none': 'NO PSEUDO-LABELS: all are ignored; the rest of the method is unchanged',
}


def describe(trials: Sequence[Experiment], devices: int = 1) -> list[str]:
    """Describes a run in a few lines.

    Args:
      trials: [R], usually one.
      devices: number of devices that divide the clients of one trial, or several trials.
    """
    experiment = trials[0]
    config, dataset, partition = experiment.config, experiment.dataset, experiment.partition
    height, width, channels = dataset.train_images.shape[1:]
    seeds = f'seed{"s" if len(trials) > 1 else ""} {", ".join(str(trial.config.seed) for trial in trials)}'
    tasks = config.data.tasks
    kinds = f'{count(len(tasks), "task")}: {", ".join(tasks)}' if tasks else ''
    labeled = f'{len(partition.server_index):,} labeled images' if len(partition.server_index) else 'no images'
    labeled += ' at the server'
    if len(partition.server_index) and not tasks:
        seen = [{*dataset.train_labels[trial.partition.server_index].tolist()} for trial in trials]
        if lacking := dataset.num_classes - len(set.intersection(*seen)):
            labeled += f' (WARNING: {lacking} of {dataset.num_classes} classes have no label)'
    clients = 'no clients'
    if experiment.method.clients:
        clients = f'{partition.num_clients} clients, '
        clients += describe_clients([trial.partition for trial in trials], config.data.client_labels == -1)
        clients += f', {config.federation.num_active} active in a round'
    weights = trainable(experiment.state_shapes.student)
    parameters = f'{sum(leaf.size for leaf in jax.tree.leaves(weights)):,} parameters{" of all tasks" if tasks else ""}'
    for side, piece in (('BELOW', weights.bottom), ('ABOVE', weights.top)):
        parameters += '' if jax.tree.leaves(piece) else f' (NONE {side} THE CUT)'
    device = jax.devices()[0]
    shares = f', {devices} devices' if devices > 1 else ''
    shares += ', which share the seeds' if shares and len(trials) > 1 else ''
    shares += f' in {jax.process_count()} processes' if jax.process_count() > 1 else ''
    lines = [
        f'algorithm  {config.algorithm}, {count(config.rounds, "round")}, {seeds}',
        f'data       {dataset.name}: {len(dataset.train_images):,} training and {_evaluated(experiment)} '
        f'images of {height}x{width}x{channels}, {kinds or f"{dataset.num_classes} classes"}',
        f'split      {labeled}; {clients}, {_origin(config, len(trials))}',
        f'model      {config.model.name}, {parameters}',
        f'device     {device.platform} ({device.device_kind}){shares}',
    ]
    if nbytes := trees.nbytes(getattr(experiment.state_shapes, 'clients', ())):
        each, total = size(nbytes / partition.num_clients), size(nbytes * len(trials))
        lines.append(f'memory     each client keeps {each} between rounds, {total} in total')
    if experiment.method.price is None:
        lines.append(f'costs      none: {config.algorithm} has no price (docs/your-own.md)')
    if warning := _PSEUDO_LABELS.get(config.pseudo_labels):
        lines.insert(0, f'*** {warning} (pseudo_labels={config.pseudo_labels}) ***')
    if dataset.fake:
        lines.insert(0, '*** FAKE DATA: the images are synthetic, and the accuracies mean nothing ***')
    return lines


def _evaluated(experiment: Experiment) -> str:
    """Counts the evaluated images, '10,000 test', and those that are held out."""
    held_out, split = len(experiment.partition.validation_index), experiment.dataset.eval_split
    if split == 'validation':
        return f'{held_out:,} held-out VALIDATION'
    unused = f'({held_out:,} of them held out and unused) and ' if held_out else ''
    return f'{unused}{len(experiment.dataset.test_images):,} test'


def _origin(config: ConfigDict, trials: int) -> str:
    """Says where the split of the trials comes from."""
    if config.data.partition_file:
        return f'the split of {config.data.partition_file}'
    if config.data.partition_seed != -1:
        return f'one split for all seeds (partition_seed={config.data.partition_seed})'
    return 'each seed draws its own split' if trials > 1 else f'drawn from seed {config.seed}'


def describe_clients(partitions: Sequence[Partition], all_labels: bool) -> str:
    """Describes how the clients of all trials got their images, and how many: 'uniform, 139 to 140 images each'.

    Args:
      partitions: [R] splits, all by the same rule.
      all_labels: whether clients know the labels of all their images.
    """
    first = partitions[0]
    settings = first.settings
    parts = [_rule(settings), f'{_range(len(rows) for split in partitions for rows in split.client_index)} images each']
    if 'mismatch' in settings:
        parts.insert(1, f'mismatch {settings["mismatch"]}')
    if tasks := settings.get('tasks'):
        parts.insert(0, f'{first.num_clients // len(tasks)} of each task')
        parts.append(f'{settings["task_images"]} between tasks')
    if all_labels:
        parts.append('all of them labeled')
    elif labeled := sum(map(len, first.client_labeled_index)):
        parts.append(f'{labeled:,} more with labels')
        held = (len(rows) for split in partitions for rows in split.client_labeled_index)
        parts.append(f'{_range(held)} images each')
    return ', '.join(parts)


def _rule(settings: Mapping[str, Any]) -> str:
    """Names a rule and its parameter: 'dirichlet(alpha=0.1)', 'classes(2 per client)'."""
    rule = settings.get('partition', 'a rule of its own')  # the split's file may name none
    if rule == 'classes':
        return f'classes({settings["classes_per_client"]} per client)'
    return f'{rule}(alpha={settings.get("alpha")})' if rule.startswith('dirichlet') else rule


def _range(numbers: Iterable[int]) -> str:
    """Formats the range of some numbers: '139 to 140', or '140'."""
    counts = sorted(set(numbers))
    return f'{counts[0]:,}' if len(counts) == 1 else f'{counts[0]:,} to {counts[-1]:,}'
