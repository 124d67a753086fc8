"""What a rule of `partitioners.PARTITIONS` is told about the set of images that it deals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple


class Keys(NamedTuple):
    """For messages: the full names of the keys that a rule's settings were read from."""

    rule: str
    alpha: str
    min_images: str
    max_images: str


@dataclasses.dataclass(frozen=True)
class RuleSettings:
    """The settings of a rule, for the set that it deals: the unlabeled images of the clients, or their labeled ones.

    Attributes:
      num_clients: N.
      seed: of the partition.
      stream: names of the random stream of this set; a rule draws from `rng.host(seed, *stream, NAME)`.
      keys: where rule, `alpha`, `min_images` and `max_images` come from.
      alpha: the concentration: `federation.alpha`, or for labeled images `federation.labeled_alpha` unless that is 0;
        None where neither set is dealt by a rule that takes it.
      min_images: that every client must get, by 'dirichlet_class'; for labeled images `federation.min_labeled`. 0 for
        other rules.
      max_images: that a client may get, by 'dirichlet_class'; 0 for any number, for labeled images and other rules.
      classes_per_client: of 'classes'; 0 where neither set is dealt by it.
    """

    num_clients: int
    seed: int
    stream: tuple[str, ...]
    keys: Keys
    alpha: float | None = None
    min_images: int = 0
    max_images: int = 0
    classes_per_client: int = 0


def of_unlabeled(chosen: Mapping[str, Any]) -> RuleSettings:
    """From the settings of a partition (`partition_settings.settings`), for the unlabeled images of the clients."""
    return _make(
        chosen,
        stream=('partition',),
        keys=_keys('partition', 'alpha', 'min_images', 'max_images'),
        alpha=chosen['alpha'],
        min_images=chosen.get('min_images', 0),
        max_images=chosen.get('max_images', 0),
    )


def of_labeled(chosen: Mapping[str, Any]) -> RuleSettings:
    """The same for a draw of its own of the labeled images: another random stream, their own concentration and limit.

    There is no upper limit of theirs, so its key is ''.
    """
    alpha = 'labeled_alpha' if 'labeled_alpha' in chosen else 'alpha'
    return _make(
        chosen,
        stream=('partition', 'labeled'),
        keys=_keys('labeled_partition', alpha, 'min_labeled', ''),
        alpha=chosen[alpha],
        min_images=chosen.get('min_labeled', 0),
    )


def _make(chosen: Mapping[str, Any], **of_set: Any) -> RuleSettings:
    classes = chosen.get('classes_per_client', 0)
    return RuleSettings(num_clients=chosen['num_clients'], seed=chosen['seed'], classes_per_client=classes, **of_set)


def _keys(*names: str) -> Keys:
    return Keys(*(f'config.federation.{name}' if name else '' for name in names))
