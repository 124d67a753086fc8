"""The report of a sweep: a function of its trials, and the files it is written to."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.core import atomic_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.types import Axes
from semisfl_jax.plots import legends, looks, style
from semisfl_jax.studies import document, tuned
from semisfl_jax.studies import figures as studies_figures
from semisfl_jax.studies import plan as studies_plan
from semisfl_jax.studies.document import Block, Grid, Heading, Listing, Paragraph, Picture
from semisfl_jax.studies.figures import Figure
from semisfl_jax.studies.sweeps import search, spec
from semisfl_jax.studies.sweeps.search import COMPLETE, DIVERGED, PRUNED, Judge, Result, Trial
from semisfl_jax.studies.sweeps.spec import Sweep

NOTHING = '—'
KEYS = ('method', 'trial', 'state', 'validation', 'rounds', 'run', 'settings', 'curve', 'why')  # of trials.csv


def write(folder: Path, sweep: Sweep, found: Sequence[Result], home: Path) -> None:
    """Writes report.md, report.html, trials.csv and figures/ into `folder`; tuned.json once all trials have ended."""
    drawn = list(draw(found))
    pictures = {f'{figure.name}.png': figure.png for figure in drawn}
    document.write_pictures(folder / 'figures', pictures | {f'{figure.name}.svg': figure.svg for figure in drawn})
    atomic_io.write(folder / 'trials.csv', document.csv_table(KEYS, rows(found)))
    blocks = build(sweep, found, home, drawn)
    atomic_io.write(folder / 'report.md', document.markdown(blocks).encode())
    atomic_io.write(folder / 'report.html', document.page(_title(sweep), blocks).encode())
    if search.whole(sweep, found):
        atomic_io.write_json(folder / tuned.NAME, tuned.as_json(search.tuned_settings(sweep, found, home)))
    else:
        (folder / tuned.NAME).unlink(missing_ok=True)  # of fewer trials


def rows(found: Sequence[Result]) -> list[dict[str, Any]]:
    """A row of trials.csv for every trial that has ended; scores are not in percent."""
    return [
        {
            'method': result.entry.title,
            'trial': number,
            'state': trial.state,
            'validation': trial.score,
            'rounds': trial.rounds,
            'run': trial.run,
            'settings': json.dumps(trial.values),
            'curve': json.dumps(trial.curve),
            'why': trial.why,
        }
        for result in found
        for number, trial in enumerate(result.trials)
    ]


def build(sweep: Sweep, found: Sequence[Result], home: Path, drawn: Sequence[Figure] = ()) -> list[Block]:
    """The report as a document."""
    blocks: list[Block] = [Heading(1, _title(sweep))]
    if sweep.warning:
        blocks.append(Paragraph(sweep.warning, strong=True))
    blocks += [Paragraph(_state(sweep, found)), Paragraph(_protocol(sweep))]
    blocks += [Listing(sweep.notes)] if sweep.notes else []
    blocks += [Heading(2, 'Best settings'), Paragraph(_caption()), _best(sweep, found)]
    blocks += [Heading(2, 'Budgets'), _budgets(sweep, found)]
    blocks += [Picture(f'figures/{f.name}.png', f.caption, f.png) for f in drawn if not f.table]
    for result in found:
        title = result.entry.title
        blocks += [Heading(2, title), _ranges(sweep, result)]
        blocks += [Picture(f'figures/{f.name}.png', f.caption, f.png) for f in drawn if f.table == title]
        if result.trials:
            blocks.append(_trials(result))
    blocks += [Heading(2, 'How the trials were made'), Paragraph(_making(sweep)), _commands(sweep, found, home)]
    return blocks


def _title(sweep: Sweep) -> str:
    return f'{sweep.title} (scale {sweep.scale})' if sweep.scale else sweep.title


def _state(sweep: Sweep, found: Sequence[Result]) -> str:
    ended = sum(len(result.trials) for result in found)
    total = sweep.trials * len(found)
    rest = '' if ended == total else ' Best settings are of those; tuned.json is written when all have ended.'
    return f'{ended} of {total} trials have ended.{rest}'


def _protocol(sweep: Sweep) -> str:
    data, seeds = sweep.config.data, ', '.join(map(str, sweep.seeds))
    stop = (
        f' Once {search.RANDOM_TRIALS} trials are complete, one is stopped after a quarter, half or three quarters of '
        'its rounds if it is behind their median there.'
        if sweep.prune
        else ''
    )
    return (
        f'Every method has the same budget: {sweep.trials} trial{"s" * (sweep.trials > 1)} of '
        f'{sweep.config.rounds} rounds with seeds {seeds}, '
        f'judged by {data.num_validation} validation images, which are held out of the training images. No test image '
        'is read. Trial 0 has the values of the configuration; up to trial '
        f'{search.RANDOM_TRIALS - 1}, the others are drawn at random, and then by a tree-structured Parzen '
        f'estimator.{stop}'
    )


def _caption() -> str:
    return (
        'Validation scores are means over seeds of the means of the last ten evaluations. The score of the best of '
        'many trials is an optimistic estimate: compare methods by test scores of runs with other seeds (study_tuned).'
    )


def _best(sweep: Sweep, found: Sequence[Result]) -> Grid:
    lines = []
    for result in found:
        number = result.best
        if number is None or result.judge is None:
            lines.append((result.entry.title, NOTHING, NOTHING, NOTHING, ''))
            continue
        first, chosen, text = result.trials[0].score, result.trials[number], result.judge.score.text
        assert first is not None
        assert chosen.score is not None
        settings = ', '.join(f'{k}={v}' for k, v in spec.settings(sweep, chosen.values).items())
        lines.append((result.entry.title, text(first), text(chosen.score), str(number), settings))
    return Grid(('Method', 'Untuned', 'Best', 'Trial', 'Settings'), tuple(lines), code=(4,))


def _budgets(sweep: Sweep, found: Sequence[Result]) -> Grid:
    lines = []
    for result in found:
        states, rounds = result.states(), sum(trial.rounds for trial in result.trials)
        counts = (
            len(result.trials),
            sweep.trials,
            *states.values(),
            rounds * len(sweep.seeds),
            len(result.entry.ranges),
        )
        lines.append((result.entry.title, *map(str, counts)))
    header = ('Method', 'Trials', 'of', 'complete', 'stopped early', 'not finite', 'rounds, all seeds', 'keys searched')
    return Grid(header, tuple(lines))


def _ranges(sweep: Sweep, result: Result) -> Grid:
    judge, entry = result.judge, result.entry
    shares = search.importance(result.trials, entry.ranges, judge.score.higher_is_better) if judge else {}
    chosen = None if result.best is None else result.trials[result.best].values
    first = spec.untuned(sweep, entry)
    lines = [
        (
            key,
            range_.text,
            str(first[key]),
            NOTHING if chosen is None else str(chosen[key]),
            f'{shares[key]:.2f}' if key in shares else NOTHING,
        )
        for key, range_ in entry.ranges.items()
    ]
    return Grid(('Key', 'Range', 'Untuned', 'Best', 'Importance (fANOVA)'), tuple(lines), code=(0,))


def _trials(result: Result) -> Grid:
    keys = list(result.entry.ranges)
    lines = [
        (str(number), *(str(trial.values[key]) for key in keys), _outcome(result, trial), str(trial.rounds), trial.run)
        for number, trial in enumerate(result.trials)
    ]
    score = result.judge.score.label if result.judge else ''
    return Grid(('Trial', *keys, f'Validation {score}', 'Rounds', 'Run'), tuple(lines), code=(len(keys) + 3,))


def _outcome(result: Result, trial: Trial) -> str:
    assert result.judge is not None
    if trial.score is not None:
        return result.judge.score.text(trial.score)
    at = f' at {result.judge.score.text(trial.curve[trial.rounds])}' if trial.state == PRUNED else ''
    return {PRUNED: f'stopped{at}', DIVERGED: 'not finite'}[trial.state]


def _making(sweep: Sweep) -> str:
    at = ', '.join(map(str, search.stop_rounds(sweep.config.rounds, sweep.config.eval_every)))
    stops = f' Trials can stop after rounds {at}.' if sweep.prune and at else ''
    return (
        f'Optuna {search.version()}, search seed {sweep.seed}.{stops} Commands run from '
        f'{studies_plan.home([sweep.base])}; + after a commit marks changes that were not committed.'
    )


def _commands(sweep: Sweep, found: Sequence[Result], home: Path) -> Grid:
    lines = []
    for result in found:
        made = search.provenance(result, home)
        commits, machines = (', '.join(dict.fromkeys(entry[key] for entry in made)) for key in ('commit', 'machine'))
        number = result.best
        shown = {} if number is None else {'untuned': result.trials[0], 'best': result.trials[number]}
        if number == 0:
            shown = {'untuned, best': result.trials[0]}
        for name, trial in shown.items():
            command = spec.job(sweep, result.entry, trial.values).command()
            lines.append((f'{result.entry.title}, {name}', commits, machines, trial.run, command))
    return Grid(('Trial', 'Commits', 'Hardware', 'Run', 'Command'), tuple(lines), code=(3, 4))


# The figures of a sweep, as file contents: the best so far of every method, and a slice through its search by key.

_PANELS = 3  # in a row
FAR = 4.0  # times the median distance from the best: scores beyond it would flatten all others


def draw(results: Sequence[Result]) -> Iterator[Figure]:
    """All figures: the first of all methods, then one of each method, whose title is the figure's `table`."""
    with style.context():
        shown = [result for result in results if result.judge and result.best is not None]
        if shown:
            caption = 'Best validation score so far against the number of trials'
            yield _figure('best', '', caption, _draw_best(shown))
        for result in shown:
            if result.judge and len(result.trials) > 1:
                caption = (
                    f'{result.entry.title}: validation score against every key that was searched. Ring: untuned; star: '
                    'the best; at the edge, crosses: stopped early, or not finite; triangles: far worse than most'
                )
                slug = studies_figures.slug(result.entry.title)
                yield _figure(f'search-{slug}', result.entry.title, caption, _slices(result, result.judge))


