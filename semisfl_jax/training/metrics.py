"""What a run reports: the lines of metrics.jsonl, their totals, summary.json and the final message on the screen."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.config import failures
from semisfl_jax.core import file_io, machine
from semisfl_jax.core.errors import UserError, columns, count
from semisfl_jax.costs import Clients, RoundCost
from semisfl_jax.tasks import ACCURACY, SCORES, Headline, Score, score_key, split_key
from semisfl_jax.training import checkpoint, evaluation
from semisfl_jax.training.evaluation import Scores
from semisfl_jax.training.experiment import Experiment

GIB = 2**30  # bytes: the unit of traffic in figures and tables, called GB in the paper
COSTS = RoundCost._fields  # of all rounds so far
# Metrics that come first in a line of metrics.jsonl, null if the method lacks them; the others follow by name.
FIRST_KEYS = ('lr', 'loss_supervised', 'loss_consistency', 'loss_clustering', 'mask_rate', 'pseudo_label_accuracy')
LAST = 10  # evaluations over which scores are averaged, and in studies rounds over which pseudo-labels are


# --- lines of metrics.jsonl


def plain(value: Any) -> Any:
    """A JSON value: float32 by its shortest digits, NaN (not applicable) and infinities as null."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    number = np.asarray(value)[()]
    if np.issubdtype(number.dtype, np.integer):
        return int(number)
    shortest = float(str(number.astype(np.float32))) if number.dtype != np.float64 else float(number)
    return shortest if math.isfinite(shortest) else None


def make_record(
    experiment: Experiment,
    number: int,
    k_s: int,
    measured: Mapping[str, Any],
    scores: Scores,
    cost: RoundCost,
    clients: Clients | None,
    seconds: float,
    images: int,
) -> dict[str, Any]:
    """A line of metrics.jsonl, of round `number` (1-based). `cost` is that of all rounds so far, `scores` are
    {} without an evaluation, `clients` None in a round without; `seconds` and `images` are of all trials."""
    names = [*FIRST_KEYS, *sorted(measured.keys() - set(FIRST_KEYS))]
    record = {'round': number, 'k_s': k_s} | {name: plain(measured.get(name)) for name in names}
    for name in sorted(scores, reverse=True):
        record |= {score_key(name, score): plain(value) for score, value in scores[name].items()}
    if experiment.costs.enabled:
        record |= cost._asdict()
    if failures.can_happen(experiment.config.failures):
        survived, failed = (clients.survived, clients.failed) if clients else ((), ())
        record |= {'clients': int(np.sum(survived)), 'clients_failed': int(np.sum(failed))}
    record |= {'wall_seconds': round(seconds, 6), 'images_per_second': round(images / seconds, 6)}
    if experiment.dataset.fake:  # a reader might take its scores for others
        record['fake'] = True
    if experiment.dataset.eval_split == 'validation':
        record['validation'] = True
    return record


def append(path: Path, record: dict[str, Any]) -> None:
    """Adds one line to metrics.jsonl."""
    try:
        with path.open('a') as file:
            file.write(json.dumps(record) + '\n')
    except OSError as error:
        error.filename = os.fspath(path)  # for the line that says what is full
        raise


