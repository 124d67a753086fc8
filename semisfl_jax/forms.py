"""The forms of a program: how clients are mapped and convolutions written, and which form is for which device.

All forms compute the same up to rounding. Which one is fastest depends on the device, so the keys that choose it,
`federation.client_map` and `model.convolution`, are 'auto' unless a user sets them. `TABLE` says what 'auto' means
where forms were measured; `python -m semisfl_jax.tune` measures elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

from semisfl_jax import machine
from semisfl_jax.machine import Device


class Form(NamedTuple):
    """A value for each of the two keys."""

    client_map: str
    convolution: str

    def __str__(self) -> str:
        return ' and '.join(name for name in self if name != 'auto')  # 'auto': not read by the programs


KEYS = Form('federation.client_map', 'model.convolution')  # of the configuration


class Row(NamedTuple):
    """A line of the table. '' fits any device."""

    platform: str
    name: str  # how the name of the device begins
    maker: str
    vectors: str
    form: Form
    source: str  # of the choice


# Most specific rows first. Numbers: all passes of ten bottoms of the CNN, whose convolutions are alike in `direct`
# and `winograd` (docs/performance.md).
TABLE = (
    Row(
        'cpu',
        '',
        'AuthenticAMD',
        'avx512',
        Form('loop', 'winograd'),
        'EPYC: direct 122 ms, the others 213 to 10,390; a round of AlexNet 6.2 s with winograd, 8.2 with direct',
    ),
    Row(
        'cpu',
        '',
        'AuthenticAMD',
        'avx2',
        Form('loop', 'winograd'),
        'EPYC (Zen 3): winograd 293 ms, direct 313, the others 524 to 21,698',
    ),
    Row(
        'cpu',
        '',
        'GenuineIntel',
        'avx512',
        Form('loop', 'winograd'),
        'Xeon: direct 336 ms, the others from 628; wide 3x3 convolutions 1.1 to 1.8 times as fast with winograd',
    ),
)
_UNMEASURED = {'cpu': Form('loop', 'winograd')}
_UNMEASURED_ELSEWHERE = Form('vmap', 'native')
_BEFORE_THE_TABLE = {'cpu': Form('loop', 'direct')}


def of_device(device: Device) -> tuple[Form, str]:
    """The form for a device and where its numbers come from; '' where none were measured on its kind."""
    for row in TABLE:
        fits = zip((row.platform, row.maker, row.vectors), (device.platform, device.maker, device.vectors), strict=True)
        if all(wanted in ('', given) for wanted, given in fits) and device.name.startswith(row.name):
            return row.form, row.source
    return _UNMEASURED.get(device.platform, _UNMEASURED_ELSEWHERE), ''


def usual() -> Form:
    """The form for `machine.device()`, also where a model is built without a configuration."""
    return of_device(machine.device())[0]


def before_the_table(platform: str) -> Form:
    """What 'auto' was on a 'cpu', 'gpu' or 'tpu' in runs from before there was a table."""
    return _BEFORE_THE_TABLE.get(platform, _UNMEASURED_ELSEWHERE)
