"""What starts make before the first round, kept for later ones: compiled programs, and the pieces that costs are of.

JAX finds a compiled program by its lowered form, and to trace and lower a round takes several times as long as to load
it. So a start of the command also keeps which programs it came to, under what they follow from: code, settings, shapes,
devices. Code is all of the package and whatever else is loaded, by size and time of change, as Python itself tells that
a file has changed. What was replaced in memory does not show: calls from Python trace their programs, and so do runs
with methods and models of others, which may read files.

Files hold machine code, as those of JAX's cache do: who can write into the folder can run code here.
"""

import hashlib
import os
import pickle
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.experimental import serialize_executable

import semisfl_jax
from semisfl_jax import models
from semisfl_jax.algorithms.registry import is_ours
from semisfl_jax.base import file_io, machine
from semisfl_jax.config import keys
from semisfl_jax.training.driver import Driver

MOST = 300  # files: those that were used last
_ENDING, _DIGEST = '.kept', hashlib.sha256().digest_size
_ENVIRONMENT = ('JAX', 'XLA', 'LIBTPU', 'TF_')  # beginnings of variables that compilers read
# Keys that are no part of any program, or only by the shapes of its arguments
LEFT_OUT = frozenset(
    {
        *('seed', 'seeds', 'rounds', 'checkpoint_every', 'checkpoints_kept', 'diagnostics_every', 'trackers'),
        *('data.data_dir', 'data.cache_dir', 'data.partition_seed', 'data.partition_file'),
    }
)


