"""Compiles a run for a device that is not there.

    semisfl preview --config=FILE --target=NAME [--devices=N] [--config.KEY=VALUE ...]

    semisfl preview --config=configs/cifar10.py --target=h200
    semisfl preview --config=configs/svhn.py --target=v5e --devices=4 --config.precision=float32

Whether the round and the evaluation compile, and how long that takes; the memory of a device, and whether the run fits;
arithmetic, bytes and collectives of the programs; and two floors of the time it would take. Needs no data for the sets
that come with a configuration, and writes nothing. Compiling takes minutes.

  --target=NAME         h200, h100, a100, t4 (extra preview-cuda: pip install 'semisfl_jax[preview-cuda]'),
                        v5e, v6e (extra preview-tpu), or cpu, this machine
  --devices=N           how many of them share the clients; default: config.parallel.devices
  --config.KEY=VALUE    as for a run
"""

from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax import algorithms
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError, columns, shorten, size
from semisfl_jax.lab.preview import program, targets
from semisfl_jax.lab.preview.program import Floors, MemoryNeed, Program, Refused
from semisfl_jax.lab.preview.targets import HERE, TARGETS, Target


def run(config: ConfigDict, name: str, workdir: str, target: str = '', devices: int = 0) -> None:
    """Compiles a run for a device, and prints what that needs.

    Args:
      config: the configuration of a run.
      name: of its file, which nothing depends on.
      workdir: '', since nothing is written.
      target: one of `TARGETS`, or `HERE`.
      devices: number of them that share the clients; 0: that of the configuration.

    Raises:
      UserError: a mistake in the configuration, or the run does not compile for the target, or does not fit on it.
    """
    jax.config.update('jax_platforms', 'cpu')  # a device of this machine is not needed, nor to be taken from others
    preview(*request(config, workdir, target, devices))


def request(config: ConfigDict, workdir: str, target: str, devices: int) -> tuple[ConfigDict, Target]:
    """Checks the arguments of `run`, and returns what to compile and for what."""
    if workdir:
        raise UserError(f"--workdir='{workdir}': a preview writes nothing; leave it out")
    if not target:
        raise UserError(f'--target is missing; name one of {", ".join((*TARGETS, HERE))}, as in --target=h200')
    if devices < 0:
        raise UserError(f'--devices={devices}: must be a number of devices, 1 or more')
    if config.seeds:
        raise UserError(f'config.seeds={tuple(config.seeds)}: a preview takes one seed; use config.seed')
    config.parallel.devices = devices or max(1, config.parallel.devices)
    sfl.check(config)
    return sfl.resolve(config), targets.get(target)


