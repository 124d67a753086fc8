"""Checks that a run fits into memory: refuses runs that certainly do not, and explains out-of-memory errors.

The need of a run (`footprint`) is underestimated and the available memory (`machine`) overestimated, so no run that
works is refused. The additional need of a compiled program comes from XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import jax
from ml_collections import ConfigDict

from semisfl_jax import machine
from semisfl_jax.algorithms.registry import option_fields
from semisfl_jax.config import devices, keys
from semisfl_jax.errors import UserError
from semisfl_jax.training.footprint import Share
from semisfl_jax.wording import shorten, size

# Keys that make a run larger, any of which may have been typed with an extra zero; methods mark their own options.
_KNOBS = (
    'data.image_size',
    'data.pad_to',
    'data.fake_size',
    'federation.num_clients',
    'federation.num_active',
    'model.projection_dim',
    'queue_size',
    'batch_size',
    'server_batch_size',
    'eval_batch_size',
    'k_u',
    'local.epochs',
    'frequency.horizon',
)
_SPARING = {  # a large share -> how to reduce it
    'images': "data.residency='host', fewer data.fake_size or a smaller data.image_size",
    'maps of the tasks': "data.residency='host', fewer data.tasks or a smaller data.image_size",
    'images in host memory': 'fewer data.fake_size or a smaller data.image_size',
    'models of the server': 'a smaller model.name or model.projection_dim',
    'queue': 'a smaller queue_size',
    'client state': "fewer federation.num_clients, local.optimizer_state='fresh' or method options that keep less",
    'index tables of the clients': 'fewer federation.num_clients',
    'models in training': 'fewer federation.num_active or a smaller model.name',
    'loss history of the K_s controller': 'a smaller frequency.horizon',
    'batches': 'a smaller server_batch_size, batch_size or eval_batch_size',
    'rows and images of a round': "a smaller k_u, batch_size or local.epochs, or data.residency='device'",
}
_SHOWN = 3  # shares listed in a message

P = ParamSpec('P')
R = TypeVar('R')
Shares = Callable[[ConfigDict], Sequence[Share]]


class Pool(NamedTuple):
    """A memory, and a run's shares in it."""

    name: str
    limit: int  # bytes
    shares: list[Share]

    @property
    def need(self) -> int:
        """Bytes of all shares together."""
        return sum(share.nbytes for share in self.shares)


def check(config: ConfigDict, shares_of: Shares) -> None:
    """Makes sure that a run may fit.

    Args:
      config: resolved.
      shares_of: configuration -> memory shares of its run, from shapes alone.

    Raises:
      UserError: it certainly does not.
    """
    for place in _places(config, shares_of(config)):
        if place.need > place.limit:
            need = f'at least {size(place.need)} of memory ({_largest(place.shares)})'
            advice = _sparing(place.shares)
            raise UserError(_refusal(config, shares_of, place, need, advice, place.limit / 2))


def check_program(program: str, compiled: Any, config: ConfigDict, shares_of: Shares) -> None:
    """Makes sure that a program may fit, given XLA's memory layout.

    Args:
      program: its name.
      compiled: a `jax.stages.Compiled`.
      config, shares_of: as in `check`.

    Raises:
      UserError: it certainly does not.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:  # not reported by this backend
        return
    argument_bytes = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    temp_bytes = analysis.temp_size_in_bytes
    for place in _places(config, [Share(program, argument_bytes + temp_bytes)]):
        if place.need > place.limit:
            temporary = f'{size(temp_bytes)} of it for intermediate results'
            need = f'{size(place.need)} of memory for the compiled {program}, {temporary}'
            known_bytes = sum(share.nbytes for share in shares_of(config))
            most = known_bytes * place.limit / place.need / 2  # assumes that everything scales alike
            raise UserError(_refusal(config, shares_of, place, need, _on_the_way(config), most))


def explained(
    shares_of: Shares,
) -> Callable[[Callable[Concatenate[ConfigDict, P], R]], Callable[Concatenate[ConfigDict, P], R]]:
    """Decorates a function of a configuration: out of memory becomes a UserError that names the largest shares."""

    def decorate(run: Callable[Concatenate[ConfigDict, P], R]) -> Callable[Concatenate[ConfigDict, P], R]:
        @wraps(run)
        def explaining(config: ConfigDict, *arguments: P.args, **options: P.kwargs) -> R:
            try:
                return run(config, *arguments, **options)
            except (MemoryError, jax.errors.JaxRuntimeError) as error:
                if not _is_lack_of_memory(error):
                    raise
                reason = shorten(next(iter(str(error).splitlines()), '')) or 'no more memory'
            raise UserError(_explanation(reason, config, shares_of))  # the arrays of the run are freed by now

        return explaining

    return decorate


def _places(config: ConfigDict, shares: Sequence[Share]) -> Iterator[Pool]:
    """The memories that limit a run, as far as known; the devices of a CPU share the host's."""
    on_host, on_device = machine.host_memory(), machine.device_memory()
    if on_device:
        yield Pool('the device', on_device, [share for share in shares if not share.on_host])
        shares = [share for share in shares if share.on_host]
    elif machine.platform() == 'cpu' and not config.parallel.coordinator:
        each = devices.count(config)
        shares = [share if share.on_host else share._replace(nbytes=each * share.nbytes) for share in shares]
    if on_host:
        yield Pool('this machine', on_host, list(shares))