class Kept:
    """The programs and values of a start by name, made now or by an earlier start."""

    def __init__(self, folder: Path | None = None, around: Any = (), start: str = ''):
        """Reads what an earlier start has kept.

        Args:
          folder: where everything is kept; None keeps nothing.
          around: what programs follow from besides their lowered form.
          start: name of the start's own file; '': programs are found by their lowered form and arguments alone.
        """
        self._folder, self._around, self._start = folder, around, start
        self._parts: dict[str, Any] = self._read(start) or {}  # values, and names of files of programs
        self._before = dict(self._parts)
        self.loaded: set[str] = set()  # programs that were not compiled

    def value(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns a value that can be pickled, made if need be."""
        if not self._start:
            return make()
        if name not in self._parts:
            self._parts[name] = make()
        return self._parts[name]

    def lower(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Callable[[], jax.stages.Compiled]:
        """Lowers a program, unless the start knows its file, and returns what loads or compiles it."""
        lowered = None if name in self._parts else lower()

        def compile_() -> jax.stages.Compiled:
            if not lowered and (loaded := self._load(name)):
                return loaded
            form = lowered or lower()
            if not self._folder:
                return form.compile()
            # The text has no argument that is not read
            self._parts[name] = file = _digest(form.as_text(), form.args_info, form.out_tree, self._around)
            if loaded := self._load(name):
                return loaded
            with machine.count_compilations() as programs:
                compiled = form.compile()
            # One that JAX has loaded itself would lack functions if it were written again
            if programs['compile_requests_use_cache'] and not programs['cache_hits']:
                with suppress(Exception):  # the run needs no copy, and backends refuse with errors of their own
                    self._write(file, (serialize_executable.serialize(compiled), _devices(compiled)))
            return compiled

        return compile_

    def write(self) -> None:
        """Keeps the parts for the next start, and lets go of what was not used for long."""
        if not self._folder:
            return
        if self._start and self._parts != self._before:
            self._write(self._start, self._parts)
        with suppress(OSError):
            files = sorted(self._folder.glob(f'*{_ENDING}'), key=lambda file: file.stat().st_mtime)
            for file in files[:-MOST]:
                file.unlink(missing_ok=True)

    def _load(self, name: str) -> jax.stages.Compiled | None:
        """Loads a program from its file; None if there is none, or XLA refuses it."""
        with suppress(Exception):
            if content := self._read(self._parts[name]):
                (program, inputs, outputs), numbers = content
                by_number = {device.id: device for device in jax.devices()}
                devices = [by_number[number] for number in numbers]
                client: Any = devices[0].client
                loaded = serialize_executable.deserialize_and_load(program, inputs, outputs, client, devices)
                self.loaded.add(name)
                return loaded
        return None

    def _read(self, name: str) -> Any:
        """Reads a file; None if there is none, or it is not whole."""
        if not self._folder or not name:
            return None
        file = self._folder / f'{name}{_ENDING}'
        with suppress(Exception):  # of whatever is unpickled
            content = file.read_bytes()
            if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
                os.utime(file)
                return pickle.loads(zlib.decompress(content[_DIGEST:]))
        return None

    def _write(self, name: str, content: Any) -> None:
        """Writes a file, if the disk allows it."""
        if self._folder:
            packed = zlib.compress(pickle.dumps(content), level=1)
            with suppress(OSError):
                file_io.write(self._folder / f'{name}{_ENDING}', hashlib.sha256(packed).digest() + packed)


NOTHING = Kept()


def _devices(program: jax.stages.Compiled) -> list[int]:
    """Returns the numbers of the devices of a program, in their order."""
    some = jax.tree.leaves(program.output_shardings)[0]
    in_order = list(some.mesh.devices.flat) if isinstance(some, jax.sharding.NamedSharding) else list(some.device_set)
    return [device.id for device in in_order]


def code() -> list[Any] | None:
    """Lists the Python files of the package and of all that is loaded; None if code was typed in, not in a file."""
    if not getattr(sys.modules['__main__'], '__file__', None):
        return None
    loaded = [getattr(module, '__dict__', {}).get('__file__') for module in list(sys.modules.values())]
    files = {*filter(None, loaded), *map(os.fspath, Path(semisfl_jax.__file__).parent.rglob('*.py'))}
    stats = [(file, os.stat(file)) for file in sorted(files) if os.path.exists(file)]
    return [sys.version, *((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats)]


def find(folder: Path, code: Sequence[Any] | None, driver: Driver, arguments: Any) -> Kept:
    """Finds what earlier starts have kept.

    Args:
      folder: where they keep it.
      code: from `code`, before anything is loaded that only some starts need; None for calls from Python.
      driver: of the run.
      arguments: of `Driver.round`, as arrays or shapes.

    Returns:
      The parts that follow from the same code, settings, shapes and devices.
    """
    first = driver.trials[0]
    config, dataset = first.config, first.dataset
    if jax.process_count() > 1:
        return Kept()
    made = models.EVERY_ARCHITECTURE[config.model.name]
    ours = is_ours(first.method) and getattr(made, 'func', made).__module__.startswith(f'{models.__name__}.')
    around = (
        (jax.__version__, jaxlib.__version__, machine.CPU_OPTIONS, config.deterministic),
        sorted((name, repr(value)) for name, value in jax.config.values.items()),
        sorted(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT)),
        [(each.platform, each.device_kind, each.client.platform_version, each.id) for each in jax.devices()],
        machine.instructions(),
    )
    if not code or not ours or config.model.weights:
        return Kept(folder, around)
    facts = (
        code,
        sorted((key, repr(value)) for key, value in keys.flat(config).items() if key not in LEFT_OUT),
        (driver.map, driver.varied, len(driver.trials)),
        (dataset.outline, dataset.mean, dataset.std, len(dataset.test_images)),
        jax.tree.structure(arguments),
        [(jax.typeof(leaf), _divided(leaf)) for leaf in jax.tree.leaves(arguments)],
    )
    return Kept(folder, around, _digest(facts, around))


def _divided(leaf: Any) -> Any:
    """Returns how an array is divided over a mesh; None on one device, which a shape alone does not name."""
    sharding = getattr(leaf, 'sharding', None)
    return sharding if isinstance(sharding, jax.sharding.NamedSharding) else None


def _digest(*facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()
