"""The forms that `python -m semisfl_jax.tune` found fastest, as stored in the user's cache: read here, written there.

A choice holds for one kind of device, one version of JAX, and the settings that decide how fast a form is. Nothing is
inferred for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from semisfl_jax import data, forms, models, own_files, parallel
from semisfl_jax.config import keys
from semisfl_jax.errors import UserError, warn
from semisfl_jax.forms import Form
from semisfl_jax.machine import Device

NAME = 'forms.json'
FORMAT = 1
NAMES = dict(zip(forms.KEYS, (parallel.CLIENT_MAPS, models.CONVOLUTIONS), strict=True))  # what the keys may have


class FormKey(NamedTuple):
    """What a choice holds for."""

    device: Device
    jax: str  # version
    settings: dict[str, Any]  # as `settings`


class Choice(NamedTuple):
    """What was measured, and the form that came out."""

    device: Device
    jax: str  # version
    settings: dict[str, Any]  # as `settings`
    form: Form
    milliseconds: dict[str, float]  # of a short round, by form: 'loop and direct'
    date: str  # '2026-11-23'

    @property
    def place(self) -> FormKey:
        """What it holds for."""
        return FormKey(self.device, self.jax, self.settings)


def file() -> Path:
    """Where choices are stored."""
    return data.default_cache_dir() / NAME


def settings(config: ConfigDict) -> dict[str, Any]:
    """What decides, beside the device, which form is the fastest for a configuration (resolved).

    `client_map` and `convolution` are in it as given: where a user set one of them, only the other was measured.
    """
    devices = 1 if config.seeds else max(1, config.parallel.devices)  # with several seeds, they divide the seeds
    outline, images = data.outline(config.data), config.data
    return {
        'algorithm': config.algorithm,
        'model': config.model.name,
        'split_index': config.model.split_index,
        'output_stride': config.model.output_stride,
        'image': list(outline.image) if outline else [images.name, images.image_size, images.pad_to],
        'tasks': list(config.data.tasks),
        'batch_size': config.batch_size,
        'server_batch_size': config.server_batch_size,
        'clients': -(-config.federation.num_active // devices),
        'client_chunk': config.federation.client_chunk,
        'precision': config.precision,
        'deterministic': config.deterministic,
        **Form(*(keys.flat(config)[key] for key in forms.KEYS))._asdict(),
    }


def place(config: ConfigDict, device: Device) -> FormKey:
    """What a choice for a configuration (resolved) on a device holds for."""
    return FormKey(device, jax.__version__, settings(config))


def find(config: ConfigDict, device: Device) -> Choice | None:
    """The choice for a configuration (resolved) on a device; None if there is none. Warns where the file is broken."""
    if not file().exists():
        return None
    try:
        choices = read()
    except UserError as error:
        warn(f"{error}; until then, 'auto' means what the table of devices says")
        return None
    wanted = place(config, device)
    return next((choice for choice in choices if choice.place == wanted), None)


def read() -> list[Choice]:
    """All choices, oldest first; empty if there is no file.

    Raises:
      UserError: the file holds anything else.
    """
    path = file()
    if not path.exists():
        return []
    remedy = 'remove it with python -m semisfl_jax.tune --forget, or restore it from a copy'
    try:
        content = own_files.read_object(path)
    except UserError as error:
        raise UserError(f'{error}; {remedy}') from error
    if content.get('format') != FORMAT:
        raise UserError(f'{path} is not of format {FORMAT}, which this version of the package reads; {remedy}')
    try:
        return [_choice(entry) for entry in content['choices']]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f'{path} holds a choice that was not written by tune ({error}); {remedy}') from error


def as_json(choices: Sequence[Choice]) -> dict[str, Any]:
    """The content of the file."""
    entries = [
        {**choice._asdict(), 'device': choice.device._asdict(), 'form': choice.form._asdict()} for choice in choices
    ]
    return {'format': FORMAT, 'choices': entries}


def _choice(entry: dict[str, Any]) -> Choice:
    device, form = Device(**entry['device']), Form(**entry['form'])
    for name, names in zip(form, NAMES.values(), strict=True):
        if name not in names:
            raise ValueError(f'{name!r} is not a form')
    if not all(map(own_files.is_number, entry['milliseconds'].values())):
        raise ValueError('its times are not numbers')
    return Choice(**{**entry, 'device': device, 'form': form, 'settings': dict(entry['settings'])})
