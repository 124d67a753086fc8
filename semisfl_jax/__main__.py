"""Trains an image classifier by semi-supervised split federated learning (SemiSFL), or by another method.

A server has few labeled images, many clients have unlabeled ones. Some methods train on clients' labels, or dense
tasks.

    python launch.py --config=configs/NAME.py[:code] [--workdir=DIR] [--config.KEY=VALUE ...]

`semisfl`, `python -m semisfl_jax` and launch.py of a checkout are the same command.

commands
  train, study, sweep   what --config names; without one of these words, whichever it is
  compare RUN ...       scores of finished runs, over seeds, and their differences
  plots RUN ...         figures of runs
  verify RUN ...        whether the files of runs are whole
  export RUN OUT        a model of a run, to use without this package
  cuts --config=...     the cost of every cut of a model, before training
  preview --config=...  a run, compiled for a device that is not there

configurations
{configs}

studies: each makes a table or figure, most of them a paper's, from many runs (configs/studies/NAME.py:SCALE; smoke is
  the smallest scale, and without one the command names all; --config.study_rows=ROW runs one row, see docs/studies.md)
{studies}
sweeps: each tunes several methods, with equal budgets (configs/sweeps/NAME.py:SCALE; smoke, cpu): {sweeps}

options
  --config=FILE[:code]  configuration; ':code' uses the settings of the authors' code instead of the paper's.
                        Those listed above also work by name: --config=digits, --config=studies/table4:smoke
  --config.KEY=VALUE    overrides a key; of core/hparams.py, config/schema.py or docs/options.md
  --workdir=DIR         output folder; default runs/NAME-HASH, always the same for the same experiment
  --grid KEY=V,V        a run for every value, and for every choice of values if there are several --grid: each in its
                        folder runs/NAME-HASH (with --workdir in DIR/NAME-HASH), then a table. Whole numbers also as
                        1-4; seed=0-4 are the seeds of every run
  --launcher=local|slurm --jobs=N [--slurm NAME=VALUE,...]
                        N jobs divide the runs of a grid, a study or a sweep; --slurm has options of sbatch. --jobs=N
                        alone: this is one of N processes that you start
  FLAGS -- FLAGS ...    several runs in one process, each with flags of its own; those that differ in numbers of a
                        round, or in their split, alone are one program
  --version             shows the version
  --help [NAME ...]     shows this text, after a command the help of the command, or explains keys and metrics:
                        --help federation.alpha teacher_accuracy; with --config=FILE also shows the values of that file,
                        and explains keys that it registers

examples
  python launch.py --config=configs/digits.py                              needs no download
  python launch.py --config=configs/digits.py --config.algorithm=supervised_only --config.seed=1
  python launch.py --config=configs/digits.py --config.seeds=0,1,2         three seeds in one program
  python launch.py --config=configs/digits.py --grid lr=0.01,0.02 --grid threshold=0.9,0.95
  python launch.py --config=configs/cifar10.py --config.data.data_dir=DIR --config.federation.partition=dirichlet
  python launch.py --config=configs/stl10.py --config.data.fake=True       synthetic images, to test a machine
  python launch.py --config=configs/studies/table4.py:smoke                a table of the paper, tried out in minutes

outputs
  metrics.jsonl     one line per round: losses, K_s, accuracy, costs     summary.json   final results
  config.json       the full configuration                               partition.npz  which client holds which image
  tensorboard/      the same metrics: tensorboard --logdir runs          checkpoints/   to resume from
  diagnostics/      with config.diagnostics_every: arrays on pseudo-labels, queue and teacher
  With several seeds, each has all of this in its own folder seed_N, and the summary.json above them has the means and
  standard errors.

Running the same command again resumes from the last checkpoint, and trains further if `rounds` has grown. Ctrl-C
finishes the round, saves and stops; a second Ctrl-C stops at once. Exit status: 0 finished, 2 error in the command or
the run, 3 training diverged, 130 stopped by Ctrl-C, 143 by SIGTERM, 128 + N by another signal N, such as SIGHUP.
"""

import gc
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

gc.disable()  # imports drop nothing, and looking for what they have dropped takes a tenth of their time
import semisfl_jax  # noqa: E402
from semisfl_jax.base.errors import Diverged, UserError, count, printing, report, use_one_of  # noqa: E402
from semisfl_jax.config import command_line  # noqa: E402
from semisfl_jax.training import interrupt  # noqa: E402

gc.freeze()
gc.enable()

KINDS = {'train': 'a single run', command_line.STUDY: 'a study', command_line.SWEEP: 'a sweep'}
TOOLS = {  # modules of the other commands, as `command_line.run_tool` takes them
    'compare': 'lab.compare',
    'plots': 'lab.plots.command',
    'cuts': 'lab.cuts',
    'preview': 'lab.preview.command',
    'verify': 'verify',
    'export': 'training.export',
}


def main(argv: Sequence[str] = sys.argv) -> int:
    """Runs the command line `argv`, program first, and returns the exit status."""
    program, *words = argv
    if words and (name := words[0]) in TOOLS:
        tool = importlib.import_module(f'semisfl_jax.{TOOLS[name]}')
        return command_line.run_tool(name, tool, [program, *words[1:]])
    try:
        with printing():
            _run(program, words)
        return 0
    except (UserError, OSError) as error:
        return report(error)
    except interrupt.Stopped as stop:
        print(stop)
        return 128 + stop.signum
    except KeyboardInterrupt:
        print('interrupted before the first round: nothing to save', file=sys.stderr)
        return 130


