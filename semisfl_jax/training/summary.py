"""What a run reports: the lines of metrics.jsonl, summary.json and the final message on the screen."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.training import metrics, totals, versions
from semisfl_jax.training.experiment import Experiment
from semisfl_jax.training.totals import Account

# Metrics that come first in a line of metrics.jsonl, null if the method lacks them; the others follow by name.
FIRST_KEYS = ('lr', 'loss_supervised', 'loss_consistency', 'loss_clustering', 'mask_rate', 'pseudo_label_accuracy')
ACCURACIES = ('final_accuracy', 'mean_of_last_10_evaluations', 'best_accuracy')


def record(
    number: int,
    k_s: int,
    measured: dict[str, np.ndarray],
    accuracy: dict[str, float],
    entries: dict[str, Any],
    seconds: float,
    images: int,
    fake: bool,
) -> dict[str, Any]:
    """A line of metrics.jsonl; see `metrics.plain` for the numbers.

    `entries` come from `totals.entries`. `seconds` and `images` are those of the round, over all of its trials.
    """
    names = [*FIRST_KEYS, *sorted(measured.keys() - set(FIRST_KEYS))]
    return {
        'round': number,
        'k_s': k_s,
        **{name: metrics.plain(measured.get(name)) for name in names},
        **{f'{model}_accuracy': accuracy[model] for model in sorted(accuracy, reverse=True)},
        **entries,
        'wall_seconds': round(seconds, 6),
        'images_per_second': round(images / seconds, 6),
        **({'fake': True} if fake else {}),
    }


def of_trial(
    experiment: Experiment, account: Account, compile_seconds: dict[str, float], num_trials: int
) -> dict[str, Any]:
    """The content of the summary.json of a trial, one of `num_trials` in a program, from its account after the last
    round. Memory and compile time are those of the last process of the run."""
    config = experiment.config
    return {
        'algorithm': config.algorithm,
        'data': experiment.dataset.name,
        'fake': experiment.dataset.fake,
        'seed': config.seed,
        **totals.figures(account, experiment.algorithm.headline, experiment.costs.enabled),
        'trials_in_program': num_trials,  # seconds and memory are those of all of them
        **_process(compile_seconds),
        'devices': config.parallel.devices,
        'processes': jax.process_count(),
        'config_hash': config_lib.identity_hash(config),
        'partition_seed': experiment.partition.settings.get('seed'),  # None: from a file without it
        'partition_hash': experiment.partition.content_hash,
    }


def of_trials(config: ConfigDict, trial_map: str, summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of the summary.json of several trials, from theirs: means, standard errors, and shared values."""
    first = summaries[0]
    means = (*ACCURACIES, *(name for name in metrics.COSTS if name in first))
    excluded = {'seed', 'k_s', 'trials_in_program', 'metrics_sha256', 'sha256', *means}
    if len({trial_summary['partition_hash'] for trial_summary in summaries}) > 1:  # no split shared by all
        excluded |= {'partition_seed', 'partition_hash'}
    shared = {key: value for key, value in first.items() if key not in excluded}

    def over_trials(key: str) -> dict[str, Any]:
        mean, error = metrics.mean_and_error([trial_summary[key] for trial_summary in summaries])
        return {'mean': mean, 'standard_error': metrics.plain(error)}

    return {
        **shared,
        **{key: over_trials(key) for key in means},
        'trials': [{key: trial_summary[key] for key in ('seed', *means, 'k_s')} for trial_summary in summaries],
        'trial_map': trial_map,
        'config_hash': config_lib.identity_hash(config),
    }


def final_message(summary: dict[str, Any], folder: Path | None) -> str:
    """The final message of a run, from its summary.json: two lines, or a small table of trials."""
    fake = ' on FAKE data' if summary['fake'] else ''
    head = f'{summary["headline"]} accuracy{fake}'
    where = [f'outputs in {folder}'] if folder else []
    if 'trials' not in summary:
        line = (
            f'{head} {summary["final_accuracy"]:.2%} after {summary["rounds"]} rounds '
            f'(mean of the last 10 evaluations {summary["mean_of_last_10_evaluations"]:.2%}, '
            f'best {summary["best_accuracy"]:.2%})'
        )
        return '\n'.join([line, *where])
    table: list[tuple] = [('seed', 'final', 'mean of last 10', 'best', 'K_s')]
    for trial in summary['trials']:
        table.append((trial['seed'], *(f'{trial[key]:.2%}' for key in ACCURACIES), trial['k_s']))
    if len(summary['trials']) > 1:
        means = (f'{summary[key]["mean"]:.2%} ± {summary[key]["standard_error"]:.2%}' for key in ACCURACIES)
        table.append(('mean', *means, ''))
    rows = (f'{name:>10}{final:>18}{last:>18}{best:>18}{k_s:>7}'.rstrip() for name, final, last, best, k_s in table)
    return '\n'.join([f'{head} after {summary["rounds"]} rounds', *rows, *where])


def _process(compile_seconds: dict[str, float]) -> dict[str, Any]:
    """Measurements and versions of this process."""
    device = jax.devices()[0]
    on_device = (device.memory_stats() or {}).get('peak_bytes_in_use')
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)
    return {
        'compile_seconds': round(compile_seconds['round'], 3),
        'compile_seconds_evaluation': round(compile_seconds['evaluation'], 3),
        'peak_memory_bytes': on_device or resident,
        'peak_memory_of': 'device' if on_device else 'process',
        'device': f'{device.platform} ({device.device_kind})',
        'versions': {'python': platform.python_version(), **versions.installed()},
    }
