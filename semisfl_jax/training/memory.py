"""Memory: what a compiled program needs, as its compiler says, and out-of-memory errors as one line.

The memory that there is (`machine`) is overestimated, so no run that works is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import jax
from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax.config import keys
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError, first_line, shorten, size

P = ParamSpec('P')
R = TypeVar('R')


class Memory(NamedTuple):
    """Bytes that a program needs on one device."""

    arguments: int
    outputs: int  # those that do not take the place of an argument
    temporary: int
    code: int


def of_program(compiled: Any) -> Memory:
    """What a `jax.stages.Compiled` needs; zeros where the compiler does not say."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return Memory(0, 0, 0, 0)
    return Memory(
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        temporary=analysis.temp_size_in_bytes,
        code=analysis.generated_code_size_in_bytes,
    )


def check(program: str, compiled: Any, config: ConfigDict) -> None:
    """Makes sure that a `jax.stages.Compiled` of this name may fit; `config` is resolved.

    Raises:
      UserError: it certainly does not.
    """
    place, limit, sharing = 'the device', machine.device_memory(), 1
    if machine.platform() == 'cpu':  # its devices share the memory of the machine
        place, limit = 'this machine', machine.host_memory()
        sharing = 1 if config.parallel.coordinator else count_devices(config)
    parts = {name: sharing * count for name, count in of_program(compiled)._asdict().items() if name != 'code'}
    need, largest = sum(parts.values()), max(parts, key=lambda name: parts[name])
    if limit and need > limit:
        raise UserError(
            f'the {program} needs {size(need)} of memory (most of it, {size(parts[largest])}, for '
            f'{_WHAT[largest]}), but {place} has {size(limit)}; use {_remedy(largest, config)}'
        )


def explained(run: Callable[Concatenate[ConfigDict, P], R]) -> Callable[Concatenate[ConfigDict, P], R]:
    """Decorates a function of a configuration: out of memory becomes a UserError."""

    @wraps(run)
    def explaining(config: ConfigDict, *arguments: P.args, **options: P.kwargs) -> R:
        try:
            return run(config, *arguments, **options)
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not ran_out(error):
                raise
            reason, where = shorten(first_line(error)), 'host' if isinstance(error, MemoryError) else 'temporary'
        # the arrays of the run are freed by now
        raise UserError(f'out of memory ({reason}); use {_remedy(where, config)}; saved checkpoints are kept')

    return explaining


def ran_out(error: Exception) -> bool:
    """Whether an error says that there is no more memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or 'resource_exhausted' in text or 'out of memory' in text


_WHAT = {'arguments': 'data and state', 'outputs': 'results', 'temporary': 'intermediate results'}


def _remedy(largest: str, config: ConfigDict) -> str:
    """The two keys that help most if most memory goes to a part of `Memory`, or to 'host' for arrays of NumPy."""
    method = algorithms.get(config.algorithm)
    clients = f'fewer than federation.num_clients={config.federation.num_clients}'
    if largest == 'host':
        return f'a smaller data.image_size{f" or {clients}" if method.clients else ""}'
    if not method.clients:
        return f'{_less("server_batch_size", config)} or a smaller model.name'
    if largest == 'outputs':  # the initial state
        queue = f'{_less("queue_size", config)} or a smaller model.projection_dim'
        return queue if method.clusters else f'{clients} or a smaller model.name'
    if largest == 'arguments':
        on_device = config.data.residency == 'device'
        return f'{"data.residency=host" if on_device else _less("batch_size", config)} or {clients}'
    larger = _less(max(('batch_size', 'server_batch_size'), key=lambda key: config[key]), config)
    in_chunks = config.federation.client_chunk != 1 and not method.sequential(keys.flat(config))
    return f'federation.client_chunk=1 or {larger}' if in_chunks else f'{larger} or a smaller model.name'


def _less(key: str, config: ConfigDict) -> str:
    return f'less than {key}={config[key]}'
