"""What the sweeps have in common: their scales, and the methods that learn with labels at the server."""

from __future__ import annotations

from collections.abc import Mapping

from semisfl_jax.errors import UserError
from semisfl_jax.sweeps.spec import Entry, entry
from semisfl_jax.wording import use_one_of

SCALES = ('smoke', 'cpu')
WARNING = {
    'smoke': 'A few trials of a few short rounds, to try everything out. No setting here is better than another.',
    'cpu': '',
}
NOTES = (
    'The validation images have more labels than training has: with so few labels, a search could not afford them. It '
    'shows what methods can do when tuned alike, not what a user with these labels would find (Oliver et al., '
    'Realistic Evaluation of Deep Semi-Supervised Learning Algorithms, NeurIPS 2018).',
)


def check(scale: str, costs: Mapping[str, str]) -> None:
    """Raises UserError for an unknown scale, or for none, because a sweep takes from minutes to hours (`costs`)."""
    if not scale:
        listed = ', '.join(f'{name} ({costs[name]})' for name in SCALES)
        raise UserError(f'a sweep needs a scale, after a colon at the end of --config: {listed}')
    if scale not in SCALES:
        raise UserError(f"unknown scale '{scale}' after the colon of --config; {use_one_of(scale, SCALES)}")


def methods() -> tuple[Entry, ...]:
    """Methods of classification with labels at the server. FedDure and Fed-SHVR are made for labels at the clients."""
    names = ('supervised_only', 'fedavg', 'fedprox', 'fedmatch', 'fedswitch', 'semifl', 'fedswitch_sl', 'semisfl')
    return tuple(map(entry, names))