def _figure(name: str, table: str, caption: str, figure: Any) -> Figure:
    return Figure(name, table, caption, *studies_figures.pictures(figure))


def _draw_best(results: Sequence[Result]) -> Any:
    figure, ax = style.figure()
    look = looks.of([result.entry.title for result in results])
    for place, result in enumerate(results):
        judge = result.judge
        assert judge is not None
        line = _running(result.trials, judge)
        title = result.entry.title
        ax.plot(range(len(line)), line, label=title, **look[title].line(len(line), place))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel('Trial (0: untuned)')
    ax.set_ylabel(_label(results[0].judge))
    legends.below(figure)
    return figure


def _running(trials: Sequence[Trial], judge: Judge) -> list[float]:
    values: list[float] = []
    for trial in trials:
        known = [*values[-1:], *([] if trial.score is None else [judge.score.scale * trial.score])]
        values.append(judge.score.best(known))
    return values


def _slices(result: Result, judge: Judge) -> Any:
    """A panel for every key."""
    ranges, best = result.entry.ranges, result.best
    if best is None:
        raise UserError('no trial has ended')
    columns = min(_PANELS, len(ranges))
    rows = -(-len(ranges) // columns)
    figure, axes = style.figure(rows, columns, width='page' if columns > 1 else 'column', height=2.0)
    panels = [axes] if len(ranges) == 1 else list(axes.flat)
    color = looks.of([result.entry.title])[result.entry.title].color
    higher = judge.score.higher_is_better
    edge, arrow = (0.03, 'v') if higher else (0.97, '^')
    worst = farthest(
        [trial.score for trial in result.trials if trial.state == COMPLETE and trial.score is not None], higher
    )
    for ax, (key, range_) in zip(panels, ranges.items(), strict=False):
        names = [str(value) for value in range_.values]

        def at(trial: Trial, key: str = key, names: list[str] = names) -> float:
            return names.index(str(trial.values[key])) if names else trial.values[key]

        for number, trial in enumerate(result.trials):
            in_axes = ax.get_xaxis_transform()
            if trial.state != COMPLETE or trial.score is None:  # a score on the way would not compare
                ax.plot(at(trial), edge, 'x', color=style.GRAY, linestyle='none', transform=in_axes)
            elif number and (trial.score < worst if higher else trial.score > worst):
                ax.plot(at(trial), edge, arrow, color=color, linestyle='none', alpha=0.7, transform=in_axes)
            else:
                ax.plot(at(trial), judge.score.scale * trial.score, 'o', color=color, linestyle='none', alpha=0.7)
        for number, marker, size in ((0, 'o', 9), (best, '*', 9)):
            trial = result.trials[number]
            assert trial.score is not None
            fill = 'none' if marker == 'o' else color
            ax.plot(
                at(trial),
                judge.score.scale * trial.score,
                marker,
                markersize=size,
                markerfacecolor=fill,
                markeredgecolor=style.BLACK,
                linestyle='none',
            )
        _axis(ax, range_, names)
        ax.margins(y=0.12)  # room for what stands at the edge
        ax.set_xlabel(key)
    for ax in panels[::columns]:
        ax.set_ylabel(_label(judge))
    for ax in panels[len(ranges) :]:
        ax.remove()
    return figure


def farthest(scores: Sequence[float], higher: bool) -> float:
    """The worst score that a panel shows, FAR times as far from the best one as the median is."""
    best, middle = (max if higher else min)(scores), statistics.median(scores)
    return best + FAR * (middle - best)


def _axis(ax: Axes, range_: Range, names: Sequence[str]) -> None:
    """The whole range of a key, with a little air."""
    if names:
        ax.set_xticks(range(len(names)), names)
        ax.set_xlim(-0.5, len(names) - 0.5)
    elif range_.scale == 'log':
        air = (range_.high / range_.low) ** 0.05
        ax.set_xscale('log')
        ax.set_xlim(range_.low / air, range_.high * air)
        ax.xaxis.set_minor_formatter('')
    else:
        air = 0.05 * (range_.high - range_.low)
        ax.set_xlim(range_.low - air, range_.high + air)


def _label(judge: Judge | None) -> str:
    assert judge is not None
    unit = f' ({judge.score.unit})' if judge.score.unit else ''
    return f'Validation {judge.score.label}{unit}'