def _refusal(config: ConfigDict, shares_of: Shares, place: Pool, need: str, advice: str, most: float) -> str:
    """One line: memory needed, memory available, and the key responsible, or `advice` if no single key is.

    The recommended value of the key is one with which the known shares take at most `most` bytes, leaving room for the
    rest.
    """
    key, value, fitting = _culprit(config, shares_of, place.name, most)
    available = f'but {place.name} has {size(place.limit)}'
    if not key:
        return f'the run needs {need}, {available}; use {advice}'
    remedy = f'{fitting:,} or less' if fitting else advice
    return f'with config.{key}={value} the run needs {need}, {available}; use {remedy}'


def _culprit(config: ConfigDict, shares_of: Shares, place_name: str, most: float) -> tuple[str, int, int]:
    """The key whose default saves most, its value, and the largest round value with shares of at most `most` bytes.

    ('', 0, 0) if none saves half of the known shares; the last is 0 if no value is small enough.
    """

    def need(key: str, value: int) -> float:
        try:
            shares = shares_of(_changed(config, key, value))
        except UserError:  # images too small for the model, and the like
            return math.inf
        return next((memory.need for memory in _places(config, shares) if memory.name == place_name), math.inf)

    current_need = next((memory.need for memory in _places(config, shares_of(config)) if memory.name == place_name), 0)
    needs = {}
    defaults, values = keys.defaults(), keys.flat(config)
    options = [key for key, field in option_fields().items() if field.metadata['scales_memory'] and key in values]
    for key in (*_KNOBS, *options):
        value, default = values[key], defaults.get(key)
        if default is not None and value > default:
            needs[key] = need(key, default), value
    key = min(needs, key=lambda name: needs[name], default='')
    if not key or needs[key][0] > current_need / 2:
        return '', 0, 0
    value = needs[key][1]
    steps = (lead * 10**zeros for zeros in reversed(range(10)) for lead in (5, 2, 1))
    return key, value, next((step for step in steps if step < value and need(key, step) <= most), 0)


def _changed(config: ConfigDict, key: str, value: int) -> ConfigDict:
    changed = config.copy_and_resolve_references().unlock()
    changed.update_from_flattened_dict({key: value})
    return changed.lock()


def _largest(shares: Sequence[Share]) -> str:
    first = sorted(shares, key=lambda share: -share.nbytes)[:_SHOWN]
    return ', '.join(f'{share.what} {size(share.nbytes)}' for share in first)


def _sparing(shares: Sequence[Share]) -> str:
    return _SPARING[max(shares, key=lambda share: share.nbytes).what]


def _on_the_way(config: ConfigDict) -> str:
    """Advice on how to reduce the temporary memory of a program."""
    names = ('batch_size', 'server_batch_size', 'eval_batch_size', 'queue_size')
    return f'federation.client_chunk=1, or less than {", ".join(f"{name}={config[name]}" for name in names)}'


def _is_lack_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or 'resource_exhausted' in text or 'out of memory' in text


def _explanation(reason: str, config: ConfigDict, shares_of: Shares) -> str:
    places = list(_places(config, shares_of(config)))
    usage = [
        f'{size(place.need)} of {size(place.limit)} in {place.name} ({_largest(place.shares)})'
        for place in places
        if place.need
    ]
    explanation = f'; the run holds at least {" and ".join(usage)}, plus intermediate results' if usage else ''
    return f'out of memory ({reason}){explanation}; use {_on_the_way(config)}; saved checkpoints are kept'
