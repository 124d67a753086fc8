"""Client failures: before a round, during it, or by missing a deadline.

A failed client does not contribute to the training of its round: its weight in the cohort is 0, and its work is lost,
in split methods including the rows of the iterations before it failed. The costs of the round include what it had sent
and received by then. Failures are determined by the seed and the round, or by a trace; lateness also by the method.
"""

import functools
import hashlib
from typing import Any

import numpy as np

from semisfl_jax import algorithms, costs
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng
from semisfl_jax.core.supervised import SUPERVISED_METRICS
from semisfl_jax.costs import Clients

SERVER_METRICS = frozenset({'lr', *SUPERVISED_METRICS})  # metrics that a round without clients still has
COLUMNS = 'round,client,done'
TRACE_BYTES = 64 * 2**20  # size limit of a trace file: millions of lines

Trace = dict[int, dict[int, float]]  # round (0-based) -> client -> share of its iterations that it completes, in [0, 1)


def can_happen(options: Any) -> bool:
    """Returns whether `config.failures` allows any client to fail."""
    return bool(options.before or options.inside or options.trace or options.deadline_seconds)


def apply_failures(options: Any, model: costs.CostModel, index: int, clients: Clients) -> Clients:
    """Applies the failures of `config.failures`, and lateness, to the clients of a round.

    Args:
      options: `config.failures`.
      model: the cost model, which decides who is late.
      index: the round, from 0.
      clients: the clients of the round.
    """
    if options.trace:
        lost = read_trace(options.trace, options.trace_hash).get(index, {})
        done = np.array([lost.get(int(client), np.inf) for client in clients.ids])
        clients = _fail(clients, done, never=done == 0)
    elif options.before or options.inside:
        generator = rng.host(model.seed, 'failures', index)
        coin, done = (generator.random(model.num_clients)[clients.ids] for _ in range(2))
        never = coin < options.before
        fails = coin < options.before + options.inside
        clients = _fail(clients, np.where(fails, done, np.inf), never)
    return costs.drop_late(model, index, clients)


def lost_all(clients: Clients | None) -> bool:
    """Returns whether no client took part until the end: each failed, or had no images."""
    return clients is not None and not clients.survived.any()


def mask_lost_rounds(metrics: dict[str, np.ndarray], clients: Clients | None) -> dict[str, np.ndarray]:
    """Returns the metrics of a round, with the clients' metrics NaN if `lost_all`.

    Args:
      metrics: metrics by name.
      clients: the clients of the round; None counts as not lost.
    """
    if not lost_all(clients):
        return metrics
    return {name: value if name in SERVER_METRICS else np.array(np.nan, np.float32) for name, value in metrics.items()}


def _fail(clients: Clients, done: np.ndarray, never: np.ndarray) -> Clients:
    """Fails clients after the share `done` [A] of their iterations; infinite: the client does not fail."""
    with np.errstate(invalid='ignore'):
        return costs.drop(clients, np.floor(done * clients.steps), never)


def hash_trace(path: str) -> str:
    """Returns the SHA-256 (hexadecimal) of the content of a trace; raises UserError if it cannot be read."""
    return hashlib.sha256(_text(path).encode()).hexdigest()


@functools.cache
def read_trace(path: str, content_hash: str) -> Trace:
    """Reads a CSV file with the columns round (from 1), client (from 0), done.

    A line says that a client fails in a round after the share `done` of its iterations, 0 <= done < 1; with 0 it never
    starts. The result is cached by both arguments.

    Args:
      path: the file.
      content_hash: `hash_trace(path)` when the run began.

    Raises:
      UserError: a file that cannot be read, or a malformed line.
    """
    header, *lines = _text(path).splitlines() or ['']
    if header != COLUMNS:
        raise UserError(f'config.failures.trace={path} begins with {header!r}; it needs {COLUMNS}')
    trace: Trace = {}
    for line in filter(None, map(str.strip, lines)):
        where = f'config.failures.trace={path}, line {line}'
        try:
            round_, client, done = (kind(word) for kind, word in zip((int, int, float), line.split(','), strict=True))
        except ValueError as error:
            raise UserError(f'{where}: it needs two whole numbers, round and client, and a number, done') from error
        if round_ < 1 or client < 0 or not 0 <= done < 1:
            raise UserError(f'{where}: rounds count from 1, clients from 0, and done is in [0, 1)')
        if client in trace.setdefault(round_ - 1, {}):
            raise UserError(f'{where}: an earlier line already has this client and round')
        trace[round_ - 1][client] = done
    return trace


def _text(path: str) -> str:
    return file_io.read_text(path, 'config.failures.trace', TRACE_BYTES)


def check(flat: dict[str, Any]) -> None:
    """Checks `config.failures` in a flat configuration whose values are each valid on their own.

    Raises:
      UserError: incompatible values, or an invalid trace.
    """
    method, clients = algorithms.get(flat['algorithm']), flat['federation.num_clients']
    before, inside, trace, content_hash, deadline = (
        flat[f'failures.{key}'] for key in ('before', 'inside', 'trace', 'trace_hash', 'deadline_seconds')
    )
    for key in ('before', 'inside', 'trace', 'deadline_seconds'):
        if (value := flat[f'failures.{key}']) and not method.clients:
            raise UserError(f'config.failures.{key}={value}: {method.name} has no clients that could fail; omit it')
    if before + inside > 1:
        raise UserError(f'config.failures.before={before} and failures.inside={inside} add up to more than 1')
    if deadline and method.price is None:
        why = f'{method.name} has no price (docs/your-own.md), so how long a client takes is unknown'
        raise UserError(f'config.failures.deadline_seconds={deadline}: {why}; leave it at 0')
    if not trace:
        return
    if before or inside:
        both = f'failures.before={before} and failures.inside={inside}'
        raise UserError(f'config.failures.trace={trace} already says which clients fail; leave {both} at 0')
    current_hash = hash_trace(trace)
    if content_hash not in ('', current_hash):
        raise UserError(f'config.failures.trace={trace} has changed; restore it, or use another --workdir')
    for index, lost in read_trace(trace, current_hash).items():
        if max(lost) >= clients:
            which = f'client {max(lost)} in round {index + 1}, beyond federation.num_clients={clients}'
            raise UserError(f'config.failures.trace={trace} names {which}; clients are numbered from 0')
