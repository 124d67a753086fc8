"""The running totals of a trial: what its summary reports about the rounds so far, including traffic and simulated
time.

They are kept in the checkpoints, never read back from metrics.jsonl, so edits to that file do not reach later lines
or the summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax import costs
from semisfl_jax.config import failures
from semisfl_jax.costs import Clients, RoundCost
from semisfl_jax.tasks import ACCURACY, SCORES, Headline, Score
from semisfl_jax.training import inputs, metrics
from semisfl_jax.training.experiment import Experiment

_LAST = 10  # evaluations that are averaged


class RunTotals(NamedTuple):
    """Totals of a trial after some rounds; scores are those of the method's headline."""

    rounds: int = 0
    k_s: int = 0  # of the last round
    bill: RoundCost = RoundCost()
    wall_seconds: float = 0.0  # of the rounds, excluding compilation, evaluation and saving
    evaluations: int = 0
    last_scores: tuple[float | None, ...] = ()  # at most `_LAST`, oldest first; None where the images define none
    best_score: float | None = None
    scores: Mapping[str, float] = MappingProxyType({})  # of all tasks, in the last evaluation, by key of metrics.jsonl
    metrics_sha256: str = ''  # `metrics.chain` over the lines of metrics.jsonl


def update(
    account: RunTotals, bill: RoundCost, record: Mapping[str, Any], headline: Headline, tasks: Sequence[str] = ()
) -> RunTotals:
    """The account after one more round.

    Args:
      account: before that round.
      bill: of all rounds, including this one.
      record: its line of metrics.jsonl.
      headline: the number that counts.
      tasks: the keys of the scores of dense tasks.
    """
    scores = [record[headline.key]] if headline.key in record else []
    known = [score for score in (account.best_score, *scores) if score is not None]
    return RunTotals(
        rounds=record['round'],
        k_s=record['k_s'],
        bill=bill,
        wall_seconds=account.wall_seconds + record['wall_seconds'],
        evaluations=account.evaluations + len(scores),
        last_scores=(*account.last_scores, *scores)[-_LAST:],
        best_score=headline.score.best(known) if known else None,
        scores={key: record[key] for key in tasks} if scores else account.scores,
        metrics_sha256=metrics.chain(account.metrics_sha256, metrics.line(record).encode()),
    )


def to_json(account: RunTotals) -> dict[str, Any]:
    """The account as stored in a checkpoint."""
    return {**account._asdict(), 'scores': dict(account.scores)}


def from_json(value: Mapping[str, Any]) -> RunTotals:
    """The inverse of `to_json`."""
    converted = {'bill': RoundCost(*value['bill']), 'last_scores': tuple(value['last_scores'])}
    return RunTotals(**{**value, **converted})


def scores_of(score: Score) -> tuple[str, str, str]:
    """The keys of the headline's values in summary.json."""
    return f'final_{score.name}', f'mean_of_last_{_LAST}_evaluations', f'best_{score.name}'


def headline(summary: Mapping[str, Any]) -> Headline:
    """The headline of a run, from its summary.json.

    Raises:
      KeyError: that has none.
    """
    names = (key.removeprefix('final_') for key in summary if key.startswith('final_'))
    score = next((SCORES[name] for name in names if name in SCORES), ACCURACY)
    return Headline(summary['headline'], score, summary.get('eval_split', 'test'))


def figures(account: RunTotals, headline: Headline, with_costs: bool) -> dict[str, Any]:
    """The entries of summary.json for an account after the last round, which is always evaluated."""
    known = [score for score in account.last_scores if score is not None]
    values = account.last_scores[-1], float(np.mean(known)) if known else None, account.best_score
    return {
        'headline': headline.output,
        **dict(zip(scores_of(headline.score), values, strict=True)),
        **({'scores': dict(account.scores)} if account.scores else {}),
        'evaluations': account.evaluations,
        'rounds': account.rounds,
        'k_s': account.k_s,
        **(dict(zip(metrics.COSTS, account.bill, strict=True)) if with_costs else {}),
        'wall_seconds': round(account.wall_seconds, 3),
        'metrics_sha256': account.metrics_sha256,
    }


def after_round(
    experiments: Sequence[Experiment],
    index: int,
    k_s: Sequence[int],
    metrics_of_round: Sequence[Mapping[str, Any]],
    previous: Sequence[RoundCost],
) -> list[RoundCost]:
    """The bills of several trials for all rounds up to round `index` (0-based).

    Args:
      experiments: R trials.
      index: the round.
      k_s: [R], its supervised steps.
      metrics_of_round: [R], its metrics.
      previous: [R], the bills before it.
    """
    return [
        costs.add(
            old, costs.price_round(experiment.costs, index, steps, inputs.participation(experiment, index), metrics_)
        )
        if experiment.costs.enabled
        else old
        for experiment, steps, metrics_, old in zip(experiments, k_s, metrics_of_round, previous, strict=True)
    ]


def entries(experiment: Experiment, clients: Clients | None, cumulative: RoundCost) -> dict[str, Any]:
    """The entries of a line of metrics.jsonl for the costs and, where clients can fail, for their numbers."""
    lines = dict(zip(metrics.COSTS, cumulative, strict=True)) if experiment.costs.enabled else {}
    if not failures.can_happen(experiment.config.failures):
        return lines
    counts = (0, 0) if clients is None else (int(np.sum(clients.survived)), int(np.sum(clients.failed)))
    return {**lines, 'clients': counts[0], 'clients_failed': counts[1]}