def read(path: Path, rounds: int | None = None) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl, at most `rounds`; a last line truncated by a kill is skipped. Empty if there
    is no file.

    Raises:
      UserError: it is not a regular file, or a line is not one that a run writes.
    """
    records = []
    for number, text in enumerate(_lines(path)[:rounds], start=1):
        record = file_io.parse_json(text, f'{path}, line {number},', '; restore the file from a copy')
        if not isinstance(record, dict) or type(record.get('round')) is not int:
            raise UserError(f'{path}, line {number}, has no round; restore the file from a copy')
        records.append(record)
    return records


def _lines(path: Path) -> list[bytes]:
    return file_io.read(path).split(b'\n')[:-1] if os.path.lexists(path) else []


def check_rounds(path: Path, rounds: int) -> list[dict[str, Any]]:
    """The rounds 1 .. `rounds` of metrics.jsonl, which may hold later ones, too, that a run may rewrite.

    Raises:
      UserError: it does not hold these, or was not written by a run.
    """
    records = read(path, rounds)
    if [record['round'] for record in records] != list(range(1, rounds + 1)):
        raise UserError(
            f'{path} does not have the rounds 1 to {rounds} that the run has; restore the file, or start again in '
            'another --workdir'
        )
    return records


def truncate(path: Path, rounds: int) -> None:
    """Truncates metrics.jsonl to its first `rounds` lines."""
    content = b''.join(text + b'\n' for text in _lines(path)[:rounds])
    if os.path.lexists(path) and content != file_io.read(path):
        file_io.write(path, content)


def as_arrays(records: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """T lines of metrics.jsonl -> {name: [T]}: integers where every line has one, else float64, NaN for none."""
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    return {
        name: np.array([math.nan if value is None else value for value in column], np.float64)
        if None in column
        else np.array(column)
        for name, column in columns.items()
    }


# --- totals


class RunTotals(NamedTuple):
    """Totals of a trial after some rounds; scores are those of the method's headline.

    They are kept in the checkpoints, never read back from metrics.jsonl, so edits to that file do not reach later lines
    or the summary.
    """

    rounds: int = 0
    k_s: int = 0  # of the last round
    bill: RoundCost = RoundCost()
    wall_seconds: float = 0.0  # of the rounds, excluding compilation, evaluation and saving
    evaluations: int = 0
    last_scores: tuple[float | None, ...] = ()  # at most `LAST`, oldest first; None where the images define none
    best_score: float | None = None
    scores: Mapping[str, float] = MappingProxyType({})  # of all tasks, in the last evaluation, by key of metrics.jsonl


def update_totals(
    totals: RunTotals, bill: RoundCost, record: Mapping[str, Any], headline: Headline, tasks: Sequence[str] = ()
) -> RunTotals:
    """The totals after one more round, from its line of metrics.jsonl and the costs of all rounds. `tasks` are the keys
    of the scores of dense tasks."""
    scores = [record[headline.key]] if headline.key in record else []
    known = [score for score in (totals.best_score, *scores) if score is not None]
    return RunTotals(
        rounds=record['round'],
        k_s=record['k_s'],
        bill=bill,
        wall_seconds=totals.wall_seconds + record['wall_seconds'],
        evaluations=totals.evaluations + len(scores),
        last_scores=(*totals.last_scores, *scores)[-LAST:],
        best_score=headline.score.best(known) if known else None,
        scores={key: record[key] for key in tasks} if scores else totals.scores,
    )


def totals_to_json(totals: RunTotals) -> dict[str, Any]:
    """The totals as stored in a checkpoint."""
    return {**totals._asdict(), 'scores': dict(totals.scores)}


def totals_from_json(value: Mapping[str, Any]) -> RunTotals:
    """The inverse of `totals_to_json`."""
    return RunTotals(**{**value, 'bill': RoundCost(*value['bill']), 'last_scores': tuple(value['last_scores'])})


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of the mean of n values, at least one, in their unit. The error of a single value is NaN.

    As scipy.stats.sem has it; importing that takes longer than a table of runs.
    """
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


# --- summary.json


def score_keys(score: Score) -> tuple[str, str, str]:
    """The keys of the headline's values in summary.json."""
    return f'final_{score.name}', f'mean_of_last_{LAST}_evaluations', f'best_{score.name}'


def read_headline(summary: Mapping[str, Any]) -> Headline:
    """The headline of a run, from its summary.json.

    Raises:
      KeyError: that has none.
    """
    names = (key.removeprefix('final_') for key in summary if key.startswith('final_'))
    score = next((SCORES[name] for name in names if name in SCORES), ACCURACY)
    return Headline(summary['headline'], score, summary.get('eval_split', 'test'))


def total_entries(totals: RunTotals, headline: Headline, with_costs: bool) -> dict[str, Any]:
    """The entries of summary.json for the totals after the last round, which is always evaluated."""
    known = [score for score in totals.last_scores if score is not None]
    values = totals.last_scores[-1], float(np.mean(known)) if known else None, totals.best_score
    return {
        'headline': headline.output,
        **dict(zip(score_keys(headline.score), values, strict=True)),
        **({'scores': dict(totals.scores)} if totals.scores else {}),
        'evaluations': totals.evaluations,
        'rounds': totals.rounds,
        'k_s': totals.k_s,
        **(totals.bill._asdict() if with_costs else {}),
        'wall_seconds': round(totals.wall_seconds, 3),
    }


