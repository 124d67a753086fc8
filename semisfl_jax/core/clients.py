"""Maps the clients of a round and the trials of a run to devices: all at once, in chunks, or one after another on each.

Methods see devices only through a `ClientAxis`. On several devices the whole round is one program that every device
runs (`shard_round`), each on its own shard of the cohort and on copies of everything else. The `psum` and `all_gather`
of the axis are then collectives.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError
from semisfl_jax.core.types import Array, ClientAxis, Cohort, Federation, MethodState, Metrics, Tree

CLIENT_MAPS = ('auto', 'vmap', 'loop')

ClientMap = Callable[..., Callable]  # called as client_map(function, in_axes=0), like jax.vmap


def client_map(chunk: int = 0, how: str = 'auto') -> ClientMap:
    """Returns a map over a leading client axis, with the semantics of `jax.vmap`; the `in_axes` are 0 or None.

    Args:
      chunk: number of clients computed at a time, one chunk after another; the last may be smaller. Intermediate
        results of a chunk are not kept for the gradient but recomputed: memory for activations is that of one chunk, at
        the cost of an extra forward pass. 1 is a loop over clients in which nothing has a client axis, so no
        convolution is grouped. 0 keeps the activations of all. Takes precedence over `how`.
      how: 'vmap': all clients in one batched computation; 'loop': one after another, so that a client's intermediate
        results stay in the processor's cache, and no convolution has kernels of more than one client; 'auto': 'loop'
        on a CPU, 'vmap' elsewhere.

    Returns:
      map(function, in_axes=0).
    """
    return partial(_in_turn, chunk, True) if chunk else trial_map(how)[1]


def trial_map(how: str, at_once: int = 0) -> tuple[str, ClientMap]:
    """Returns a map over trials, which are independent of each other, inside one program.

    'vmap' batches them into one program: every operation processes all trials at once. Loops whose length differs
    between trials run as long as the longest, and the surplus iterations of shorter ones are discarded. 'loop' computes
    one trial after another, in the activation memory of one, with the operations of a single-trial program: bitwise
    equal as far as XLA compiles them alike (observed on CPUs except with `pre_rounds`, whose branch changes rounding).

    Args:
      how: 'auto', 'vmap' or 'loop'.
      at_once: trials that 'vmap' batches, in the activation memory of as many; 0: all.

    Returns:
      'vmap' or 'loop', which `how` 'auto' chooses as in `client_map`, and the map.
    """
    if how == 'auto':
        how = 'loop' if machine.platform() == 'cpu' else 'vmap'
    return how, jax.vmap if how == 'vmap' and not at_once else partial(_in_turn, at_once, False)


def _in_turn(chunk: int, again: bool, function: Callable, in_axes: int | tuple[int | None, ...] = 0) -> Callable:
    """Maps like `jax.vmap`, one after another or `chunk` of them at once; if `again`, recomputed for gradients."""

    def mapped(*arguments: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arguments)

        def one(slices: tuple) -> Any:
            remaining = iter(slices)
            return function(*(next(remaining) if axis == 0 else x for x, axis in zip(arguments, axes, strict=True)))

        stacked = tuple(x for x, axis in zip(arguments, axes, strict=True) if axis == 0)
        return jax.lax.map(jax.checkpoint(one) if again else one, stacked, batch_size=chunk if chunk > 1 else None)

    return mapped


AXIS = 'devices'  # the only axis of every mesh


def available(num_active: int) -> int:
    """Returns the most devices that a round can use: equally many per process, no more than its `num_active` clients.

    Raises:
      UserError: there are more processes than active clients.
    """
    processes = jax.process_count()
    if processes > num_active:
        raise UserError(f'{processes} processes are too many for {num_active} active clients; use at most {num_active}')
    return min(jax.device_count() // processes, num_active // processes) * processes


def available_to_trials(trials: int) -> int:
    """Returns the most devices that can share the trials equally."""
    return max(n for n in range(1, min(trials, jax.device_count()) + 1) if trials % n == 0)


def make_mesh(devices: int) -> Mesh | None:
    """Builds the mesh of a run, whose devices divide either the clients of a round or whole trials.

    Args:
      devices: the number of devices, over all processes.

    Returns:
      The mesh; None for one device and one process, which need no mesh.

    Raises:
      UserError: there are fewer devices, or they cannot be divided equally among the processes.
    """
    processes, device_count = jax.process_count(), jax.device_count()
    if devices > device_count:
        kind = jax.devices()[0].platform
        use = f'0 for all, in another --workdir if a run began on {devices}'
        use += ', or a new process: XLA_FLAGS divides a CPU only before JAX begins' if kind == 'cpu' else ''
        what = f'is more than the {device_count} available ({kind})'
        raise UserError(f'config.parallel.devices={devices} {what}; use {use}')
    if devices % processes:
        raise UserError(f'config.parallel.devices={devices} is not a multiple of the {processes} processes; use one')
    if devices == processes == 1:
        return None
    by_process = [jax.local_devices(process_index=index)[: devices // processes] for index in range(processes)]
    return Mesh(np.concatenate(by_process), (AXIS,))


def padded_size(mesh: Mesh | None, num_active: int, tasks: int = 1) -> int:
    """Returns the size of a padded cohort: the smallest multiple of devices * tasks that holds all active clients.

    Args:
      mesh: the devices.
      num_active: active clients of a round.
      tasks: dense tasks; every device gets equally many clients of each.

    Returns:
      The size.
    """
    group = tasks * (mesh.size if mesh else 1)
    return -(-num_active // group) * group


def client_axis(chunk: int = 0, how: str = 'auto', mesh: Mesh | None = None, num_active: int = 0) -> ClientAxis:
    """Builds the axis over the clients of a round, mapped on each device by `client_map`.

    Args:
      chunk: as in `client_map`.
      how: as in `client_map`.
      mesh: the devices; with a mesh, the axis is only valid inside `shard_round`.
      num_active: active clients of the round, on all devices.

    Returns:
      The axis.
    """
    if mesh is None:
        return ClientAxis(map=client_map(chunk, how))

    def all_gather(tree: Tree) -> Tree:
        def gather(x: Array) -> Array:
            padded = jax.lax.all_gather(x, AXIS, tiled=True)
            return padded[: padded.shape[0] * num_active // padded_size(mesh, num_active)]

        return jax.tree.map(gather, tree)

    return ClientAxis(map=client_map(chunk, how), psum=_psum, all_gather=all_gather)


def _psum(tree: Tree) -> Tree:
    """Sums over the devices, with one reduction per dtype instead of one per leaf."""
    leaves, structure = jax.tree.flatten(tree)
    for kind in dict.fromkeys(leaf.dtype for leaf in leaves):
        indices = [index for index, leaf in enumerate(leaves) if leaf.dtype == kind]
        flat = jax.lax.psum(jnp.concatenate([leaves[index].ravel() for index in indices]), AXIS)
        ends = np.cumsum([leaves[index].size for index in indices])[:-1]
        for index, part in zip(indices, jnp.split(flat, ends), strict=True):
            leaves[index] = part.reshape(leaves[index].shape)
    return jax.tree.unflatten(structure, leaves)


def shard_round(mesh: Mesh | None, round_: Callable) -> Callable:
    """Turns a method's round into a program for all devices.

    The cohort, padded to `padded_size` clients, and the images of a streamed federation, in the same order, are
    sharded; everything else is replicated, including the results.

    Args:
      mesh: the devices; None returns the round unchanged.
      round_: the round.

    Returns:
      A function with the arguments and results of `round_`.
    """
    if mesh is None:
        return round_

    def sharded_round(
        key: Array, state: MethodState, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[MethodState, Metrics]:
        copies = jax.tree.map(lambda _: P(), federation)
        if federation.streamed:
            targets = dict.fromkeys(federation.client_targets, P(AXIS))
            copies = copies.replace(client_images=P(AXIS), client_labels=P(AXIS), client_targets=targets)
        # With check_vma JAX would add its own psum to the gradient of every replicated weight.
        function = jax.shard_map(
            round_, mesh=mesh, in_specs=(P(), P(), copies, P(AXIS), P()), out_specs=P(), check_vma=False
        )
        return function(key, state, federation, cohort, k_s)

    return sharded_round


def replicated(mesh: Mesh | None) -> NamedSharding | None:
    """Returns the sharding of a result replicated on every device, for `out_shardings` of `jax.jit`."""
    return NamedSharding(mesh, P()) if mesh else None


def like(mesh: Mesh | None, tree: Any) -> Any:
    """Returns the shapes of arrays replicated on every device, to compile for."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)), tree)


