"""The running account of a trial: what all rounds so far sent and how long they would have taken, for metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semisfl_jax import costs, failures, intake, metrics
from semisfl_jax.costs import Bill, Clients
from semisfl_jax.experiment import Experiment


def balance(path: Path, rounds: int) -> Bill:
    """The account after `rounds` rounds, as the last line of metrics.jsonl has it; that of a new run is empty."""
    records = metrics.read(path)[:rounds]
    if not records or metrics.COSTS[0] not in records[-1]:
        return Bill()
    return Bill(*(records[-1][name] for name in metrics.COSTS))


def after_round(
    experiments: Sequence[Experiment],
    index: int,
    k_s: Sequence[int],
    found: Sequence[Mapping[str, np.ndarray]],
    before: Sequence[Bill],
) -> list[Bill]:
    """The accounts of several trials after round `index` (0-based).

    Args:
      experiments: R of them, whose accounts are kept.
      index: the round.
      k_s: [R], its supervised steps.
      found: [R], its metrics.
      before: [R], the accounts before it.
    """
    return [
        costs.add(old, costs.bill(own.costs, index, steps, intake.turnout(own, index), metrics_))
        if own.config.cost.enabled
        else old
        for own, steps, metrics_, old in zip(experiments, k_s, found, before, strict=True)
    ]


def entries(experiment: Experiment, clients: Clients | None, balance: Bill) -> dict[str, Any]:
    """What a line of metrics.jsonl says of it and, where clients can fail, of their number."""
    lines = dict(zip(metrics.COSTS, balance, strict=True)) if experiment.config.cost.enabled else {}
    if not failures.can_happen(experiment.config.failures):
        return lines
    counts = (0, 0) if clients is None else (int(np.sum(clients.survived)), int(np.sum(clients.failed)))
    return {**lines, 'clients': counts[0], 'clients_failed': counts[1]}
