"""The report of a sweep: a function of its trials. Figures: the best so far of every method, and a slice through its
search by key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import count
from semisfl_jax.plots import style
from semisfl_jax.studies import document, figures, plan, sweeps, tuned
from semisfl_jax.studies.document import NOTHING, Block, Figure, Grid, Heading, Listing, Paragraph
from semisfl_jax.studies.sweeps import Sweep, search
from semisfl_jax.studies.sweeps.search import COMPLETE, Result, Trial

KEYS = ('method', 'trial', 'state', 'validation', 'rounds', 'run', 'settings', 'curve', 'why')  # of trials.csv
_PANELS = 3  # in a row


def write(folder: Path, sweep: Sweep, found: Sequence[Result], home: Path) -> None:
    """Writes report.md, report.html, trials.csv and figures/ into `folder`; tuned.json once all trials have ended."""
    drawn = list(draw(found))
    blocks = build(sweep, found, home, drawn)
    document.write(folder, blocks, {'trials.csv': (KEYS, rows(found))}, drawn)
    if all(len(result.trials) == sweep.trials for result in found):
        file_io.write_json(folder / tuned.NAME, tuned.as_json(search.tuned_settings(sweep, found, home)))
    else:
        (folder / tuned.NAME).unlink(missing_ok=True)  # of fewer trials


def rows(found: Sequence[Result]) -> list[dict[str, Any]]:
    """A row of trials.csv for every trial that has ended; scores are not in percent."""
    lines = []
    for result in found:
        for number, trial in enumerate(result.trials):
            settings, curve = json.dumps(trial.values), json.dumps(trial.curve)
            outcome = (trial.state, trial.score, trial.rounds, trial.run, settings, curve, trial.why)
            lines.append(dict(zip(KEYS, (result.entry.title, number, *outcome), strict=True)))
    return lines


def build(sweep: Sweep, found: Sequence[Result], home: Path, drawn: Sequence[Figure] = ()) -> list[Block]:
    """The report as a document."""
    blocks: list[Block] = [Heading(1, f'{sweep.title} (scale {sweep.scale})' if sweep.scale else sweep.title)]
    blocks += [Paragraph(sweep.warning, strong=True)] if sweep.warning else []
    ended, total = sum(len(result.trials) for result in found), sweep.trials * len(found)
    rest = '' if ended == total else ' Best settings are of those; tuned.json is written when all have ended.'
    blocks += [Paragraph(f'{ended} of {total} trials have ended (trials.csv).{rest}'), Paragraph(_protocol(sweep))]
    blocks += [Listing(sweep.notes)] if sweep.notes else []
    scores = (
        'Validation scores are means over seeds of the means of the last ten evaluations. The score of the best of '
        'many trials is an optimistic estimate: compare methods by test scores of runs with other seeds (study_tuned).'
    )
    blocks += [Heading(2, 'Best settings'), Paragraph(scores), _best(sweep, found)]
    blocks += [Heading(2, 'Budgets'), _budgets(sweep, found)]
    blocks += [figure for figure in drawn if not figure.part]
    for result in found:
        blocks += [Heading(2, result.entry.title), _ranges(sweep, result)]
        blocks += [figure for figure in drawn if figure.part == result.entry.title]
    at = ', '.join(map(str, search.stop_rounds(sweep.config.rounds, sweep.config.eval_every)))
    stops = f' Trials can stop after rounds {at}.' if sweep.prune and at else ''
    made = (
        f'Optuna {search.optuna().__version__}, search seed {sweep.seed}.{stops} {plan.HOME}'
        '+ after a commit marks changes that were not committed.'
    )
    return [*blocks, Heading(2, 'How the trials were made'), Paragraph(made), _commands(sweep, found, home)]


def _protocol(sweep: Sweep) -> str:
    return (
        f'Every method has the same budget: {count(sweep.trials, "trial")} of '
        f'{sweep.config.rounds} rounds with seeds {", ".join(map(str, sweep.seeds))}, judged by '
        f'{sweep.config.data.num_validation} validation images, which are held out of the training images. No test '
        'image is read. Trial 0 has the values of the configuration. How others are chosen and stopped: docs/sweeps.md.'
    )


def _best(sweep: Sweep, found: Sequence[Result]) -> Grid:
    lines: list[tuple[str, ...]] = []
    for result in found:
        if result.best is None:
            lines.append((result.entry.title, NOTHING, NOTHING, NOTHING, ''))
            continue
        scores = (result.score.text(result.trials[number].score) for number in (0, result.best))
        best = sweeps.settings(sweep, result.trials[result.best].values)
        words = ', '.join(f'{key}={value}' for key, value in best.items())
        lines.append((result.entry.title, *scores, str(result.best), words))
    return Grid(('Method', 'Untuned', 'Best', 'Trial', 'Settings'), tuple(lines), code=(4,))


def _budgets(sweep: Sweep, found: Sequence[Result]) -> Grid:
    lines: list[tuple[str, ...]] = []
    for result in found:
        rounds = sum(trial.rounds for trial in result.trials) * len(sweep.seeds)
        counts = (len(result.trials), sweep.trials, *result.states().values(), rounds, len(result.entry.ranges))
        lines.append((result.entry.title, *map(str, counts)))
    header = ('Method', 'Trials', 'of', 'complete', 'stopped early', 'not finite', 'rounds, all seeds', 'keys searched')
    return Grid(header, tuple(lines))


def _ranges(sweep: Sweep, result: Result) -> Grid:
    ranges, first = result.entry.ranges, sweeps.untuned(sweep, result.entry)
    shares = search.importance(result.trials, ranges)
    best = {} if result.best is None else result.trials[result.best].values
    lines = []
    for key, range_ in ranges.items():
        share = f'{shares[key]:.2f}' if key in shares else NOTHING
        lines.append((key, range_.text, str(first[key]), str(best.get(key, NOTHING)), share))
    return Grid(('Key', 'Range', 'Untuned', 'Best', 'Importance (fANOVA)'), tuple(lines), code=(0,))


def _commands(sweep: Sweep, found: Sequence[Result], home: Path) -> Grid:
    lines = []
    for result in found:
        made = search.provenance(result, home)
        commits, machines = (', '.join(dict.fromkeys(entry[key] for entry in made)) for key in ('commit', 'machine'))
        shown = {} if result.best is None else {'untuned': 0, 'best': result.best}
        if result.best == 0:
            shown = {'untuned, best': 0}
        for name, number in shown.items():
            trial = result.trials[number]
            command = sweeps.job(sweep, result.entry, trial.values).command()
            lines.append((f'{result.entry.title}, {name}', commits, machines, trial.run, command))
    return Grid(('Trial', 'Commits', 'Hardware', 'Run', 'Command'), tuple(lines), code=(3, 4))


def draw(found: Sequence[Result]) -> Iterator[Figure]:
    """The figure of all methods, then one of each method."""
    shown = [result for result in found if result.best is not None]
    with style.context():
        if shown:
            caption = 'Best validation score so far against the number of trials'
            yield figures.figure('best', '', caption, _running_best(shown))
        for result in shown:
            if len(result.trials) > 1:
                title = result.entry.title
                caption = (
                    f'{title}: validation score against every key that was searched. Ring: untuned; star: the best; at '
                    'the edge, crosses: stopped early, or not finite'
                )
                yield figures.figure(f'search-{figures.slug(title)}', title, caption, _slices(result))


def _running_best(found: Sequence[Result]) -> Any:
    drawing, ax = style.figure()
    look = style.looks([result.entry.title for result in found])
    for place, result in enumerate(found):
        line: list[float] = []
        for trial in result.trials:
            known = [*line[-1:], *([] if trial.score is None else [result.score.scale * trial.score])]
            line.append(result.score.best(known))
        title = result.entry.title
        ax.plot(range(len(line)), line, label=title, **look[title].line(len(line), place))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel('Trial (0: untuned)')
    ax.set_ylabel(f'Validation {found[0].score.axis}')
    style.legend(drawing)
    return drawing


def _slices(result: Result) -> Any:
    """A panel for every key."""
    ranges, scale = result.entry.ranges, result.score.scale
    columns = min(_PANELS, len(ranges))
    width = 'page' if columns > 1 else 'column'
    drawing, axes = style.figure(-(-len(ranges) // columns), columns, width=width, height=2.0)
    panels = [axes] if len(ranges) == 1 else list(axes.flat)
    color = style.looks([result.entry.title])[result.entry.title].color
    edge = 0.03 if result.score.higher_is_better else 0.97
    for ax, (key, range_) in zip(panels, ranges.items(), strict=False):
        names = [str(value) for value in range_.values]

        def at(trial: Trial, key: str = key, names: list[str] = names) -> float:
            return names.index(str(trial.values[key])) if names else trial.values[key]

        for trial in result.trials:
            if trial.state != COMPLETE or trial.score is None:  # a score on the way would not compare
                ax.plot(at(trial), edge, 'x', color=style.GRAY, linestyle='none', transform=ax.get_xaxis_transform())
            else:
                ax.plot(at(trial), scale * trial.score, 'o', color=color, linestyle='none', alpha=0.7)
        for number, marker, fill in ((0, 'o', 'none'), (result.best or 0, '*', color)):
            trial = result.trials[number]
            edges = {'markerfacecolor': fill, 'markeredgecolor': style.BLACK, 'markersize': 9}
            assert trial.score is not None
            ax.plot(at(trial), scale * trial.score, marker, linestyle='none', **edges)
        if names:
            ax.set_xticks(range(len(names)), names)
        elif range_.scale == 'log':
            ax.set_xscale('log')
            ax.xaxis.set_minor_formatter('')
        ax.margins(y=0.12)  # room for what stands at the edge
        ax.set_xlabel(key)
    for ax in panels[::columns]:
        ax.set_ylabel(f'Validation {result.score.axis}')
    for ax in panels[len(ranges) :]:
        ax.remove()
    return drawing
