"""Draws runs.

    semisfl plots RUNDIR [RUNDIR ...] --out=DIR [--format=png,svg] [--only=NAME,NAME] [--import=FILE]

Draws every figure that the runs have the data for, and says which it left out and why. The folder of a run of several
seeds stands for the runs of each. Runs that differ in nothing but the seed are one line with a band of one standard
error; figures of one run show the first seed of each group. Of runs with data.eval_split=validation, "test" is
validation, and axes say so. Diagnostics are of runs with config.diagnostics_every.

FIGURES

Of runs that are judged by another score than accuracy, the first three show that.

Features, and what is in the data, need the code that a run was made with. If a method, model, data set or partition is
yours, --import=FILE runs the Python file that registers it, or the configuration that imports that file.
"""

from pathlib import Path

from semisfl_jax import runs
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, columns, use_one_of
from semisfl_jax.lab import plots
from semisfl_jax.lab.plots import style

FIGURES = plots.draw.FIGURES
_NAMES = columns([(f'    {name}', entry.text) for name, entry in FIGURES.items()], '<<')
__doc__ = (__doc__ or '').replace('FIGURES', '\n'.join(_NAMES))


def run(folders: list[Path], out: str = '', format: tuple[str, ...] = ('png',), only: tuple[str, ...] = ()) -> None:
    """Draws figures of runs into files, and prints their names.

    Args:
      folders: folders of finished runs.
      out: folder of the figures.
      format: of the files.
      only: names of figures; () for all that can be drawn.

    Raises:
      UserError: a folder without a finished run, an unknown name or format, or a figure in `only` that cannot be drawn,
        after the others.
    """
    if not out:
        raise UserError('--out is missing; give a folder for the figures')
    path = file_io.expand_home(out, '--out')
    for option, given, choices in (('--format', format, style.FORMATS), ('--only', only, tuple(FIGURES))):
        if unknown := [name for name in given if name not in choices]:
            raise UserError(f"{option}='{unknown[0]}' is unknown; {use_one_of(unknown[0], choices)}")
    groups = runs.group(runs.read_finished(folders))
    missing: dict[str, list[str]] = {}  # figures, by why they cannot be drawn
    with style.context(), file_io.writing('--out'):
        path.mkdir(parents=True, exist_ok=True)
        for wanted in only or tuple(FIGURES):
            if FIGURES[wanted].slow:
                print(f'drawing    {wanted} …', flush=True)
            for name, figure in plots.draw.figures(groups, (wanted,)):
                if isinstance(figure, UserError):
                    missing.setdefault(str(figure), []).append(name)
                    continue
                for kind in format:
                    file_io.write(path / f'{name}.{kind}', style.content(figure, kind))
                    print(path / f'{name}.{kind}', flush=True)
    lines = [f'{", ".join(left_out)}: {why}' for why, left_out in missing.items()]
    if only and lines:
        raise UserError(f'not drawn: {"; ".join(lines)}')
    for line in lines:
        print(f'not drawn  {line}', flush=True)
