"""The 'official' setting: the values of a method's own papers, in place of SemiSFL's protocol.

'harmonized' changes nothing: every method runs with the values of the configuration. 'official' replaces the values
of the keys listed in the method's record (`algorithms.Method.official`); command-line values take precedence. Data
set, model, and number of labels stay those of the configuration. The resulting configuration holds every value that
the run uses, and in `official_keys` the names of those that came from the papers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax.config import keys
from semisfl_jax.core.errors import UserError, warn

SETTINGS = ('harmonized', 'official')
_RULE = 'federation.partition'
_OF_RULE = (  # keys whose values belong to a rule by which clients' images are split
    'federation.alpha',
    'federation.labeled_partition',
    'federation.classes_per_client',
    'federation.min_images',
    'federation.max_images',
)


def apply(config: ConfigDict, given: Collection[str] = ()) -> None:
    """Applies `config.setting` to a configuration, locked or not.

    Args:
      config: changed in place.
      given: dotted keys to leave unchanged.

    Raises:
      UserError: the method has no 'official' setting, or `given` has what this fills in.
    """
    if config.get('setting') != 'official':  # which a user's file may lack; `check` says so
        return
    if 'official_keys' in given and config.official_keys:
        raise UserError(_filled_in(config.official_keys))
    flat = keys.flat(config)
    official = _official(flat)
    values = {key: value for key, value in official.items() if key not in given}
    if _RULE in given and (theirs := official.get(_RULE, flat[_RULE])) != flat[_RULE]:
        left = [key for key in _OF_RULE if key in values]
        values = {key: value for key, value in values.items() if key not in left}
        if left:
            warn(
                f'config.{_RULE}={flat[_RULE]!r} is not the rule of the papers of {flat["algorithm"]}, so '
                f"setting='official' leaves {', '.join(left)} as they are; with {theirs!r} it sets them"
            )
    with config.unlocked():
        config.update_from_flattened_dict(values)
        config.official_keys = tuple(sorted(values))


def check(flat: Mapping[str, Any]) -> None:
    """Raises UserError if `setting` is 'official' but was never applied, as when a program sets only that key, or if
    another setting has `official_keys`."""
    if flat['setting'] != 'official':
        if flat['official_keys']:
            raise UserError(_filled_in(flat['official_keys']))
        return
    _official(flat)
    if not flat['official_keys']:
        raise UserError(
            "config.setting='official' is set, but the configuration has none of its values; call "
            'semisfl_jax.config.presets.apply(config)'
        )


def _filled_in(named: Sequence[str]) -> str:
    return (
        f"config.official_keys holds {named[0]!r}: setting='official' fills it in, with keys that were set from the "
        'papers; leave it out'
    )


def _official(flat: Mapping[str, Any]) -> Mapping[str, Any]:
    method = algorithms.get(flat['algorithm'])
    if isinstance(method.official, str):
        raise UserError(
            f"config.setting='official': {method.name} has no such setting, because {method.official}; use 'harmonized'"
        )
    return method.official(flat)
