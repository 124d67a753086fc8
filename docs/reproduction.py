"""Writes docs/reproduction.md: which claims of the papers hold in the results in results/.

    python docs/reproduction.py

docs/claims.py judges the claims of docs/claims.toml; here are the page's words.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import claims as claims_lib

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, exit_status, use_one_of

ROOT = Path(__file__).resolve().parent.parent
PAGE, CLAIMS, RESULTS = ROOT / 'docs/reproduction.md', ROOT / 'docs/claims.toml', ROOT / 'results'
WIDTH = 110  # of a command
DATA = {'cifar': ', on JPEG-compressed images'}  # scale -> how the data differ from the originals
MARKS = {
    claims_lib.HOLDS: '✓',
    claims_lib.OPPOSITE: '✗',
    claims_lib.NONE: '=',
    claims_lib.OPEN: '?',
    claims_lib.FEW: '–',
}


def text() -> str:
    """docs/reproduction.md, of the claims and results in this repository.

    Raises:
      UserError: there are no results, or a claim is wrong or does not fit them.
    """
    intro, claims = claims_lib.read(CLAIMS)
    if not RESULTS.is_dir():
        raise UserError(f'there are no results in {RESULTS}; restore this folder from the repository')
    found = [claims_lib.judged(claim, RESULTS) for claim in claims]
    papers = dict.fromkeys(item.claim['paper'] for item in found)
    rows = ['| claim | verdict here | study |', '|---|---|---|']
    for paper in papers:
        rows.append(f'| **{paper}** | | |')
        for item in found:
            claim = item.claim
            if claim['paper'] != paper:
                continue
            study = claim['study'] + (', tuned' if 'tuned' in claim else '')
            rows.append(f'| [{claim["name"]}](#{_anchor(claim["name"])}) | {_counts(item)} | `{study}` |')
    parts = [intro.strip(), '\n'.join(rows)]
    shown: dict[Any, str] = {}
    for paper in papers:
        parts.append(f'## {paper}')
        parts += [section(item, shown) for item in found if item.claim['paper'] == paper]
    return '\n\n'.join(parts) + '\n'


def section(item: claims_lib.Judged, shown: dict[Any, str]) -> str:
    """The section of a claim: its words and the verdict, and everything else folded.

    Args:
      item: the claim.
      shown: what is on the page already, with the anchor of its section: quotations, and folders of studies whose
        command is shown once. Those of `item` are added.
    """
    claim = item.claim
    parts = [f'### {claim["name"]}']
    if 'words' in claim:
        first = shown.setdefault(claim['words'], _anchor(claim['name']))
        parts.append(f'> {claim["words"]}' if first == _anchor(claim['name']) else f'> As [above](#{first}).')
    words = f'{claim["where"][0].upper()}{claim["where"][1:]}. {claim.get("numbers", "")}'.strip()
    here = 'Here' + DATA.get(claim['study'].partition(':')[2], '')
    parts.append(f'{words} **{here}: {_counts(item)}.**')
    details = [table(item)] if item.comparisons else []
    if 'learned' in claim:
        details.append(claim['learned'].strip())
    if item.folder and 'figure' in claim:
        figures = sorted(file.stem for file in (item.folder / 'figures').glob('*.png'))
        if claim['figure'] not in figures:
            advice = use_one_of(claim['figure'], figures) if figures else 'leave it out'
            raise UserError(f'{claim["name"]}: {item.folder.name} has no figure {claim["figure"]!r}; {advice}')
        figure = f'../results/{item.folder.name}/figures/{claim["figure"]}.png'
        details.append(f'<img src="{figure}" width="465" alt="{claim["alt"]}">')
    if item.folder:
        if ('part' in claim or 'options' in claim) and item.folder not in shown:
            details.append(_command(item))
            shown[item.folder] = _anchor(claim['name'])
        folders = [item.folder, *claims_lib.beside(claim, item.folder.parent)]
        details.append(', '.join(f'[Report](../results/{folder.name}/report.md)' for folder in folders))
    if details:
        parts += ['<details><summary>Details</summary>', *details, '</details>']
    return '\n\n'.join(parts)


def table(item: claims_lib.Judged) -> str:
    """The comparisons of a claim: a row for each pair, a column for each setting."""
    ratio = claims_lib.unit_of(item.claim) == 'ratio'
    pairs: dict[tuple[str, str], dict[str, str]] = {}
    most = max(c.seeds for c in item.comparisons)
    for c in item.comparisons:
        by_row = c.first.column == c.second.column
        pair = (c.first.row, c.second.row) if by_row else (c.first.column, c.second.column)
        setting = c.first.column if by_row else c.first.row
        target = f' (to {100 * float(c.first.target):g} %)' if ratio and c.first.target else ''
        where = '' if target and target[2:-1].replace(' ', '') in setting.replace(' ', '') else target
        pairs.setdefault(pair, {})[setting + where] = _cell(c, ratio, most)
    settings = list(dict.fromkeys(setting for cells in pairs.values() for setting in cells))
    firsts, seconds = ({pair[i] for pair in pairs} for i in (0, 1))
    unit = ', in %' if ratio else ''  # the text of the page says that differences of accuracies are in points
    if len(pairs) > 1 and len(firsts) == 1:
        head, labels = f'{min(firsts)} minus{unit}', [second for _, second in pairs]
    elif len(pairs) > 1 and len(seconds) == 1:
        head, labels = f'minus {min(seconds)}{unit}', [first for first, _ in pairs]
    else:
        head, labels = f'difference{unit}', [f'{first} − {second}' for first, second in pairs]
    rows = [f'| {head} | {" | ".join(settings)} |', '|---' * (1 + len(settings)) + '|']
    for label, cells in zip(labels, pairs.values(), strict=True):
        rows.append(f'| {label} | {" | ".join(cells.get(setting, "same as left") for setting in settings)} |')
    return '\n'.join(rows)


def _counts(item: claims_lib.Judged) -> str:
    """The verdict; if it is not the same for all comparisons, how many have each."""
    verdicts = [c.verdict for c in item.comparisons]
    found = [f'{mark} {verdicts.count(kind)}' for kind, mark in MARKS.items() if kind in verdicts]
    return ', '.join(found) if len(found) > 1 else item.verdict


def _cell(c: claims_lib.Comparison, ratio: bool, most: int) -> str:
    """Verdict, difference with its interval, and p; and the seeds if other comparisons of the claim have more."""
    if not math.isfinite(c.mean):
        return f'{c.verdict} (n={c.seeds})'
    scale, digits = (100.0, '+.0f') if ratio else (1.0, '+.2f')
    mean, low, high = (format(scale * value, digits).replace('-', '−') for value in (c.mean, c.low, c.high))
    seeds = f', n={c.seeds}' if c.seeds < most else ''
    p = f', p={c.p:.2g}' if math.isfinite(c.p) else ''
    return f'{MARKS[c.verdict]} {mean} [{low}, {high}]{p}{seeds}'


def _command(item: claims_lib.Judged) -> str:
    """The command of a part of a study, or of one with other seeds."""
    claim = item.claim
    assert item.folder
    name, scale = claim['study'].split(':')
    command = f'python launch.py --config=configs/studies/{name}.py:{scale}'
    if 'part' in claim:
        rows = list(dict.fromkeys(line['row'] for line in claims_lib.lines_of(item.folder / 'cells.csv')))
        words = ['"--config.study_rows=']
        for row in rows:
            word = f"'{row}'" + (',' if row != rows[-1] else '"')
            if len(words[-1] + word) > WIDTH:
                words.append('')  # within quotes, too, a shell leaves out a backslash with the end of its line
            words[-1] += word
        command += ' \\\n' + '\\\n'.join(words)
    if 'options' in claim:
        command += f' \\\n{claim["options"].strip()}'
    return f'```sh\n{command}\n```'


def _anchor(name: str) -> str:
    """The anchor of a heading on GitHub."""
    kept = ''.join(letter for letter in name.lower() if letter.isalnum() or letter in ' -_')
    return kept.replace(' ', '-')


def write() -> None:
    """Writes the page."""
    file_io.write(PAGE, text().encode())


if __name__ == '__main__':
    sys.exit(exit_status(write))