def replicate(mesh: Mesh | None, tree: Any) -> Any:
    """Replicates arrays that every process has on every device; those that are there already stay."""
    if mesh is None:
        return jax.device_put(tree)
    sharding = NamedSharding(mesh, P())

    def put(x: Array | np.ndarray) -> Array:
        if isinstance(x, Array) and x.sharding == sharding:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(x)))
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree)


def shard(mesh: Mesh | None, shape: tuple[int, ...], fetch: Callable[[slice], np.ndarray]) -> Array:
    """Builds an array whose leading axis is divided over the devices.

    Args:
      mesh: the devices; None puts the whole array on one.
      shape: the shape of the whole array.
      fetch: maps a slice of the leading axis to its rows, in host memory; called only for rows of this process.

    Returns:
      The array.
    """
    if mesh is None:
        return jax.device_put(fetch(slice(None)))

    def rows(index: Any) -> np.ndarray:
        return fetch(index[0])

    return jax.make_array_from_callback(shape, NamedSharding(mesh, P(AXIS)), rows)


_CPU_DEVICES = 'xla_force_host_platform_device_count'
_cpu_devices = 1  # devices into which `split_cpu` has split the CPU; JAX has as many until the process ends


def split_cpu(devices: int) -> None:
    """Splits the CPU into `devices` devices, unless JAX already uses it or the user has set a number of devices.

    To JAX a CPU is one device, whose cores share every operation. Operations of small models gain little by a second
    core; separate devices compute different clients, or different trials, at the same time. Accelerators are not
    affected. If it is too late to split, `make_mesh` raises the error.
    """
    global _cpu_devices
    set_by_user = jax.config.jax_num_cpu_devices >= 0 or _CPU_DEVICES in os.environ.get('XLA_FLAGS', '')  # type: ignore[attr-defined]
    if devices > 1 and not set_by_user:
        try:
            jax.config.update('jax_num_cpu_devices', devices)
        except RuntimeError:  # JAX already uses the CPU
            return
        _cpu_devices = devices


def cpu_was_split() -> bool:
    """Tells whether programs run on a CPU that an earlier run of this process has split."""
    return _cpu_devices > 1 and jax.default_backend() == 'cpu'
