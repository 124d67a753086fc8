"""Memory: what a compiled program needs, as its compiler says, and out-of-memory errors as one line.

The memory that there is (`machine`) is overestimated, so no run that works is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError, first_line, shorten, size

_REMEDIES = {  # part of `Memory` -> what it is, and the keys that help if it is most
    'arguments': ('data and state', 'data.residency=host or a smaller federation.num_clients'),
    'outputs': ('results', 'a smaller queue_size, model.projection_dim or federation.num_clients'),
    'temporary': ('intermediate results', 'federation.client_chunk=1 or a smaller batch_size or server_batch_size'),
}


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
        what, remedy = _REMEDIES[largest]
        raise UserError(
            f'the {program} needs {size(need)} of memory (most of it, {size(parts[largest])}, for {what}), but {place} '
            f'has {size(limit)}; use {remedy}'
        )


@contextmanager
def explained() -> Iterator[None]:
    """A block, or a decorated function, in which running out of memory is a UserError."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not ran_out(error):
            raise
        remedy = 'a smaller data.image_size' if isinstance(error, MemoryError) else _REMEDIES['temporary'][1]
        reason = shorten(first_line(error))
        raise UserError(f'out of memory ({reason}); use {remedy}; saved checkpoints are kept') from error


def ran_out(error: Exception) -> bool:
    """Whether an error says that there is no more memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or 'resource_exhausted' in text or 'out of memory' in text