def _run(program: str, words: Sequence[str]) -> None:
    """Trains, makes a study or a sweep, or prints help or the version."""
    kind = words[0] if words and words[0] in KINDS else ''
    words = words[bool(kind) :]
    if '--version' in words:
        print(f'semisfl {semisfl_jax.__version__}')
    elif {'--help', '-h', '-help', '--helpfull', '--helpshort'} & {*words}:
        names = [word for word in words if not word.startswith('-')]
        files = [word.partition('=')[2] for word in words if word.startswith('--config=')]
        text = command_line.help_text(__doc__ or '', names, files)
        print(text.replace('python launch.py', command_line.typed(program)), end='')
    elif '--' in words:
        _train_together(program, words)
    elif words and not words[0].startswith('-'):
        raise UserError(f"'{words[0]}' is not a command; {use_one_of(words[0], (*KINDS, *TOOLS))} (see --help)")
    else:
        command = command_line.parse([program, *words], studies=True)
        named = next((name for name in KINDS if name in command.config), 'train')
        if kind not in ('', named):
            raise UserError(f'{command.name} is {KINDS[named]}; write {command_line.typed(program, named)} --config=…')
        if named == 'train' and not command.grid:
            if command.jobs:
                raise UserError('--launcher divides the runs of a grid, a study or a sweep; add --grid KEY=VALUES')
            _train(command)
            return
        from semisfl_jax.lab import grid, launcher
        from semisfl_jax.lab.studies import engine
        from semisfl_jax.training.callbacks import print_lines

        how: Any = {
            'show': print_lines,
            'launcher': launcher.read(command.jobs, command.whole),
            'share': command.jobs.get('jobs', 1),
        }
        if named == 'train':
            grid.run(_cells(command), command.name, command.words, command.workdir, **how)
        elif command.grid:
            raise UserError(f'--grid is for single runs, and {command.name} is {KINDS[named]}; leave it out')
        else:
            engine.run(command.config[named], command.given, command.workdir, **how)


def _cells(command: command_line.Command) -> list[Any]:
    """Returns the cells of --grid, `training.grid.Cell`, each with the configuration of its command alone."""
    from semisfl_jax import config as config_lib
    from semisfl_jax.config import ignored_keys
    from semisfl_jax.training import grid

    def make(values: dict[str, Any]) -> Any:
        changes = command.given | values
        config = config_lib.get_config(command.file, changes)
        config_lib.check(config)
        return config_lib.resolve(config), list(ignored_keys.warnings(config, changes))

    return grid.cells(command.grid, make)


def _planned(command: command_line.Command) -> Any:
    """Returns the run of a command, a `training.grid.Planned`."""
    from semisfl_jax import config as config_lib
    from semisfl_jax.base import file_io
    from semisfl_jax.config import ignored_keys
    from semisfl_jax.training.grid import Planned

    config_lib.check(command.config)
    config = config_lib.resolve(command.config)
    folder = command.workdir or config_lib.default_workdir(config, command.name)
    told = list(ignored_keys.warnings(command.config, command.given))
    return Planned(config, told, file_io.expand_home(folder, 'the workdir'))


def _train(command: command_line.Command) -> None:
    """Trains, and prints what the run reports; Ctrl-C stops it after the current round."""
    from semisfl_jax.base import hosts
    from semisfl_jax.training import loop
    from semisfl_jax.training.callbacks import bar, console

    run = _planned(command)
    if run.config.parallel.coordinator:
        print(f'joining the other processes, {hosts.SECONDS_TO_MEET // 60} minutes at most', file=sys.stderr)
    shown = [bar(), console()]
    loop.train_resolved(run.config, run.folder, shown, interrupts=interrupt.listen, told=run.told, keeps=True)


def _train_together(program: str, words: Sequence[str]) -> None:
    """Trains the runs of several commands, '--' between them; prints what the first of each program reports."""
    from semisfl_jax.training import grid, loop
    from semisfl_jax.training.callbacks import bar, console, print_lines

    planned, start = [], 0
    for end in [*(index for index, word in enumerate(words) if word == '--'), len(words)]:
        run = _planned(command_line.parse([program, *words[start:end]]))
        planned.append(run._replace(title=run.folder.name))
        start = end + 1
    titles = [run.title for run in planned]
    if twice := [title for title in titles if titles.count(title) > 1]:
        raise UserError(f'two runs have the folder {twice[0]}; give each a --workdir with a name of its own')
    groups = grid.together(planned, lambda run: grid.program(run.config))
    shown = [[group[0]._replace(callbacks=[bar(), console()]), *group[1:]] for group in groups]
    train = partial(loop.train_together, interrupts=interrupt.listen, keeps=True)
    failed = list[UserError]()
    for run, result in grid.train_groups(shown, train):
        if isinstance(result, UserError):
            print(f'error: {run.title}: {result}', file=sys.stderr, flush=True)
            failed.append(result)
        elif not run.callbacks:
            print_lines(f'{run.title}: {repr(result).splitlines()[0]}')
    if failed:
        kind = Diverged if all(isinstance(error, Diverged) for error in failed) else UserError
        raise kind(f'{len(failed)} of {count(len(planned), "run")} failed; the same command tries again')


if __name__ == '__main__':
    sys.exit(main())
