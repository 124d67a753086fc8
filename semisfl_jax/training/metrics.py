"""The reports of a run: the lines of metrics.jsonl, summary.json and the final message on the screen."""

import functools
import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import costs
from semisfl_jax.base import file_io, machine
from semisfl_jax.base.errors import UserError, columns, count, shorten
from semisfl_jax.config import failures
from semisfl_jax.tasks import ACCURACY, LAST, PER_CLASS, SCORES, TRIVIAL_NAMES, Headline, Score, score_key, split_key
from semisfl_jax.training import checkpoint
from semisfl_jax.training.checks import MARKS, TIMES
from semisfl_jax.training.evaluation import Scores
from semisfl_jax.training.experiment import Experiment

COSTS = costs.RoundCost._fields  # over all rounds so far
# These metrics come first in a line of metrics.jsonl, null if the method lacks them; all others follow by name.
FIRST_KEYS = ('lr', 'loss_supervised', 'loss_consistency', 'loss_clustering', 'mask_rate', 'pseudo_label_accuracy')
Records = list[dict[str, Any]]  # the lines of metrics.jsonl


# --- lines of metrics.jsonl


def plain(value: Any) -> Any:
    """Converts a value to JSON: float32 by its shortest digits, NaN (not applicable) and infinities as null."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    number = np.asarray(value)[()]
    if np.ndim(number):
        return [plain(each) for each in number]
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
    clients: costs.Clients | None,
    earlier: Records,
    seconds: float,
    images: int,
) -> dict[str, Any]:
    """Makes a line of metrics.jsonl.

    Args:
      experiment: the trial.
      number: round, 1-based.
      k_s: supervised steps of the round.
      measured: metrics of the method.
      scores: scores of the evaluation, {} without one.
      clients: participation, None in a round without clients.
      earlier: the lines of all earlier rounds.
      seconds: duration of the round, of all trials.
      images: images that the students of all trials saw.

    Returns:
      The line, as a JSON object.
    """
    names = [*FIRST_KEYS, *sorted(measured.keys() - set(FIRST_KEYS))]
    record = {'round': number, 'k_s': k_s} | {name: plain(measured.get(name)) for name in names}
    for name in sorted(scores, reverse=True):
        record |= {score_key(name, score): plain(value) for score, value in scores[name].items()}
    if experiment.costs.enabled:
        spent = costs.price_round(experiment.costs, number - 1, k_s, clients, measured)._asdict()
        record |= {name: (earlier[-1][name] if earlier else 0) + value for name, value in spent.items()}
    if failures.can_happen(experiment.config.failures):
        survived, failed = (clients.survived, clients.failed) if clients else ((), ())
        record |= {'clients': int(np.sum(survived)), 'clients_failed': int(np.sum(failed))}
    record |= {'wall_seconds': round(seconds, 6), 'images_per_second': round(images / seconds, 6)}
    # A reader might take such scores for those of real test images
    marks = {'fake': experiment.dataset.fake, 'validation': experiment.dataset.eval_split == 'validation'}
    return record | {name: True for name, marked in marks.items() if marked}


def append(path: Path, record: dict[str, Any]) -> None:
    """Appends one line to metrics.jsonl."""
    try:
        with path.open('a') as file:
            file.write(json.dumps(record) + '\n')
    except OSError as error:
        error.filename = os.fspath(path)  # so that the message says what is full
        raise


def read(path: Path, rounds: int | None = None) -> Records:
    """Reads the complete lines of metrics.jsonl; a last line truncated by a kill is skipped.

    Args:
      path: the file.
      rounds: number of lines at most, None for all.

    Returns:
      The lines, [] if there is no file.

    Raises:
      UserError: it is not a regular file, or a line is not one that a run writes there.
    """
    records = []
    for number, text in enumerate(_lines(path)[:rounds], start=1):
        where, advice = f'{path}, line {number},', '; restore the file from a copy'
        record = file_io.parse_json(text, where, advice)
        if not isinstance(record, dict) or type(record.get('round')) is not int or record['round'] != number:
            raise UserError(f'{where} is not that of round {number}{advice}')
        if wrong := [key for key, value in record.items() if not _is_written(key, value)]:
            raise UserError(f'{where} has {wrong[0]}={shorten(record[wrong[0]])}, which no run writes{advice}')
        records.append(record)
    return records


def _is_written(key: str, value: Any) -> bool:
    """Returns whether a run may have written this value: a finite number, null, or a mark."""
    if value is None or key in MARKS:
        return value is (True if key in MARKS else None)
    if isinstance(value, list) and key.endswith(PER_CLASS.name):
        return all(_is_written('', each) for each in value)
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _lines(path: Path) -> list[bytes]:
    """Reads all complete lines of a file, [] if there is none."""
    return file_io.read(path).split(b'\n')[:-1] if os.path.lexists(path) else []


def check_rounds(path: Path, rounds: int, checksum: str | None = None) -> Records:
    """Reads and checks the rounds 1 .. `rounds` of metrics.jsonl; it may hold later ones, which a run may rewrite.

    Args:
      path: the file.
      rounds: rounds to read.
      checksum: of their lines, by `chain`; None if not known, as in runs of earlier versions.

    Returns:
      Their lines.

    Raises:
      UserError: the file lacks some of them, or was modified.
    """
    records, advice = read(path, rounds), 'restore the file from a copy, or start again in another --workdir'
    if len(records) < rounds:
        raise UserError(f'{path} does not have the rounds 1 to {rounds}; {advice}')
    if checksum is not None and chained(records) != checksum:
        raise UserError(f'{path} was modified after the run wrote it; {advice}')
    return records


def chain(checksum: str, record: Mapping[str, Any]) -> str:
    """Extends the checksum of some lines of metrics.jsonl ('' for none) by one more line, `record`.

    It leaves out the times, so that equal runs have equal checksums.
    """
    values = {key: value for key, value in record.items() if key not in TIMES}
    return hashlib.sha256((checksum + json.dumps(values, sort_keys=True)).encode()).hexdigest()


def chained(records: Iterable[Mapping[str, Any]]) -> str:
    """Computes the checksum of some lines of metrics.jsonl, from the first one."""
    return functools.reduce(chain, records, '')


def truncate(path: Path, rounds: int) -> None:
    """Truncates metrics.jsonl to its first `rounds` lines."""
    content = b''.join(text + b'\n' for text in _lines(path)[:rounds])
    if os.path.lexists(path) and content != file_io.read(path):
        file_io.write(path, content)


def as_arrays(records: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Converts T lines of metrics.jsonl to {name: [T]}: integers if every line has one, else float64, NaN for none.

    A list of K numbers becomes [T, K].
    """
    arrays = {}
    for name in dict.fromkeys(name for record in records for name in record):
        column = [record.get(name) for record in records]
        width = next((len(value) for value in column if isinstance(value, list)), 0)
        filled = [value or [None] * width for value in column] if width else column
        arrays[name] = np.array(filled, np.float64 if width or None in column else None)
    return arrays


def numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a line of metrics.jsonl with the items of a list one by one: 'KEY/3' is the item 3 of KEY."""
    values: dict[str, Any] = {}
    for key, value in record.items():
        values |= {f'{key}/{i}': each for i, each in enumerate(value)} if isinstance(value, list) else {key: value}
    return values


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Computes the mean of n >= 1 values and its standard error, in their unit; the error of a single value is NaN.

    It equals scipy.stats.sem, whose import takes longer than a table of runs.
    """
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


# --- summary.json


def score_keys(score: Score) -> tuple[str, str, str]:
    """Returns the keys of the headline's values in summary.json: final, mean of the last evaluations, best."""
    return f'final_{score.name}', f'mean_of_last_{LAST}_evaluations', f'best_{score.name}'


def read_headline(summary: Mapping[str, Any]) -> Headline:
    """Reads the headline of a run from its summary.json.

    Raises:
      KeyError: the summary has none.
    """
    names = (key.removeprefix('final_') for key in summary if key.startswith('final_'))
    score = next((SCORES[name] for name in names if name in SCORES), ACCURACY)
    return Headline(summary['headline'], score, summary.get('eval_split', 'test'))


def total_entries(
    records: Sequence[Mapping[str, Any]], headline: Headline, tasks: Sequence[str] = ()
) -> dict[str, Any]:
    """Computes the entries of summary.json that follow from the lines of metrics.jsonl.

    Args:
      records: lines of all rounds; the last one is always evaluated.
      headline: the number that judges the method.
      tasks: keys of the scores of dense tasks.

    Returns:
      The entries.
    """
    last, scores = records[-1], [record[headline.key] for record in records if headline.key in record]
    known = [score for score in scores if score is not None]  # None where the images define none
    recent = [score for score in scores[-LAST:] if score is not None]
    values = scores[-1], float(np.mean(recent)) if recent else None, headline.score.best(known) if known else None
    return {
        'headline': headline.output,
        **dict(zip(score_keys(headline.score), values, strict=True)),
        **({'scores': {key: last[key] for key in tasks}} if tasks else {}),
        'evaluations': len(scores),
        'rounds': last['round'],
        'k_s': last['k_s'],
        **{name: last[name] for name in COSTS if name in last},
    }