def preview(config: ConfigDict, target: Target) -> None:
    """Compiles a run, and prints part by part what it needs.

    Args:
      config: configuration of the run, resolved.
      target: the kind of device.

    Raises:
      UserError: it does not compile for the target, or does not fit on it.
    """
    with machine.programs_for(target.platform):
        devices = targets.devices(target, config.parallel.devices)
        experiment = sfl.shapes.build(config, devices.mesh)
        if target.name == HERE and target.memory and experiment.mesh:  # whose devices share the memory of the machine
            target = target._replace(memory=target.memory // experiment.mesh.size)
        _print(_title(experiment, target))
        programs = {}
        for name, trace in (('round', sfl.shapes.trace_round), ('evaluation', sfl.shapes.trace_evaluation)):
            _print(f'compiling the {name} …')
            try:
                programs[name] = program.compile_for(target, devices.first, experiment, trace)
            except Refused as refused:
                raise UserError(_advice(name, refused, config, target)) from refused
        need = program.memory(experiment, programs['round'], programs['evaluation'])
        _print(_programs(programs))
        _print(_memory(need, target, experiment))
        _print(_floors(program.floors(experiment), experiment, target))
        if not need.fits(target):
            assert target.usable
            too_large = Refused(f'{size(need.total)} of {size(target.usable)}', for_memory=True)
            raise UserError(_advice('round', too_large, config, target))


def _advice(name: str, refused: Refused, config: ConfigDict, target: Target) -> str:
    """Says in one line why a program does not compile or fit, with a remedy."""
    title, reason = target.title, shorten(str(refused))
    if not refused.for_memory:
        return f'the {name} does not compile for {title}: {reason}; try another --target'
    remedy, method = f'eval_batch_size={config.eval_batch_size}', algorithms.get(config.algorithm)
    if name == 'round':
        remedy = f'server_batch_size={config.server_batch_size}'
    if name == 'round' and method.clients:
        chunk = config.federation.client_chunk or -(-config.federation.num_active // config.parallel.devices)
        remedy = f'federation.client_chunk={chunk} or batch_size={config.batch_size}'
        remedy += f' or queue_size={config.queue_size}' if method.clusters else ''
    return f'the {name} does not fit on {title} ({reason}); use less than {remedy}, or another --target'


def _title(experiment: sfl.Experiment, target: Target) -> str:
    config = experiment.config
    count = experiment.mesh.size if experiment.mesh else 1
    work = [f'K_s {config.k_s}', config.precision]
    if experiment.method.clients:
        clients, own = f'{config.federation.num_active} active clients', f'K_u {config.k_u}, B {config.batch_size}'
        work = [clients, work[0], own, config.precision]
    machine = f'{f"{count} x " if count > 1 else ""}{target.title}'
    return f'{config.algorithm}, {config.model.name} on {experiment.dataset.name}: {", ".join(work)}; on {machine}'


def _programs(named: dict[str, Program]) -> str:
    head = ('program', 'compiled in', 'arguments', 'outputs', 'temporary', 'code', 'GFLOP', 'GB')
    rows = []
    for name, compiled in named.items():
        work = (f'{number / 1e9:.3g}' for number in (compiled.operations, compiled.bytes))
        rows.append((name, f'{compiled.seconds:.0f} s', *map(size, compiled.memory), *work))
    lines = [_table([head, *rows]), 'GFLOP, GB: of one iteration of each loop, as the compiler counts them']
    if collectives := named['round'].collectives:
        counts = ', '.join(f'{number} {kind}' for kind, number in sorted(collectives.items()))
        lines.append(f'collectives of the round: {counts}')
    return '\n'.join(lines)


def _memory(need: MemoryNeed, target: Target, experiment: sfl.Experiment) -> str:
    """Says whether a run fits, and what else would."""
    if not target.usable:
        return f'memory: a device needs {size(need.total)}'
    share = '' if target.usable == target.memory else ", three quarters of its memory (JAX's default share)"
    line = f'memory: a device needs {size(need.total)} of {size(target.usable)}{share}'
    if not need.fits(target):
        return f'{line}\nfits: no'
    chunk, active = experiment.config.federation.client_chunk, experiment.config.federation.num_active
    clients = f'client_chunk={chunk}' if chunk else f'all {active} active clients at once (client_chunk=0)'
    clients = clients if experiment.method.clients else 'yes'
    trials = 0 if experiment.mesh else need.trials(target)
    seeds = f'; about {trials:,} seeds at once, if each needs what this one does' if trials else ''
    return f'{line}\nfits: {clients}{seeds}'


def _floors(floors: Floors | None, experiment: sfl.Experiment, target: Target) -> str:
    """Formats the two floors of each phase, and that of the whole run."""
    config = experiment.config
    if floors is None:
        return f'floors: none, since {config.algorithm} has no price (docs/your-own.md)'
    rows: list[tuple[str, ...]] = [('in a round', 'TFLOP', 'arithmetic', 'GB', 'bytes')]
    for name, work in zip((f'{config.k_s} supervised steps', 'the clients of a device'), floors, strict=True):
        seconds = work.seconds(target, config.precision) if target.bandwidth else ()
        arithmetic, memory = (f'{1e3 * floor:.3g} ms' for floor in seconds) if seconds else ('unknown', 'unknown')
        rows.append((name, f'{work.operations / 1e12:.3g}', arithmetic, f'{work.bytes / 1e9:.3g}', memory))
    lines = ['floors', _table(rows)]
    if target.bandwidth:
        hours = program.hours(floors, experiment, target)
        lines.append(
            f'{config.rounds:,} rounds take no less than {hours:.3g} hours: a floor, not a forecast\n'
            f'at {target.peak[config.precision] / 1e12:.4g} TFLOP/s and {target.bandwidth / 1e9:,.0f} GB/s '
            f'({target.source})'
        )
    return '\n'.join(lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    return '\n'.join(columns(rows, '<' + '>' * (len(rows[0]) - 1)))


def _print(text: str) -> None:
    print(text, end='\n\n', flush=True)  # before the next program, which may take minutes
