"""The active clients of a round as it turned out: who started, how far each got, whose update arrived."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Clients(NamedTuple):
    """Host arrays, one entry for each of A active clients."""

    ids: np.ndarray  # [A] int
    images: np.ndarray  # [A] int, what each trains on; without any, it takes no part
    steps: np.ndarray  # [A] int, iterations of a whole round
    labels: np.ndarray  # [A] bool, whether its batches hold labeled images
    started: np.ndarray  # [A] bool, whether it got the model: it has data, and did not fail before the round
    made: np.ndarray  # [A] int, iterations it finished
    failed: np.ndarray  # [A] bool, before the round or inside it
    late: np.ndarray  # [A] bool, of the failed ones those that were left behind

    @property
    def survived(self) -> np.ndarray:
        """[A] bool, whether its update counts."""
        return self.started & ~self.failed


def whole(ids: np.ndarray, images: np.ndarray, steps: np.ndarray, labels: np.ndarray) -> Clients:
    """A round in which nobody fails. Clients without images do not come."""
    nobody, started = np.zeros(ids.shape, bool), images > 0
    return Clients(ids, images, steps, labels, started, np.where(started, steps, 0), failed=nobody, late=nobody)


def drop(clients: Clients, made: np.ndarray, never: np.ndarray | bool = False, late: bool = False) -> Clients:
    """Some clients fail, of those that have data.

    Args:
      clients: so far.
      made: [A], iterations that a client finishes before it fails; infinite where it does not.
      never: [A], which of the failing ones do not even come.
      late: whether they fail by being late. Who has failed otherwise is not late.
    """
    fails = np.isfinite(made) & clients.started
    started = clients.started & ~(fails & never)
    made = np.where(fails, np.minimum(made, clients.made), clients.made).astype(int)
    return clients._replace(
        started=started,
        made=np.where(started, made, 0),
        failed=clients.failed | fails,
        late=clients.late | (late & fails & ~clients.failed),
    )