def summarize_trial(
    experiment: Experiment,
    records: Sequence[Mapping[str, Any]],
    checksum: str,
    trivial_scores: Mapping[str, Mapping[str, float]],
    compile_seconds: dict[str, float],
    num_trials: int,
    stopped_early: str = '',
) -> dict[str, Any]:
    """Makes the content of the summary.json of a trial.

    Memory, compile time, processor and commit are those of the last process of the run.

    Args:
      experiment: the trial.
      records: all its lines of metrics.jsonl.
      checksum: of these lines, by `chain`.
      trivial_scores: scores of trivial predictions.
      compile_seconds: duration of the compilation of each program.
      num_trials: number of trials in the program.
      stopped_early: why callbacks ended it before its last round, '' if they did not.

    Returns:
      The summary, not yet sealed.
    """
    config, headline = experiment.config, experiment.headline
    tasks = [score_key(name, task.score.name) for name, task in experiment.algorithm.tasks.items()]
    trivial = {name: {key: plain(v) for key, v in scores.items()} for name, scores in trivial_scores.items()}
    device = jax.devices()[0]
    on_device = machine.memory_stats(device).get('peak_bytes_in_use')
    return {
        'algorithm': config.algorithm,
        'data': experiment.dataset.name,
        'fake': experiment.dataset.fake,
        **({} if headline.split == 'test' else {'eval_split': headline.split}),
        **({} if config.pseudo_labels == 'method' else {'pseudo_labels': config.pseudo_labels}),
        'seed': config.seed,
        **total_entries(records, headline, tasks),
        **({'stopped_early': stopped_early} if stopped_early else {}),
        'wall_seconds': round(sum(record['wall_seconds'] for record in records), 3),
        'metrics_sha256': checksum,
        **({'trivial_scores': trivial} if trivial else {}),
        'trials_in_program': num_trials,  # seconds and memory cover all of them
        'compile_seconds': round(compile_seconds['round'], 3),
        'compile_seconds_evaluation': round(compile_seconds['evaluation'], 3),
        'peak_memory_bytes': on_device or machine.most_resident(),
        'peak_memory_of': 'device' if on_device else 'process',
        'device': f'{device.platform} ({device.device_kind})',
        'processor': machine.processor(),
        'commit': checkpoint.commit(),
        'versions': {'python': platform.python_version(), **checkpoint.installed_versions()},
        'devices': experiment.devices,
        'processes': jax.process_count(),
        'config_hash': config_lib.identity_hash(config),
        'partition_seed': experiment.partition.settings.get('seed'),  # None: from a file without it
        'partition_hash': experiment.partition.content_hash,
    }


