"""Compiles a run for a device that is not there: python -m semisfl_jax.preview --config=FILE --target=NAME [...]

    python -m semisfl_jax.preview --config=configs/cifar10.py --target=h200
    python -m semisfl_jax.preview --config=configs/svhn.py --target=v5e --devices=4 --config.precision=float32

Whether the round and the evaluation compile, and how long that takes; the memory of a device, and whether the run fits;
kernels, convolutions and collectives; and two floors of the time it would take. Needs no data for the sets that come
with a configuration, and writes nothing. Compiling takes minutes.

  --target=NAME         h200, h100, a100, t4 (pip install -e '.[preview-cuda]'), v5e, v6e (pip install -e
                        '.[preview-tpu]'), or cpu, the machine at hand
  --devices=N           how many of them share the clients; default: config.parallel.devices
  --fit                 if the run does not fit, compiles the round with fewer clients at a time until it does
  --config.KEY=VALUE    as for a run
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import jax
from absl import flags
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line, commands
from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.wording import shorten, size
from semisfl_jax.preview import program, report, requirements, targets
from semisfl_jax.preview.targets import HERE, TARGETS, Devices, Target
from semisfl_jax.training.experiment import Experiment


class Request(NamedTuple):
    """What the user asked for."""

    config: ConfigDict  # resolved
    target: Target
    devices: int
    fit: bool


def request(argv: list[str]) -> Request:
    """Reads the command line `argv`, program name first.

    Raises:
      UserError: a mistake in it or in the configuration, or the compiler for the target is not installed.
    """
    values = flags.FlagValues()
    flags.DEFINE_string('target', '', 'the name of a device', flag_values=values)
    flags.DEFINE_integer('devices', None, 'a number of devices, 1 or more', lower_bound=1, flag_values=values)
    flags.DEFINE_boolean('fit', False, 'given without a value', flag_values=values)
    command = command_line.parse(commands.own_flags(values, argv))
    if command.workdir:
        raise UserError(f"--workdir='{command.workdir}': a preview writes nothing; leave it out")
    if not values.target:
        raise UserError(f'--target is missing; name one of {", ".join((*TARGETS, HERE))}, as in --target=h200')
    config = command.config
    if config.seeds:
        raise UserError(f'config.seeds={tuple(config.seeds)}: a preview is of one seed; use config.seed')
    devices = values.devices or max(1, config.parallel.devices)
    config.parallel.devices = devices
    config_lib.check(config)
    target = targets.get(values.target)
    return Request(config_lib.resolve(config), target, devices, values.fit)


def preview(asked: Request) -> None:
    """Compiles, and prints part by part.

    Raises:
      UserError: the run does not compile for the target, or does not fit into its memory.
    """
    target = asked.target
    with machine.programs_for(target.platform):
        devices = targets.devices(target, asked.devices)
        experiment = program.shape_experiment(asked.config, devices.mesh)
        _say(report.title(experiment, target))
        _say('compiling the round …')
        round_ = program.compile_round(experiment, target, devices)
        if isinstance(round_, program.Refused):
            if round_.for_memory:
                raise UserError(_too_large(round_.reason, asked, devices))
            raise UserError(_refused('round', round_, target))
        _say('compiling the evaluation …')
        evaluation = program.compile_evaluation(experiment, target, devices)
        if isinstance(evaluation, program.Refused):
            if evaluation.for_memory:
                raise UserError(
                    f'the evaluation does not fit on {target.title} ({_reason(evaluation.reason)}); use less than '
                    f'eval_batch_size={asked.config.eval_batch_size}'
                )
            raise UserError(_refused('evaluation', evaluation, target))
        need = requirements.memory(experiment, round_, evaluation)
        _say(report.programs({'round': round_, 'evaluation': evaluation}))
        _say(report.memory(need, target, experiment))
        _say(report.kernels(round_.text, experiment))
        _say(report.floors(requirements.floors(experiment), experiment, target))
        if not need.fits(target):
            assert target.usable
            raise UserError(_too_large(f'{size(need.total)} of {size(target.usable)}', asked, devices))


def _too_large(reason: str, asked: Request, devices: Devices) -> str:
    """One line on a round that does not fit, with a remedy: one that was tried if the user asked for that."""
    config, line = asked.config, f'the round does not fit on {asked.target.title} ({_reason(reason)})'
    if not asked.fit:
        return (
            f'{line}; use less than federation.client_chunk={_at_once(asked)} (--fit looks for one), '
            f'batch_size={config.batch_size} or queue_size={config.queue_size}, or another --target'
        )
    chunk = _largest_chunk(asked, devices)
    if not chunk:
        return f'{line}, not even one client at a time; use another --target or a smaller batch_size or queue_size'
    return f'{line}; federation.client_chunk={chunk} fits'


def _largest_chunk(asked: Request, devices: Devices) -> int:
    """The largest of half the clients, a quarter and so on whose round fits; 0 if none does."""
    config = asked.config.copy_and_resolve_references().unlock()
    chunk = _at_once(asked)
    while chunk > 1:
        chunk //= 2
        config.federation.client_chunk = chunk
        _say(f'compiling with federation.client_chunk={chunk} …')
        if _fits(program.shape_experiment(config, devices.mesh), asked.target, devices):
            return chunk
    return 0


def _at_once(asked: Request) -> int:
    """Clients that a device computes at a time."""
    federation = asked.config.federation
    return federation.client_chunk or -(-federation.num_active // asked.devices)


def _fits(experiment: Experiment, target: Target, devices: Devices) -> bool:
    evaluation = program.compile_evaluation(experiment, target, devices)
    if isinstance(evaluation, program.Refused):
        return False
    round_ = program.compile_round(experiment, target, devices)
    return not isinstance(round_, program.Refused) and requirements.memory(experiment, round_, evaluation).fits(target)


def _refused(name: str, refused: program.Refused, target: Target) -> str:
    return f'the {name} does not compile for {target.title}: {_reason(refused.reason)}; try another --target'


def _reason(text: str) -> str:
    return shorten(' '.join(text.split()))


def _say(text: str) -> None:
    print(text, end='\n\n', flush=True)  # before the next program, which may take minutes


def main(argv: list[str]) -> int:
    """Runs the command line `argv` (program name first); returns the exit status."""
    jax.config.update('jax_platforms', 'cpu')  # a device of this machine is not needed, nor to be kept from others
    return commands.main(argv, __doc__, lambda: preview(request(argv)))


if __name__ == '__main__':
    sys.exit(main(sys.argv))
