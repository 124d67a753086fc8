"""Draws runs.

    semisfl plots RUNDIR [RUNDIR ...] --out=DIR [--format=png,svg] [--only=NAME,NAME] [--interval=se|ci95|range]
          [--import=FILE]

Draws every figure that the runs have the data for, and says which it left out; --only=NAME says why. The folder of a
run of several seeds stands for the runs of each, and a folder above runs for all below it. Runs that differ in
nothing but the seed are one line, the mean, with a band: of one standard error, or with --interval the 95 % interval
of the mean, or from the lowest seed to the highest. A method without traffic is a level. Figures of one run show the
first seed of each group. Of runs with data.eval_split=validation, "test" is validation, and axes say so. Diagnostics
are of runs with config.diagnostics_every.

FIGURES

Of runs that are judged by another score than accuracy, the first three show that. NAME may also be a key of
metrics.jsonl, such as student_macro_f1, or its end, macro_f1, for the model by which a method is judged. It is drawn
against rounds.

Features, and what is in the data, need the code that a run was made with. If a method, model, data set or partition is
yours, --import=FILE runs the Python file that registers it, or the configuration that imports that file.
"""

from functools import partial
from pathlib import Path

from semisfl_jax import runs, tasks
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, columns, did_you_mean, use_one_of
from semisfl_jax.lab import plots
from semisfl_jax.lab.plots import style

FIGURES = plots.draw.FIGURES
_NAMES = columns([(f'    {name}', entry.text) for name, entry in FIGURES.items()], '<<')
__doc__ = (__doc__ or '').replace('FIGURES', '\n'.join(_NAMES))


def run(
    folders: list[Path],
    out: str = '',
    format: tuple[str, ...] = ('png',),
    only: tuple[str, ...] = (),
    interval: str = 'se',
) -> None:
    """Draws figures of runs into files, and prints their names.

    Args:
      folders: folders of finished runs.
      out: folder of the figures.
      format: of the files.
      only: names of figures, keys of metrics.jsonl, or of scores; () for all figures that can be drawn.
      interval: one of `style.INTERVALS`.

    Raises:
      UserError: a folder without a finished run, an unknown name or format, or a figure in `only` that cannot be drawn,
        after the others.
    """
    if not out:
        raise UserError('--out is missing; give a folder for the figures')
    path = file_io.expand_home(out, '--out')
    for option, given, choices in (
        ('--format', format, style.FORMATS),
        ('--interval', (interval,), tuple(style.INTERVALS)),
    ):
        if unknown := [name for name in given if name not in choices]:
            raise UserError(f"{option}='{unknown[0]}' is unknown; {use_one_of(unknown[0], choices)}")
    groups = runs.group(runs.read_finished(folders))
    keys = {key for of in groups.values() for run in of.values() for key in run.table['key']}
    scores = {judged.score.name for key in keys if (judged := tasks.split_key(key))}
    of_keys = {key: plots.draw.Entry(key, partial(plots.curves.metric, key)) for key in sorted(keys | scores)}
    known = FIGURES | of_keys
    if unknown := [name for name in only if name not in known]:
        figures_or_key = f'{", ".join(FIGURES)}, or a key of metrics.jsonl{did_you_mean(unknown[0], known)}'
        raise UserError(f"--only='{unknown[0]}' is unknown; use one of {figures_or_key}")
    missing: dict[str, dict[str, str]] = {}  # {name of a figure: {file: why it cannot be drawn}}
    with style.context(interval), file_io.writing('--out'):
        path.mkdir(parents=True, exist_ok=True)
        for wanted in only or tuple(FIGURES):
            if known[wanted].slow:
                print(f'drawing    {wanted} …', flush=True)
            for name, figure in plots.draw.figures(groups, (wanted,), of_keys):
                if isinstance(figure, UserError):
                    missing.setdefault(wanted, {})[name] = str(figure)
                    continue
                for kind in format:
                    file_io.write(path / f'{name}.{kind}', style.content(figure, kind))
                    print(path / f'{name}.{kind}', flush=True)
    if only and missing:
        whys = [f'{name}: {why}' for of in missing.values() for name, why in of.items()]
        raise UserError(f'not drawn: {"; ".join(whys)}')
    if missing:
        print(f'not drawn  {", ".join(missing)} (--only={next(iter(missing))} says why)', flush=True)
