"""What the sweeps have in common: their scales, and the methods that learn with labels at the server."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

import semisfl_jax as sfl
from semisfl_jax.lab.studies import sweeps
from semisfl_jax.lab.studies.sweeps import Entry, Sweep, entry

WARNING = {
    'smoke': 'A few trials of a few short rounds, to try everything out. No setting here is better than another.',
    'cpu': '',
}
NOTES = (
    'The validation images have more labels than training has: with so few labels, a search could not afford them. It '
    'shows what methods can do when tuned alike, not what a user with these labels would find (Oliver et al., '
    'Realistic Evaluation of Deep Semi-Supervised Learning Algorithms, NeurIPS 2018).',
)


def sweep(
    name: str,
    scale: str,
    title: str,
    costs: Mapping[str, str],
    trials: Mapping[str, int],
    settings: Mapping[str, Mapping[str, Any]],
    common: Mapping[str, Any],
) -> ConfigDict:
    """What a file in configs/sweeps returns: the sweep of `methods` at a scale. `costs`, `trials` and `settings` are by
    scale, `common` are settings of all."""
    scales.check(scale, costs, 'sweep')
    config = sfl.get_config(name, {**common, **settings[scale]})
    words = {'scale': scale, 'notes': NOTES, 'warning': WARNING[scale]}
    return sweeps.as_config(Sweep(name, title, name, config, methods(), trials[scale], **words))


def methods() -> tuple[Entry, ...]:
    """Methods of classification with labels at the server. FedDure and Fed-SHVR are made for labels at the clients."""
    names = 'supervised_only', 'fedavg', 'fedprox', 'fedmatch', 'fedswitch', 'semifl', 'fedswitch_sl', 'semisfl'
    return tuple(map(entry, (*names, 'semisfl_prior')))
