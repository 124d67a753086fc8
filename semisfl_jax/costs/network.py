"""Links and devices of the clients: how fast bytes travel, how fast clients compute.

Bandwidths are drawn for every client and round from streams of `config.seed` that nothing else uses. They depend on
neither the method nor the cohort, so all methods with the same seed see the same network.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError, several, use_one_of

BANDWIDTH_UNITS = {'Mbps': 1e6 / 8, 'MBps': 1e6}  # bytes per second

# Peak float32 operations per second, 2 x CUDA cores x highest clock from NVIDIA's data sheets. The paper mentions 80
# Jetson devices "under different modes" without their models; these four are an assumption.
DEVICES = {
    'jetson_nano': 2 * 128 * 0.9216e9,
    'jetson_tx2': 2 * 256 * 1.300e9,
    'jetson_xavier_nx': 2 * 384 * 1.100e9,
    'jetson_agx_xavier': 2 * 512 * 1.377e9,
}


@dataclasses.dataclass(frozen=True)
class CostOptions:
    """`config.cost`."""

    enabled: bool = True
    bill_model_size: str = 'actual'
    bandwidth_unit: str = 'Mbps'
    client_out: tuple[float, float] = (0.8, 8.0)
    client_in: tuple[float, float] = (10.0, 20.0)
    devices: tuple[str, ...] = ('jetson_tx2', 'jetson_xavier_nx', 'jetson_agx_xavier')
    efficiency: float = 0.3
    server_teraflops: float = 38.7


class Links(NamedTuple):
    """Bytes per second of each active client."""

    up: np.ndarray  # [A]
    down: np.ndarray  # [A]


def draw_links(options: CostOptions, seed: int, index: int, ids: np.ndarray, num_clients: int) -> Links:
    """The links of the clients `ids` [A] in round `index` (0-based), uniform in the ranges of the options."""
    generator = rng.host(seed, 'bandwidth', index)
    unit = BANDWIDTH_UNITS[options.bandwidth_unit]
    up, down = (unit * generator.uniform(*ends, num_clients) for ends in (options.client_out, options.client_in))
    return Links(up[ids], down[ids])


def client_speeds(options: CostOptions, seed: int, num_clients: int) -> np.ndarray:
    """Operations per second [N] that clients reach. Device models are equally frequent, up to one client."""
    peaks = np.array([DEVICES[name] for name in options.devices])
    places = rng.host(seed, 'devices').permutation(num_clients)
    return options.efficiency * peaks[places % len(peaks)]


def server_speed(options: CostOptions) -> float:
    """Operations per second that the server reaches."""
    return options.efficiency * 1e12 * options.server_teraflops


def check(flat: dict[str, Any]) -> None:
    """Raises UserError for bandwidths or devices of `config.cost`, in a flat configuration, that cannot be."""
    for key in ('client_out', 'client_in'):
        ends = flat[f'cost.{key}']
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
        if len(ends) != 2 or not numbers or not 0 < ends[0] <= ends[1] < math.inf:
            raise UserError(f'config.cost.{key}={tuple(ends)} must be two bandwidths above 0, as in (0.8, 8.0)')
    devices = flat['cost.devices']
    if not devices:
        raise UserError(f'config.cost.devices is empty; name one or more of {", ".join(DEVICES)}')
    if unknown := [name for name in devices if name not in DEVICES]:
        hint = several('cost.devices', str(unknown[0])) or use_one_of(str(unknown[0]), DEVICES)
        raise UserError(f'config.cost.devices holds {unknown[0]!r}, which is unknown; {hint}')
