"""The report of a sweep: a function of its ended trials.

Figures: the best so far of every method, and a slice through its search by key.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import count
from semisfl_jax.lab.plots import style
from semisfl_jax.lab.studies import document, figures, search, sweeps, tuned
from semisfl_jax.lab.studies import plan as plans
from semisfl_jax.lab.studies.document import Block, Figure, Grid, heading, listing, plain, warning
from semisfl_jax.lab.studies.search import Result, Search
from semisfl_jax.lab.studies.sweeps import Sweep

KEYS = ('method', 'trial', 'state', 'validation', 'rounds', 'run', 'settings', 'curve', 'why')  # of trials.csv
_PANELS = 3  # in a row


def write(folder: Path, made: Search) -> None:
    """Writes report.md, report.html, trials.csv and figures/ into `folder`; tuned.json once all trials have ended."""
    results = made.results()
    drawn = list(draw(results))
    document.write(folder, build(made, results, drawn), {'trials.csv': (KEYS, rows(results))})
    if all(len(result.trials) == made.sweep.trials for result in results):
        file_io.write_json(folder / tuned.NAME, tuned.as_json(search.tuned_settings(made, results)))
    else:
        (folder / tuned.NAME).unlink(missing_ok=True)  # of fewer trials


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Makes a row of trials.csv for every trial that has ended; scores are not in percent."""
    lines = []
    for result in results:
        for number, trial in enumerate(result.trials):
            texts = json.dumps(trial.values), json.dumps(trial.curve), trial.why
            outcome = trial.state, trial.score, trial.rounds, trial.run
            lines.append(dict(zip(KEYS, (result.entry.title, number, *outcome, *texts), strict=True)))
    return lines


def build(made: Search, results: Sequence[Result], drawn: Sequence[Figure] = ()) -> list[Block]:
    """Builds the report as a document.

    Args:
      made: the search.
      results: its ended trials.
      drawn: its figures.
    """
    sweep = made.sweep
    blocks: list[Block] = [heading(1, f'{sweep.title} (scale {sweep.scale})' if sweep.scale else sweep.title)]
    blocks += [warning(sweep.warning)] if sweep.warning else []
    ended, total = sum(len(result.trials) for result in results), sweep.trials * len(results)
    rest = '' if ended == total else ' Best settings so far; tuned.json is written once all trials are done.'
    protocol = (
        f'Every method has the same budget: {count(sweep.trials, "trial")} of '
        f'{sweep.config.rounds} rounds with seeds {", ".join(map(str, sweep.seeds))}, judged by '
        f'{sweep.config.data.num_validation} validation images, which are held out of the training images. No test '
        'image is read. Trial 0 uses the values of the configuration; docs/sweeps.md says how later trials are chosen '
        'and stopped.'
    )
    blocks += [plain(f'{ended} of {total} trials are done (trials.csv).{rest}'), plain(protocol)]
    blocks += [listing(sweep.notes)] if sweep.notes else []
    scores = (
        'A validation score is the mean over seeds of the mean of the last ten evaluations. The best score of many '
        'trials is optimistic: to compare methods, use the test scores of runs with new seeds (study_tuned).'
    )
    blocks += [heading(2, 'Best settings'), plain(scores), _best(sweep, results)]
    blocks += [heading(2, 'Budgets'), _budgets(sweep, results)]
    blocks += [figure for figure in drawn if not figure.part]
    for result in results:
        blocks += [heading(2, result.entry.title), _ranges(sweep, result)]
        blocks += [figure for figure in drawn if figure.part == result.entry.title]
    at = ', '.join(map(str, search.stop_rounds(sweep.config.rounds, sweep.config.eval_every)))
    stops = f' Trials can stop after rounds {at}.' if sweep.prune and at else ''
    how = f'Optuna {search.optuna().__version__}, seed {sweep.seed}, batches of {sweep.batch}.{stops} {plans.HOME}'
    return [*blocks, heading(2, 'Commands, commits and hardware'), plain(how), _commands(made, results)]


