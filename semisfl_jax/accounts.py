"""The running account of a trial: what all rounds so far sent and how long they would have taken, for metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from semisfl_jax import costs, failures, metrics
from semisfl_jax import experiment as experiment_lib
from semisfl_jax.costs import Bill, Clients
from semisfl_jax.experiment import Experiment


def balance(path: Path, rounds: int) -> Bill:
    """The account after `rounds` rounds, as their last line in metrics.jsonl has it; that of a new run is empty."""
    records = metrics.read(path)[:rounds]
    if not records or Bill._fields[0] not in records[-1]:
        return Bill()
    return Bill(*(records[-1][name] for name in Bill._fields))


def after_round(experiment: Experiment, index: int, k_s: int, found: Mapping[str, np.ndarray], before: Bill) -> Bill:
    """The account after round `index` (0-based), which had `k_s` supervised steps and the metrics `found`."""
    if not experiment.config.cost.enabled:
        return before
    clients = experiment_lib.turnout(experiment, index)
    return costs.add(before, costs.bill(experiment.costs, index, k_s, clients, found))


def entries(experiment: Experiment, clients: Clients | None, balance: Bill) -> dict[str, Any]:
    """What a line of metrics.jsonl says of it and, where clients can fail, of their number."""
    lines = balance._asdict() if experiment.config.cost.enabled else {}
    if not failures.can_happen(experiment.config.failures):
        return lines
    counts = (0, 0) if clients is None else (int(np.sum(clients.survived)), int(np.sum(clients.failed)))
    return {**lines, 'clients': counts[0], 'clients_failed': counts[1]}
