"""Compiles a run for a device that is not there: python -m semisfl_jax.preview --config=FILE --target=NAME [...]

    python -m semisfl_jax.preview --config=configs/cifar10.py --target=h200
    python -m semisfl_jax.preview --config=configs/svhn.py --target=v5e --devices=4 --config.precision=float32

Whether the round and the evaluation compile, and how long that takes; the memory of a device, and whether the run fits;
arithmetic, bytes and collectives of the programs; and two floors of the time it would take. Needs no data for the sets
that come with a configuration, and writes nothing. Compiling takes minutes.

  --target=NAME         h200, h100, a100, t4 (pip install -e '.[preview-cuda]'), v5e, v6e (pip install -e
                        '.[preview-tpu]'), or cpu, the machine at hand
  --devices=N           how many of them share the clients; default: config.parallel.devices
  --config.KEY=VALUE    as for a run
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
from absl import flags
from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError, columns, shorten, size
from semisfl_jax.preview import program, targets
from semisfl_jax.preview.program import Floors, MemoryNeed, Program, Refused
from semisfl_jax.preview.targets import HERE, TARGETS, Target
from semisfl_jax.training.experiment import Experiment


class Request(NamedTuple):
    """What the user asked for."""

    config: ConfigDict  # resolved
    target: Target


def request(argv: list[str]) -> Request:
    """Reads the command line `argv`, program name first; UserError: a mistake in it or in the configuration."""
    values = flags.FlagValues()
    flags.DEFINE_string('target', '', 'the name of a device', flag_values=values)
    flags.DEFINE_integer('devices', None, 'a number of devices, 1 or more', lower_bound=1, flag_values=values)
    command = command_line.parse(command_line.own_flags(values, argv))
    if command.workdir:
        raise UserError(f"--workdir='{command.workdir}': a preview writes nothing; leave it out")
    if not values.target:
        raise UserError(f'--target is missing; name one of {", ".join((*TARGETS, HERE))}, as in --target=h200')
    config = command.config
    if config.seeds:
        raise UserError(f'config.seeds={tuple(config.seeds)}: a preview is of one seed; use config.seed')
    config.parallel.devices = values.devices or max(1, config.parallel.devices)
    config_lib.check(config)
    target = targets.get(values.target)
    return Request(config_lib.resolve(config), target)


def preview(asked: Request) -> None:
    """Compiles, and prints part by part; UserError: the run does not compile for the target, or does not fit on it."""
    target = asked.target
    with machine.programs_for(target.platform):
        devices = targets.devices(target, asked.config.parallel.devices)
        experiment = program.shape_experiment(asked.config, devices.mesh)
        if target.name == HERE and target.memory and experiment.mesh:  # whose devices share the memory of the machine
            target = target._replace(memory=target.memory // experiment.mesh.size)
        _print(_title(experiment, target))
        programs = {}
        for name, compile_ in (('round', program.compile_round), ('evaluation', program.compile_evaluation)):
            _print(f'compiling the {name} …')
            try:
                programs[name] = compile_(experiment, target, devices)
            except Refused as refused:
                raise UserError(_advice(name, refused, asked)) from refused
        need = program.memory(experiment, programs['round'], programs['evaluation'])
        _print(_programs(programs))
        _print(_memory(need, target, experiment))
        _print(_floors(program.floors(experiment), experiment, target))
        if not need.fits(target):
            assert target.usable
            too_large = Refused(f'{size(need.total)} of {size(target.usable)}', for_memory=True)
            raise UserError(_advice('round', too_large, asked))


def _advice(name: str, refused: Refused, asked: Request) -> str:
    """One line on a program that does not compile or fit, with a remedy."""
    config, title, reason = asked.config, asked.target.title, shorten(str(refused))
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


def _title(experiment: Experiment, target: Target) -> str:
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
    for name, made in named.items():
        work = (f'{number / 1e9:.3g}' for number in (made.operations, made.bytes))
        rows.append((name, f'{made.seconds:.0f} s', *map(size, made.memory), *work))
    lines = [_table([head, *rows]), 'GFLOP, GB: of one iteration of each loop, as the compiler counts them']
    if collectives := named['round'].collectives:
        counts = ', '.join(f'{number} {kind}' for kind, number in sorted(collectives.items()))
        lines.append(f'collectives of the round: {counts}')
    return '\n'.join(lines)


def _memory(need: MemoryNeed, target: Target, experiment: Experiment) -> str:
    """Whether a run fits, and what else would."""
    if not target.usable:
        return f'memory: a device needs {size(need.total)}'
    of = '' if target.usable == target.memory else ", three quarters of its memory (JAX's default share)"
    line = f'memory: a device needs {size(need.total)} of {size(target.usable)}{of}'
    if not need.fits(target):
        return f'{line}\nfits: no'
    chunk, active = experiment.config.federation.client_chunk, experiment.config.federation.num_active
    clients = f'client_chunk={chunk}' if chunk else f'all {active} active clients at once (client_chunk=0)'
    clients = clients if experiment.method.clients else 'yes'
    trials = 0 if experiment.mesh else need.trials(target)
    seeds = f'; about {trials:,} seeds at once, if each needs what this one does' if trials else ''
    return f'{line}\nfits: {clients}{seeds}'


def _floors(floors: Floors | None, experiment: Experiment, target: Target) -> str:
    """The two floors of each phase, and the whole run."""
    config = experiment.config
    if floors is None:
        return f'floors: none, since {config.algorithm} has no price (docs/your-own.md)'
    rows: list[tuple[str, ...]] = [('in a round', 'TFLOP', 'arithmetic', 'GB', 'bytes')]
    for name, work in zip((f'{config.k_s} supervised steps', 'the clients of a device'), floors, strict=True):
        seconds = work.seconds(target, config.precision) if target.bandwidth else ()
        arithmetic, of_bytes = (f'{1e3 * floor:.3g} ms' for floor in seconds) if seconds else ('unknown', 'unknown')
        rows.append((name, f'{work.operations / 1e12:.3g}', arithmetic, f'{work.bytes / 1e9:.3g}', of_bytes))
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


def main(argv: list[str]) -> int:
    """Runs the command line `argv` (program name first); returns the exit status."""
    jax.config.update('jax_platforms', 'cpu')  # a device of this machine is not needed, nor to be taken from others
    return command_line.main(argv, __doc__, lambda: preview(request(argv)))


if __name__ == '__main__':
    sys.exit(main(sys.argv))
