"""Writes docs/reproduction.md: which claims of the papers hold in the results in results/.

    python docs/reproduction.py

docs/claims.py judges the claims of docs/claims.toml; here are the page's words, and where every number is from.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import claims as claims_lib

from semisfl_jax.config import commands
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, use_one_of

ROOT = Path(__file__).resolve().parent.parent
PAGE, CLAIMS, RESULTS = ROOT / 'docs/reproduction.md', ROOT / 'docs/claims.toml', ROOT / 'results'
MACHINE = re.compile(r'\S+ \(\S+\), [^,]+, \d+ cores?')  # in the column `hardware` of cells.csv
WIDTH = 110  # of a command


def page(claims: Sequence[dict[str, Any]], intro: str, results: Path) -> str:
    """docs/reproduction.md.

    Raises:
      UserError: `results` is missing, or a claim does not fit what is there.
    """
    if not results.is_dir():
        raise UserError(f'there are no results in {results}; restore this folder from the repository')
    found = [claims_lib.judged(claim, results) for claim in claims]
    rows = ['| claim | of | verdict here | tested with |', '|---|---|---|---|']
    for item in found:
        claim = item.claim
        name = f'[{claim["name"]}](#{_anchor(claim["name"])})'
        study = claim['study'] + (', tuned' if 'tuned' in claim else '')
        rows.append(f'| {name} | {claim["paper"]}, {claim["where"]} | {item.verdict} | `{study}` |')
    parts = [intro.strip(), '\n'.join(rows)]
    for paper in dict.fromkeys(item.claim['paper'] for item in found):
        parts.append(f'## {paper}')
        parts += [section(item) for item in found if item.claim['paper'] == paper]
    return '\n\n'.join(parts) + '\n'


def section(item: claims_lib.Judged) -> str:
    """The section of a claim: its words and the verdict, and everything else folded."""
    claim = item.claim
    parts = [f'### {claim["name"]}']
    if 'words' in claim:
        parts.append(f'> {claim["words"]}')
    parts.append(f'{claim["paper"]}, {claim["where"]}. {claim.get("numbers", "")}'.strip())
    parts.append(f'**Here: {item.verdict}.** {claim.get("again", "")}'.strip())
    parts.append('<details><summary>Numbers, what else was seen, and the command</summary>')
    if item.comparisons:
        parts.append(table(item))
    if 'learned' in claim:
        parts.append(claim['learned'].strip())
    if item.folder and 'figure' in claim:
        figures = sorted(file.stem for file in (item.folder / 'figures').glob('*.png'))
        if claim['figure'] not in figures:
            advice = use_one_of(claim['figure'], figures) if figures else 'leave it out'
            raise UserError(f'{claim["name"]}: {item.folder.name} has no figure {claim["figure"]!r}; {advice}')
        figure = f'../results/{item.folder.name}/figures/{claim["figure"]}.png'
        parts.append(f'<img src="{figure}" width="465" alt="{claim["alt"]}">')
    return '\n\n'.join([*parts, _source(item), '</details>'])


def table(item: claims_lib.Judged) -> str:
    """The comparisons of a claim."""
    ratio = claims_lib.unit_of(item.claim) == 'ratio'
    rows = [
        f'| compared | setting | difference{" in %" if ratio else " in points"}, 95 % interval | p | seeds | verdict |',
        '|---|---|---|---|---|---|',
    ]
    for c in item.comparisons:
        by_row = c.first.column == c.second.column
        what = f'{c.first.row} − {c.second.row}' if by_row else f'{c.first.column} − {c.second.column}'
        setting = c.first.column if by_row else c.first.row
        scale, digits = (100.0, '+.0f') if ratio else (1.0, '+.2f')
        mean, low, high = (format(scale * value, digits).replace('-', '−') for value in (c.mean, c.low, c.high))
        interval = f'{mean} [{low}, {high}]' if math.isfinite(c.mean) else '—'
        p = f'{c.p:.2g}' if math.isfinite(c.p) else '—'
        target = f' (to {100 * float(c.first.target):g} %)' if ratio and c.first.target else ''
        where = '' if target and target[2:-1].replace(' ', '') in setting.replace(' ', '') else target
        rows.append(f'| {what} | {setting}{where} | {interval} | {p} | {c.seeds} | {c.verdict} |')
    return '\n'.join(rows)


def _source(item: claims_lib.Judged) -> str:
    """Command, report, commits and hardware."""
    claim = item.claim
    name, scale = claim['study'].split(':')
    command = f'python launch.py --config=configs/studies/{name}.py:{scale}'
    if 'tuned' in claim:
        command += f' \\\n--config.study_tuned={claim["tuned"]}'
    folder = item.folder
    if not folder:
        return f'```sh\n{command}\n```'
    used = {(c.row, c.column) for item_ in item.comparisons for c in (item_.first, item_.second)}
    lines = [
        line
        for line in claims_lib.lines_of(folder / 'cells.csv', ('commits', 'hardware'))
        if line['table'] == claim['table'] and (line['row'], line['column']) in used
    ]
    rows = list(dict.fromkeys(line['row'] for line in lines))
    every = {line['row'] for line in claims_lib.lines_of(folder / 'cells.csv')}
    if set(rows) < every or 'part' in claim:
        words = ['"--config.study_rows=']
        for row in rows:
            word = f"'{row}'" + (',' if row != rows[-1] else '"')
            if len(words[-1] + word) > WIDTH:
                words.append('')  # within quotes, too, a shell leaves out a backslash with the end of its line
            words[-1] += word
        command += ' \\\n' + '\\\n'.join(words)
    if 'options' in claim:
        command += f' \\\n{claim["options"]}'
    commits = ', '.join(dict.fromkeys(f'`{commit}`' for line in lines for commit in line['commits'].split(', ')))
    found = MACHINE.findall(' '.join(line['hardware'] for line in lines))
    machines = '; '.join(dict.fromkeys(name.replace(', 1 cores', ', 1 core') for name in found))  # older reports
    report = f'[Report](../results/{folder.name}/report.md); commit {commits}; {machines}.'
    return f'```sh\n{command}\n```\n\n{report}'


def _anchor(name: str) -> str:
    """The anchor of a heading on GitHub."""
    kept = ''.join(letter for letter in name.lower() if letter.isalnum() or letter in ' -_')
    return kept.replace(' ', '-')


def text() -> str:
    """docs/reproduction.md, of the claims and results in this repository.

    Raises:
      UserError: a mistake in one of them.
    """
    intro, claims = claims_lib.read(CLAIMS)
    return page(claims, intro, RESULTS)


def main(argv: list[str]) -> int:
    """Writes the page, unless there is a mistake; returns the exit status."""

    def write() -> None:
        if argv[1:]:
            raise UserError(f"'{argv[1]}': this script takes no arguments; leave it out (see --help)")
        file_io.write(PAGE, text().encode())

    return commands.main(argv, __doc__, write)


if __name__ == '__main__':
    sys.exit(main(sys.argv))
