"""What a run is, in the few lines that are printed before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from semisfl_jax.core import trees
from semisfl_jax.core.errors import count, size
from semisfl_jax.core.state import trainable
from semisfl_jax.data import Partition
from semisfl_jax.training.experiment import Experiment

_PSEUDO_LABELS = {
    'true': 'ORACLE: the true labels take the place of pseudo-labels; no method can have them',
    'none': 'NO PSEUDO-LABELS: none counts, all else is as in the method',
}


def describe(trials: Sequence[Experiment], devices_of_trials: int = 1) -> list[str]:
    """A description of a run of these trials, usually one, in a few lines; so many devices divide them."""
    experiment = trials[0]
    config, dataset, partition = experiment.config, experiment.dataset, experiment.partition
    height, width, channels = dataset.train_images.shape[1:]
    seeds = f'seed{"s" if len(trials) > 1 else ""} {", ".join(str(trial.config.seed) for trial in trials)}'
    tasks = config.data.tasks
    kinds = f'{count(len(tasks), "task")}: {", ".join(tasks)}' if tasks else ''
    labeled = f'{len(partition.server_index):,} labeled images' if len(partition.server_index) else 'no images'
    if len(partition.server_index) and not tasks:
        seen = [{*dataset.train_labels[trial.partition.server_index].tolist()} for trial in trials]
        if lacking := dataset.num_classes - len(set.intersection(*seen)):
            labeled += f' (NONE OF {lacking} OF {dataset.num_classes} CLASSES)'
    clients = 'no clients'
    if experiment.method.clients:
        clients = f'{partition.num_clients} clients, '
        clients += describe_clients([trial.partition for trial in trials], config.data.client_labels == -1)
        clients += f', {config.federation.num_active} active in a round'
    parameters = sum(leaf.size for leaf in jax.tree.leaves(trainable(experiment.state_shapes.student)))
    device = jax.devices()[0]
    devices = f', {experiment.mesh.size} of them' if experiment.mesh else ''
    devices += f', {devices_of_trials} of them, which divide the seeds' if devices_of_trials > 1 else ''
    devices += f' in {jax.process_count()} processes' if jax.process_count() > 1 else ''
    lines = [
        f'algorithm  {config.algorithm}, {count(config.rounds, "round")}, {seeds}',
        f'data       {dataset.name}: {len(dataset.train_images):,} training and {_evaluated(experiment)} '
        f'images of {height}x{width}x{channels}, {kinds or f"{dataset.num_classes} classes"}',
        f'split      {labeled} at the server; {clients}, {_origin(config, len(trials))}',
        f'model      {config.model.name}, {parameters:,} parameters{" of all tasks" if tasks else ""}',
        f'device     {device.platform} ({device.device_kind}){devices}',
    ]
    if kept := trees.nbytes(getattr(experiment.state_shapes, 'clients', ())):
        each, total = size(kept / partition.num_clients), size(kept * len(trials))
        lines.append(f'memory     each client keeps {each} between its rounds, {total} in all')
    if experiment.costs.price is None:
        lines.append(f'costs      none: {config.algorithm} has no price (docs/your-own.md)')
    if warning := _PSEUDO_LABELS.get(config.pseudo_labels):
        lines.insert(0, f'*** {warning} (pseudo_labels={config.pseudo_labels}) ***')
    if dataset.fake:
        lines.insert(0, '*** FAKE DATA: the images are synthetic, and the accuracies mean nothing ***')
    return lines


def _evaluated(experiment: Experiment) -> str:
    """'10,000 test', and whatever is held out."""
    held_out, split = len(experiment.partition.validation_index), experiment.dataset.eval_split
    if split == 'validation':
        return f'(held out of them) {held_out:,} VALIDATION'
    unused = f'(except {held_out:,} that are held out, not used) and ' if held_out else ''
    return f'{unused}{len(experiment.dataset.test_images):,} test'


def _origin(config: ConfigDict, trials: int) -> str:
    """Where the split of these trials comes from."""
    if config.data.partition_file:
        return f'the split of {config.data.partition_file}'
    if config.data.partition_seed != -1:
        return f'one split for all seeds (partition_seed={config.data.partition_seed})'
    return 'each seed draws its own split' if trials > 1 else f'drawn from seed {config.seed}'


def describe_clients(partitions: Sequence[Partition], all_labels: bool) -> str:
    """By which rules the clients of all trials got their images, and how many: 'uniform, 139 to 140 images each'."""
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
    """A rule and its parameter: 'dirichlet(alpha=0.1)', 'classes(2 per client)'."""
    rule = settings.get('partition', 'a rule of its own')  # a file may have none
    if rule == 'classes':
        return f'classes({settings["classes_per_client"]} per client)'
    return f'{rule}(alpha={settings.get("alpha")})' if rule.startswith('dirichlet') else rule


def _range(numbers: Iterable[int]) -> str:
    """'139 to 140', or '140'."""
    counts = sorted(set(numbers))
    return f'{counts[0]:,}' if len(counts) == 1 else f'{counts[0]:,} to {counts[-1]:,}'