def _best(sweep: Sweep, results: Sequence[Result]) -> Grid:
    lines: list[Sequence[Any]] = []
    for result in results:
        line: Sequence[Any] = (None, None, None, '')
        if result.best is not None:
            scores = (result.score.text(result.trials[number].score) for number in (0, result.best))
            best = sweeps.settings(sweep, result.trials[result.best].values)
            line = (*scores, result.best, ', '.join(f'{key}={value}' for key, value in best.items()))
        lines.append((result.entry.title, *line))
    return Grid(('Method', 'Untuned', 'Best', 'Trial', 'Settings'), lines, code=(4,))


def _budgets(sweep: Sweep, results: Sequence[Result]) -> Grid:
    lines = []
    for result in results:
        rounds = sum(trial.rounds for trial in result.trials) * len(sweep.seeds)
        counts = (len(result.trials), sweep.trials, *result.states().values(), rounds, len(result.entry.ranges))
        lines.append((result.entry.title, *counts))
    head = ('Trials done', 'Planned', 'Completed', 'Stopped early', 'Diverged', 'Rounds (all seeds)')
    return Grid(('Method', *head, 'Keys searched'), lines)


def _ranges(sweep: Sweep, result: Result) -> Grid:
    ranges, first = result.entry.ranges, sweeps.untuned(sweep, result.entry)
    shares = {key: f'{share:.2f}' for key, share in search.importance(result.trials, ranges).items()}
    best = {} if result.best is None else result.trials[result.best].values
    lines = [(key, range_.text, first[key], best.get(key), shares.get(key)) for key, range_ in ranges.items()]
    return Grid(('Key', 'Range', 'Untuned', 'Best', 'Importance (fANOVA)'), lines, code=(0,))


def _commands(made: Search, results: Sequence[Result]) -> Grid:
    lines = []
    for result in results:
        entries = search.provenance(result, made.runs)
        origin = [', '.join(dict.fromkeys(entry[key] for entry in entries)) for key in ('commit', 'machine')]
        shown = {'untuned': 0, 'best': result.best} if result.best else {'untuned, best': result.best}
        for name, number in shown.items():
            if number is not None:
                trial = result.trials[number]
                command = plans.trial_job(made.sweep, result.entry, trial.values).command()
                lines.append((f'{result.entry.title}, {name}', *origin, trial.run, command))
    return Grid(('Trial', 'Commits', 'Hardware', 'Run', 'Command'), lines, code=(3, 4))


def draw(results: Sequence[Result]) -> Iterator[Figure]:
    """Draws the figure of all methods, then one of each method."""
    shown = [result for result in results if result.best is not None]
    with style.context():
        if shown:
            caption = 'Best validation score so far against the number of trials'
            yield figures.figure('best', '', caption, _running_best(shown))
        for result in shown:
            if len(result.trials) > 1:
                title = result.entry.title
                caption = (
                    f'{title}: validation score against every key searched. Ring: untuned; star: best; crosses at the '
                    'edge: stopped early or diverged'
                )
                yield figures.figure(f'search-{figures.slug(title)}', title, caption, _slices(result))


def _running_best(results: Sequence[Result]) -> Any:
    drawing, ax = style.figure()
    look = style.looks([result.entry.title for result in results])
    for place, result in enumerate(results):
        best = np.fmax if result.score.higher_is_better else np.fmin  # of those that there are
        line = result.score.scale * best.accumulate(np.array([trial.score for trial in result.trials], float))
        title = result.entry.title
        ax.plot(range(len(line)), line, label=title, **look[title].line(len(line), place))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel('Trial (0: untuned)')
    ax.set_ylabel(f'Validation {results[0].score.axis}')
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
        values = [trial.values[key] for trial in result.trials]
        places = [names.index(str(value)) for value in values] if names else values
        for place, trial in zip(places, result.trials, strict=True):
            if trial.score is None:  # not complete: a score on the way would not compare
                ax.plot(place, edge, 'x', color=style.GRAY, linestyle='none', transform=ax.get_xaxis_transform())
            else:
                ax.plot(place, scale * trial.score, 'o', color=color, linestyle='none', alpha=0.7)
        for number, marker, fill in ((0, 'o', 'none'), (result.best or 0, '*', color)):
            edges = {'markerfacecolor': fill, 'markeredgecolor': style.BLACK, 'markersize': 9}
            score = result.trials[number].score
            assert score is not None
            ax.plot(places[number], scale * score, marker, linestyle='none', **edges)
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
