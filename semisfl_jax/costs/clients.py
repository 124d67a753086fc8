"""Participation of the active clients in a round: which started, how far each got, and whose update arrived."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Clients(NamedTuple):
    """Host arrays with one entry for each of A active clients."""

    ids: np.ndarray  # [A] int
    images: np.ndarray  # [A] int, images that each trains on; with 0 it does not take part
    unlabeled: np.ndarray  # [A] int, those of them without a label
    steps: np.ndarray  # [A] int, iterations of a whole round
    labels: np.ndarray  # [A] bool, whether its batches hold labeled images
    started: np.ndarray  # [A] bool, whether it got the model: it has data, and did not fail before the round
    made: np.ndarray  # [A] int, iterations it finished
    failed: np.ndarray  # [A] bool, before the round or inside it
    late: np.ndarray  # [A] bool, failed by missing the deadline

    @property
    def survived(self) -> np.ndarray:
        """[A] bool, whether its update counts."""
        return self.started & ~self.failed


def no_failures(
    ids: np.ndarray, images: np.ndarray, steps: np.ndarray, labels: np.ndarray, unlabeled: np.ndarray | None = None
) -> Clients:
    """A round in which no client fails. Clients without images do not start. `unlabeled` None: all images are."""
    no_client, started = np.zeros(ids.shape, bool), images > 0
    made = np.where(started, steps, 0)
    unlabeled = images if unlabeled is None else unlabeled
    return Clients(ids, images, unlabeled, steps, labels, started, made, failed=no_client, late=no_client)


def drop(clients: Clients, made: np.ndarray, never: np.ndarray | bool = False, late: bool = False) -> Clients:
    """Lets some of the clients that have data fail.

    Args:
      clients: so far.
      made: [A], iterations that a client finishes before it fails; infinite if it does not.
      never: [A], which of the failing clients do not even start.
      late: whether they fail by being late. Clients that have already failed otherwise are not late.
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
