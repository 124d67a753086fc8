"""A split of the data in words, for the description of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from semisfl_jax.data import Partition


def clients(partitions: Sequence[Partition], all_labels: bool) -> str:
    """By which rules the clients got their images, and how many: 'uniform, 139 to 140 images each'.

    Args:
      partitions: of all trials, which differ in their seeds alone.
      all_labels: clients know the labels of all their images.
    """
    first = partitions[0]
    parts = [_rule(first), _each(rows for partition in partitions for rows in partition.client_index)]
    if 'mismatch' in first.settings:
        parts.insert(1, f'mismatch {first.settings["mismatch"]}')
    if tasks := first.settings.get('tasks'):
        parts.insert(0, f'{first.num_clients // len(tasks)} of each task')
        parts.append(f'{first.settings["task_images"]} between tasks')
    if all_labels:
        parts.append('all of them labeled')
        if 'all_labels' in first.settings:
            parts.append(f'{first.settings["num_labeled"]:,} by {_rule(first, labeled=True)}')
    elif labeled := sum(map(len, first.client_labeled_index)):
        own = first.settings.get('labeled_partition', 'same') != 'same'
        parts.append(f'{labeled:,} more with labels' + (f' by {_rule(first, labeled=True)}' if own else ''))
        parts.append(_each(rows for partition in partitions for rows in partition.client_labeled_index))
    return ', '.join(parts)


def _rule(partition: Partition, labeled: bool = False) -> str:
    """A rule and its parameter: 'dirichlet(alpha=0.1)', 'classes(2 per client)'."""
    settings = partition.settings
    rule, alpha = settings.get('partition', 'a rule of its own'), settings.get('alpha')  # a file may have none
    if labeled:
        rule, alpha = settings['labeled_partition'], settings.get('labeled_alpha', alpha)
    if rule == 'classes':
        return f'classes({settings["classes_per_client"]} per client)'
    return f'{rule}(alpha={alpha})' if rule.startswith('dirichlet') else rule


def _each(parts: Iterable[np.ndarray]) -> str:
    sizes = [len(rows) for rows in parts]
    least, most = min(sizes), max(sizes)
    return f'{least:,} to {most:,} images each' if least < most else f'{least:,} images each'