def summarize_trials(config: ConfigDict, trial_map: str, summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Makes the content of the summary.json of several trials: means, standard errors, and shared values.

    Args:
      config: configuration of the run, resolved.
      trial_map: how one device computed its trials.
      summaries: [R], summaries of the trials.

    Returns:
      The summary, not yet sealed.
    """
    first = min(summaries, key=lambda summary: summary['rounds'])  # some may have stopped early
    each = ('rounds', 'stopped_early') if any('stopped_early' in summary for summary in summaries) else ()
    means = (*score_keys(read_headline(first).score), *(name for name in COSTS if name in first))
    scores = [name for name in ('scores', 'trivial_scores') if name in first]
    excluded = {'seed', 'k_s', 'stopped_early', 'trials_in_program', 'metrics_sha256', 'sha256', *scores, *means}
    if len({trial_summary['partition_hash'] for trial_summary in summaries}) > 1:  # trials have different splits
        excluded |= {'partition_seed', 'partition_hash'}
    shared = {key: value for key, value in first.items() if key not in excluded}

    def over_trials(*values: Any) -> dict[str, Any]:
        if isinstance(values[0], dict):  # {key: score}
            return {key: over_trials(*(value[key] for value in values)) for key in values[0]}
        known = [value for value in values if value is not None]
        mean, error = mean_and_error(known) if known else (math.nan, math.nan)
        return {'mean': plain(mean), 'standard_error': plain(error)}

    return {
        **shared,
        **{key: over_trials(*(trial_summary[key] for trial_summary in summaries)) for key in (*means, *scores)},
        'wall_seconds': max(trial_summary['wall_seconds'] for trial_summary in summaries),
        'trials': [
            {key: trial[key] for key in ('seed', *each, *means, 'k_s', *scores) if key in trial} for trial in summaries
        ],
        'trial_map': trial_map,
        'config_hash': config_lib.identity_hash(config),
    }


def final_message(summary: dict[str, Any], folder: Path | None) -> str:
    """Writes the final message of a run, from its summary.json.

    It has the headline's score, of several seeds the mean with its standard error, and with several tasks the scores of
    all, beside those of trivial predictions.

    Args:
      summary: content of summary.json.
      folder: folder of the outputs, None if nothing was written.

    Returns:
      The lines, as one text.
    """
    marked = ' on FAKE data' if summary['fake'] else ''
    marked += {'true': ' (oracle)', 'none': ' (no pseudo-labels)'}.get(summary.get('pseudo_labels', ''), '')
    headline = read_headline(summary)
    keys, score = score_keys(headline.score), headline.score
    final, last, best = headline_texts(summary)
    seeds = f'mean ± s.e. of {len(summary["trials"])} seeds, ' if 'trials' in summary else ''
    longest = max(trial.get('rounds', 0) for trial in summary.get('trials', [summary]))
    first = f'{summary["rounds"]} to ' if longest > summary['rounds'] else ''  # some seeds stopped early
    lines = [
        f'{headline.text}{marked}: final {final}, best {best}, '
        f'mean of last {count(min(LAST, summary["evaluations"]), "evaluation")} {last} '
        f'({seeds}{first}{count(longest or summary["rounds"], "round")})'
    ]
    if 'trials' in summary:
        head = 'seed', 'final', 'mean of last', 'best', 'K_s'
        rows = ((str(t['seed']), *(score.text(t[key]) for key in keys), str(t['k_s'])) for t in summary['trials'])
        lines += columns([head, *rows], '>>>>>')
    for trial in summary.get('trials', [summary]):
        if why := trial.get('stopped_early'):
            name = f'seed {trial["seed"]}: ' if 'trials' in summary else ''
            lines.append(f'{name}stopped early after {count(trial["rounds"], "round")}: {why}')
    scores_by_name = {'all tasks': summary['scores']} if 'scores' in summary else {}
    scores_by_name |= {TRIVIAL_NAMES[name]: scores for name, scores in summary.get('trivial_scores', {}).items()}
    for name, scores in scores_by_name.items():
        tasks = ((task, value) for key, value in scores.items() if (task := split_key(key)))
        lines.append(f'{name}: ' + ', '.join(f'{task.text} {_value_text(task.score, value)}' for task, value in tasks))
    return '\n'.join([*lines, f'outputs in {folder}'] if folder else lines)


def headline_texts(summary: dict[str, Any]) -> list[str]:
    """Formats the headline's score in summary.json: final, mean of the last evaluations, best."""
    score = read_headline(summary).score
    return [_value_text(score, summary[key]) for key in score_keys(score)]


def _value_text(score: Score, value: Any) -> str:
    """Formats a score, or with several trials, which have a dict, mean and standard error."""
    if not isinstance(value, dict):
        return score.text(value)
    error = value['standard_error']
    mean = score.text(value['mean'])
    return mean if error is None else f'{mean.removesuffix("%")} ± {score.text(error)}'
