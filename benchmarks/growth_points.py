"""The points of the four studies of growth: what stays as it is, and what grows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

STUDIES = {'active': 'active', 'total': 'clients', 'devices': 'devices', 'seeds': 'seeds'}  # study -> field that grows


@dataclasses.dataclass(frozen=True)
class Point:
    """One round to measure."""

    model: str
    batch_size: int
    k_s: int
    k_u: int
    active: int
    precision: str = 'tf32'
    memory_limit: int = 0  # bytes that a program may need besides its arguments; 0: most of what is available
    study: str = 'active'
    clients: int = 0  # in total
    unlabeled: int = 0  # images of all clients together
    client_chunk: int = 0
    devices: int = 1
    seeds: int = 1
    trials: str = 'auto'  # several seeds: 'loop' | 'vmap'

    @property
    def value(self) -> int:
        """The value of the field that grows."""
        return getattr(self, STUDIES[self.study])

    @property
    def series(self) -> str:
        """The line of the plot that the point is on."""
        if self.study == 'seeds':
            return self.trials
        return f'chunks of {self.client_chunk}' if self.client_chunk else 'default map'

    @property
    def images(self) -> int:
        """Images that the students see in one timed repeat of all tasks."""
        one = (self.k_u * self.active + self.k_s) * self.batch_size
        return one * self.seeds * (2 if self.study == 'seeds' else 1)


def points(study: str, base: Point, values: Sequence[int], chunk: int) -> list[Point]:
    """The points of a study, in the order in which they are measured.

    Args:
      study: a key of STUDIES.
      base: sizes, and the active clients of the studies in which something else grows.
      values: of the field that grows; in 'total', at least the number of active clients.
      chunk: clients computed at a time in the second half of 'active'.
    """
    most = max(values)
    if study == 'active':
        base = dataclasses.replace(base, clients=most, unlabeled=most * base.batch_size)
        return [dataclasses.replace(base, active=n, client_chunk=size) for size in (0, chunk) for n in values]
    if study == 'total':  # the same images, split among increasingly many clients
        return [dataclasses.replace(base, study=study, unlabeled=most, clients=n) for n in values]
    active = base.active
    if study == 'devices':
        active = -(-active // most) * most  # so that no device is idle
    base = dataclasses.replace(base, study=study, active=active, clients=active, unlabeled=active * base.batch_size)
    if study == 'devices':
        return [dataclasses.replace(base, devices=n) for n in values]
    return [dataclasses.replace(base, seeds=n, trials=trials) for trials in ('loop', 'vmap') for n in values]
