"""Runs whose form is by table or measurement."""

import json

from semisfl_jax import config as config_lib
from semisfl_jax import forms, machine
from semisfl_jax.config import tuned
from semisfl_jax.forms import Form
from tests import runs

USUAL, OTHER = Form('loop', 'winograd'), Form('loop', 'patches')
CHEAP = {'algorithm': 'supervised_only', 'rounds': 2, 'lr_rounds': 2, 'checkpoint_every': 1}


def choice(config, form, **changes):
    entry = tuned.Choice(*tuned.place(config, machine.device()), form, {str(form): 1.5}, '2026-11-23')
    return entry._replace(**changes)


def resolved(**changes):
    return config_lib.resolve(runs.config(**changes))


def config_of(folder):
    return config_lib.flatten(json.loads((folder / 'config.json').read_text()))


def taken_in(folder):
    """The form in config.json, and which keys the machine chose."""
    config = config_of(folder)
    return [config[key] for key in forms.KEYS], config['machine_keys']
