"""Memory: what compiled programs need, as the compiler reports it, and out-of-memory errors in one line.

`machine` overestimates the memory available, so no run that works is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError, first_line, shorten, size
from semisfl_jax.config.resolve import count_devices

_REMEDIES = {  # part of `Memory`: what messages call it, and the keys that help if it is the largest
    'arguments': ('data and state', 'data.residency=host or a smaller federation.num_clients'),
    'outputs': ('results', 'a smaller queue_size, model.projection_dim or federation.num_clients'),
    'temporary': ('intermediate results', 'federation.client_chunk=1 or a smaller batch_size or server_batch_size'),
}


class TooLarge(UserError):
    """A program does not fit into memory."""


class Memory(NamedTuple):
    """Bytes that a program needs on one device."""

    arguments: int
    outputs: int  # without those that reuse the memory of an argument
    temporary: int
    code: int


def program_memory(compiled: Any) -> Memory:
    """Returns the memory that a `jax.stages.Compiled` needs; zeros where the compiler does not say."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return Memory(0, 0, 0, 0)
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    others = analysis.temp_size_in_bytes, analysis.generated_code_size_in_bytes
    return Memory(analysis.argument_size_in_bytes, outputs, *others)


def check(program: str, compiled: Any, config: ConfigDict) -> None:
    """Checks that a compiled program may fit into memory.

    Args:
      program: name of the program, for the error message.
      compiled: a `jax.stages.Compiled`.
      config: configuration, resolved.

    Raises:
      TooLarge: the program certainly does not fit.
    """
    place, limit, sharing = 'the device', machine.device_memory(), 1
    if machine.platform() == 'cpu':  # its devices share the memory of the machine
        place, limit = 'this machine', machine.host_memory()
        sharing = 1 if config.parallel.coordinator else count_devices(config)
    parts = {name: sharing * count for name, count in program_memory(compiled)._asdict().items() if name != 'code'}
    need, largest = sum(parts.values()), max(parts, key=lambda name: parts[name])
    if limit and need > limit:
        what, remedy = _REMEDIES[largest]
        raise TooLarge(
            f'the {program} needs {size(need)} of memory (most of it, {size(parts[largest])}, for {what}), but {place} '
            f'has {size(limit)}; use {remedy}'
        )


@contextmanager
def explained() -> Iterator[None]:
    """Turns running out of memory, within a block or a decorated function, into a UserError."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not ran_out(error):
            raise
        remedy = 'a smaller data.image_size' if isinstance(error, MemoryError) else _REMEDIES['temporary'][1]
        reason = shorten(first_line(error))
        raise UserError(f'out of memory ({reason}); use {remedy}; saved checkpoints are kept') from error


def ran_out(error: Exception) -> bool:
    """Returns whether an error means that memory has run out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or 'resource_exhausted' in text or 'out of memory' in text
