"""What a run reports: the lines of metrics.jsonl, summary.json and the final message on the screen."""

from __future__ import annotations

import math
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.tasks import Score, score_key, split_key
from semisfl_jax.training import metrics, totals, trivial, versions
from semisfl_jax.training.averages import mean_and_error
from semisfl_jax.training.evaluate import Scores
from semisfl_jax.training.experiment import Experiment
from semisfl_jax.training.totals import RunTotals

# Metrics that come first in a line of metrics.jsonl, null if the method lacks them; the others follow by name.
FIRST_KEYS = ('lr', 'loss_supervised', 'loss_consistency', 'loss_clustering', 'mask_rate', 'pseudo_label_accuracy')


def record(
    number: int,
    k_s: int,
    measured: dict[str, np.ndarray],
    scores: Scores,
    entries: dict[str, Any],
    seconds: float,
    images: int,
    marks: Mapping[str, bool],
) -> dict[str, Any]:
    """A line of metrics.jsonl; see `metrics.plain` for the numbers.

    `entries` come from `totals.entries`, `marks` from the function of that name. `seconds` and `images` are those of
    the round, over all of its trials.
    """
    names = [*FIRST_KEYS, *sorted(measured.keys() - set(FIRST_KEYS))]
    return {
        'round': number,
        'k_s': k_s,
        **{name: metrics.plain(measured.get(name)) for name in names},
        **{
            score_key(name, score): metrics.plain(value)
            for name in sorted(scores, reverse=True)
            for score, value in scores[name].items()
        },
        **entries,
        'wall_seconds': round(seconds, 6),
        'images_per_second': round(images / seconds, 6),
        **marks,
    }


def marks(experiment: Experiment) -> dict[str, bool]:
    """What every line of metrics.jsonl says where a reader might take its scores for others."""
    dataset = experiment.dataset
    chosen = {'fake': dataset.fake, 'validation': dataset.eval_split == 'validation'}
    return {name: True for name, holds in chosen.items() if holds}


def of_trial(
    experiment: Experiment,
    account: RunTotals,
    trivial_scores: Mapping[str, Mapping[str, float | None]],
    compile_seconds: dict[str, float],
    num_trials: int,
) -> dict[str, Any]:
    """The content of the summary.json of a trial, one of `num_trials` in a program, from its account after the last
    round. Memory and compile time are those of the last process of the run."""
    config = experiment.config
    return {
        'algorithm': config.algorithm,
        'data': experiment.dataset.name,
        'fake': experiment.dataset.fake,
        **({} if experiment.headline.split == 'test' else {'eval_split': experiment.headline.split}),
        **({} if config.pseudo_labels == 'method' else {'pseudo_labels': config.pseudo_labels}),
        'seed': config.seed,
        **totals.figures(account, experiment.headline, experiment.costs.enabled),
        **({'trivial_scores': dict(trivial_scores)} if trivial_scores else {}),
        'trials_in_program': num_trials,  # seconds and memory are those of all of them
        **_process(compile_seconds),
        'devices': experiment.mesh.size if experiment.mesh else 1,
        'processes': jax.process_count(),
        'config_hash': config_lib.identity_hash(config),
        'partition_seed': experiment.partition.settings.get('seed'),  # None: from a file without it
        'partition_hash': experiment.partition.content_hash,
    }


def of_trials(config: ConfigDict, trial_map: str, summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of the summary.json of several trials, from theirs: means, standard errors, and shared values."""
    first = summaries[0]
    means = (*totals.scores_of(totals.headline(first).score), *(name for name in metrics.COSTS if name in first))
    of_tasks = [name for name in ('scores', 'trivial_scores') if name in first]
    excluded = {'seed', 'k_s', 'trials_in_program', 'metrics_sha256', 'sha256', *of_tasks, *means}
    if len({trial_summary['partition_hash'] for trial_summary in summaries}) > 1:  # no split shared by all
        excluded |= {'partition_seed', 'partition_hash'}
    shared = {key: value for key, value in first.items() if key not in excluded}

    def over_trials(key: str, among: Sequence[dict[str, Any]] = summaries) -> dict[str, Any]:
        known = [trial_summary[key] for trial_summary in among if trial_summary[key] is not None]
        mean, error = mean_and_error(known) if known else (math.nan, math.nan)
        return {'mean': metrics.plain(mean), 'standard_error': metrics.plain(error)}

    def of_each_task(among: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {key: over_trials(key, among) for key in among[0]}

    trivially = {
        name: of_each_task([trial['trivial_scores'][name] for trial in summaries])
        for name in first.get('trivial_scores', {})
    }
    return {
        **shared,
        **{key: over_trials(key) for key in means},
        **({'scores': of_each_task([trial['scores'] for trial in summaries])} if 'scores' in first else {}),
        **({'trivial_scores': trivially} if trivially else {}),
        'trials': [{key: trial[key] for key in ('seed', *means, 'k_s', *of_tasks)} for trial in summaries],
        'trial_map': trial_map,
        'config_hash': config_lib.identity_hash(config),
    }


def final_message(summary: dict[str, Any], folder: Path | None) -> str:
    """The final message of a run, from its summary.json: two lines, or a small table of trials; and the scores of all
    tasks where there are several, beside those of trivial predictions."""
    marked = ' on FAKE data' if summary['fake'] else ''
    marked += {'true': ' (oracle)', 'none': ' (no pseudo-labels)'}.get(summary.get('pseudo_labels', ''), '')
    headline = totals.headline(summary)
    score, head = headline.score, f'{headline.text}{marked}'
    keys = final, last, best = totals.scores_of(score)
    of_tasks = {'all tasks': summary['scores']} if 'scores' in summary else {}
    of_tasks |= {trivial.NAMES[name]: scores for name, scores in summary.get('trivial_scores', {}).items()}
    others = [f'{name}: {_scores(scores, "trials" in summary)}' for name, scores in of_tasks.items()]
    where = [*others, *([f'outputs in {folder}'] if folder else [])]
    if 'trials' not in summary:
        line = (
            f'{head} {score.text(summary[final])} after {summary["rounds"]} rounds '
            f'(mean of the last evaluations, 10 at most, {score.text(summary[last])}, best {score.text(summary[best])})'
        )
        return '\n'.join([line, *where])
    table: list[tuple] = [('seed', 'final', 'mean of last', 'best', 'K_s')]
    for trial in summary['trials']:
        table.append((trial['seed'], *(score.text(trial[key]) for key in keys), trial['k_s']))
    if len(summary['trials']) > 1:
        table.append(('mean', *(_mean(score, summary[key]) for key in keys), ''))
    rows = (f'{name:>10}{final:>18}{last:>18}{best:>18}{k_s:>7}'.rstrip() for name, final, last, best, k_s in table)
    return '\n'.join([f'{head} after {summary["rounds"]} rounds', *rows, *where])


def _mean(score: Score, value: dict[str, Any]) -> str:
    """Mean and standard error, of trials."""
    error = value['standard_error']
    return score.text(value['mean']) + ('' if error is None else f' ± {score.text(error)}')


def _scores(scores: dict[str, Any], of_trials: bool) -> str:
    texts = []
    for key, value in scores.items():
        task = split_key(key)
        assert task is not None  # of a run
        texts.append(f'{task.text} {_mean(task.score, value) if of_trials else task.score.text(value)}')
    return ', '.join(texts)


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