def summarize_trial(
    experiment: Experiment,
    totals: RunTotals,
    trivial_scores: Mapping[str, Mapping[str, float]],
    compile_seconds: dict[str, float],
    num_trials: int,
) -> dict[str, Any]:
    """The content of the summary.json of a trial, one of `num_trials` in a program, from its totals after the last
    round. Memory, compile time, processor and commit are those of the last process of the run."""
    config, headline = experiment.config, experiment.headline
    trivial = {name: {key: plain(v) for key, v in scores.items()} for name, scores in trivial_scores.items()}
    device = jax.devices()[0]
    on_device = machine.memory_stats(device).get('peak_bytes_in_use')
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)
    return {
        'algorithm': config.algorithm,
        'data': experiment.dataset.name,
        'fake': experiment.dataset.fake,
        **({} if headline.split == 'test' else {'eval_split': headline.split}),
        **({} if config.pseudo_labels == 'method' else {'pseudo_labels': config.pseudo_labels}),
        'seed': config.seed,
        **total_entries(totals, headline, experiment.costs.enabled),
        **({'trivial_scores': trivial} if trivial else {}),
        'trials_in_program': num_trials,  # seconds and memory are those of all of them
        'compile_seconds': round(compile_seconds['round'], 3),
        'compile_seconds_evaluation': round(compile_seconds['evaluation'], 3),
        'peak_memory_bytes': on_device or resident,
        'peak_memory_of': 'device' if on_device else 'process',
        'device': f'{device.platform} ({device.device_kind})',
        'processor': machine.processor(),
        'commit': checkpoint.commit(),
        'versions': {'python': platform.python_version(), **checkpoint.installed_versions()},
        'devices': experiment.mesh.size if experiment.mesh else 1,
        'processes': jax.process_count(),
        'config_hash': config_lib.identity_hash(config),
        'partition_seed': experiment.partition.settings.get('seed'),  # None: from a file without it
        'partition_hash': experiment.partition.content_hash,
    }


def summarize_trials(config: ConfigDict, trial_map: str, summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of the summary.json of several trials, from theirs: means, standard errors, and shared values."""
    first = summaries[0]
    means = (*score_keys(read_headline(first).score), *(name for name in COSTS if name in first))
    of_tasks = [name for name in ('scores', 'trivial_scores') if name in first]
    excluded = {'seed', 'k_s', 'trials_in_program', 'sha256', *of_tasks, *means}
    if len({trial_summary['partition_hash'] for trial_summary in summaries}) > 1:  # no split shared by all
        excluded |= {'partition_seed', 'partition_hash'}
    shared = {key: value for key, value in first.items() if key not in excluded}

    def over_trials(*values: Any) -> dict[str, Any]:
        if isinstance(values[0], dict):  # of several scores
            return {key: over_trials(*(of_trial[key] for of_trial in values)) for key in values[0]}
        known = [value for value in values if value is not None]
        mean, error = mean_and_error(known) if known else (math.nan, math.nan)
        return {'mean': plain(mean), 'standard_error': plain(error)}

    return {
        **shared,
        **{key: over_trials(*(trial_summary[key] for trial_summary in summaries)) for key in (*means, *of_tasks)},
        'trials': [{key: trial[key] for key in ('seed', *means, 'k_s', *of_tasks)} for trial in summaries],
        'trial_map': trial_map,
        'config_hash': config_lib.identity_hash(config),
    }


def final_message(summary: dict[str, Any], folder: Path | None) -> str:
    """The final message of a run, from its summary.json: the headline's score, of several seeds the mean with its
    standard error; and the scores of all tasks where there are several, beside those of trivial predictions."""
    marked = ' on FAKE data' if summary['fake'] else ''
    marked += {'true': ' (oracle)', 'none': ' (no pseudo-labels)'}.get(summary.get('pseudo_labels', ''), '')
    headline = read_headline(summary)
    keys, score = score_keys(headline.score), headline.score
    final, last, best = (_value_text(score, summary[key]) for key in keys)
    seeds = f', means of {len(summary["trials"])} seeds' if 'trials' in summary else ''
    lines = [
        f'{headline.text}{marked} {final} after {count(summary["rounds"], "round")} '
        f'(mean of the last evaluations, {LAST} at most, {last}, best {best}){seeds}'
    ]
    if 'trials' in summary:
        head = 'seed', 'final', 'mean of last', 'best', 'K_s'
        rows = ((str(t['seed']), *(score.text(t[key]) for key in keys), str(t['k_s'])) for t in summary['trials'])
        lines += columns([head, *rows], '>>>>>')
    of_tasks = {'all tasks': summary['scores']} if 'scores' in summary else {}
    of_tasks |= {evaluation.TRIVIAL_NAMES[name]: scores for name, scores in summary.get('trivial_scores', {}).items()}
    for name, scores in of_tasks.items():
        tasks = ((task, value) for key, value in scores.items() if (task := split_key(key)))
        lines.append(f'{name}: ' + ', '.join(f'{task.text} {_value_text(task.score, value)}' for task, value in tasks))
    return '\n'.join([*lines, f'outputs in {folder}'] if folder else lines)


def _value_text(score: Score, value: Any) -> str:
    """A score; of trials, which have a dict, mean and standard error."""
    if not isinstance(value, dict):
        return score.text(value)
    error = value['standard_error']
    return score.text(value['mean']) + ('' if error is None else f' ± {score.text(error)}')
