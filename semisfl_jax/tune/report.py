"""What tune shows, as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ml_collections import ConfigDict

from semisfl_jax.config.tuned import Choice
from semisfl_jax.forms import Form
from semisfl_jax.machine import Device
from semisfl_jax.tune.measure import Measured
from semisfl_jax.wording import columns


def title(config: ConfigDict, short: ConfigDict, device: Device) -> str:
    """What is measured, from the configuration (resolved) and that of the short round."""
    clients, devices = short.federation.num_active, config.parallel.devices
    lines = [
        f'{config.algorithm}, {config.model.name} on images like those of {config.data.name}: {clients} clients x '
        f'{config.batch_size} images, {config.precision}; on {device.title}',
        f'a short round of K_s {short.k_s} and K_u {short.k_u}, on synthetic images, in turns',
    ]
    if config.seeds:
        lines.append(f'of one seed; all {len(config.seeds)} take its form')
    elif devices > 1:
        share = f'its share of the {config.federation.num_active} clients'
        lines.append(f'of one device, with {share}; all {devices} take its form')
    return '\n'.join(lines)


def table(measured: Measured, choice: Form, usual: Form) -> str:
    """A line for every form, the fastest first."""
    medians = {form: statistics.median(times) for form, times in measured.times.items()}
    fastest = min(medians.values())
    head = ('client_map', 'convolution', 'ms, median', 'lowest', 'of the best', '')
    rows: list[tuple[str, ...]] = [head]
    for form in sorted(medians, key=lambda form: medians[form]):
        times, marks = measured.times[form], [*(['chosen'] if form == choice else [])]
        marks += ["'auto' before"] if form == usual else []
        numbers = f'{1e3 * medians[form]:,.1f}', f'{1e3 * min(times):,.1f}', f'{medians[form] / fastest:.2f}'
        rows.append((*form, *numbers, ', '.join(marks)))
    left_out = [(*head[:2], ''), *((*form, why) for form, why in measured.left_out.items())]
    return '\n'.join([*columns(rows, '<<>>><'), *columns(left_out, '<<<')[1:]])  # the head as wide as above


def listed(choices: Sequence[Choice], device: Device, jax_version: str) -> str:
    """All stored choices, in a few lines each."""
    lines = []
    for choice in choices:
        settings = ', '.join(f'{key}={value}' for key, value in choice.settings.items() if value not in (None, [], 0))
        here = choice.device == device and choice.jax == jax_version
        where = 'this device' if here else f'{choice.device.title}, JAX {choice.jax}: not this device'
        times = ', '.join(f'{name} {value:,.1f} ms' for name, value in choice.milliseconds.items())
        lines += [f'{choice.form}, measured on {choice.date} for {where}', f'  {settings}', f'  {times}']
    return '\n'.join(lines) or 'no choice is stored'
