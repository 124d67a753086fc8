"""A document of headings, paragraphs, tables and pictures, as Markdown and as one self-contained HTML file."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax.core import atomic_io


class Heading(NamedTuple):
    level: int
    text: str


class Paragraph(NamedTuple):
    text: str
    strong: bool = False  # a warning


class Listing(NamedTuple):
    items: tuple[str, ...]


class Grid(NamedTuple):
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    code: tuple[int, ...] = ()  # columns that hold commands or names


class Picture(NamedTuple):
    path: str  # relative to the document
    caption: str
    png: bytes


Block = Heading | Paragraph | Listing | Grid | Picture

STYLE = """\
:root { color-scheme: light dark; --text: #1a1a1a; --page: #ffffff; --line: #c8c8c8; --head: #f0f2f5; --mark: #fff3cd; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --page: #16181c; --line: #44484f; --head: #24282f; --mark: #4a3d10; }
}
body { color: var(--text); background: var(--page); font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 75rem; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.25; } h2 { margin-top: 2.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { background: var(--head); }
code { font-size: .85em; overflow-wrap: anywhere; }
code span { display: inline-block; max-width: 100%; }
.warning { background: var(--mark); padding: .6rem .9rem; border-left: .3rem solid #c98a00; font-weight: 600; }
figure { display: inline-block; margin: 1rem 1rem 1rem 0; vertical-align: top; max-width: 100%; }
figure img { background: #ffffff; padding: .5rem; max-width: 100%; box-sizing: border-box; }
figcaption { font-size: .9rem; }
@media print {
  :root { --text: #000000; --page: #ffffff; --line: #999999; --head: #eeeeee; --mark: #ffffff; }
  body { margin: 0; max-width: none; font-size: 10pt; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; }
}
"""


def markdown(blocks: Sequence[Block]) -> str:
    """The document as Markdown, with pictures referenced by their paths."""
    return '\n\n'.join(map(_markdown, blocks)) + '\n'


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f'{"#" * level} {text}'
        case Paragraph(text, strong):
            return f'**{text}**' if strong else text
        case Listing(items):
            return '\n'.join(f'- {item}' for item in items)
        case Picture(path, caption, _):
            return f'![{caption}]({path})\n\n{caption}'
        case Grid(header, rows, code):
            lines = [header, ('---',) * len(header)]
            lines += [tuple(_markdown_cell(x, column in code) for column, x in enumerate(row)) for row in rows]
            return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    raise TypeError(block)


def _markdown_cell(text: str, code: bool) -> str:
    text = text.replace('|', '\\|').replace('\n', ' ')
    return f'`{text}`' if code and text else text


def page(title: str, blocks: Sequence[Block]) -> str:
    """The document as one HTML file with embedded pictures."""
    body = '\n'.join(map(_html, blocks))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{html.escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n'
    )


class Framed:
    """A page for display in notebooks: `display(Framed(text))`. The frame isolates its styles."""

    def __init__(self, text: str):
        self.text = text

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.text)}" style="width: 100%; height: 50rem; border: 0"></iframe>'


def _html(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f'<h{level}>{html.escape(text)}</h{level}>'
        case Paragraph(text, strong):
            return f'<p{" class=" + chr(34) + "warning" + chr(34) if strong else ""}>{html.escape(text)}</p>'
        case Listing(items):
            return '<ul>\n' + '\n'.join(f'<li>{html.escape(item)}</li>' for item in items) + '\n</ul>'
        case Picture(_, caption, png):
            data, text = base64.b64encode(png).decode(), html.escape(caption)
            image = f'<img alt="{text}" width="{_shown_width(png)}" src="data:image/png;base64,{data}">'
            return f'<figure>{image}<figcaption>{text}</figcaption></figure>'
        case Grid(header, rows, code):
            head = ''.join(f'<th scope="col">{html.escape(x)}</th>' for x in header)
            lines = [
                '<tr>' + ''.join(f'<td>{_html_cell(x, column in code)}</td>' for column, x in enumerate(row)) + '</tr>'
                for row in rows
            ]
            return (
                f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
                + '\n'.join(lines)
                + '\n</tbody>\n</table></div>'
            )
    raise TypeError(block)


def _shown_width(png: bytes) -> int:
    """Width on the page in CSS pixels, scaled so that text has the same size in all pictures."""
    return round(int.from_bytes(png[16:20], 'big') * 0.72)  # the width is in a PNG's first chunk


def _html_cell(text: str, code: bool) -> str:
    """A line of `code` ends between words: browsers would also end it after a hyphen, inside --config.KEY."""
    if not (code and text):
        return html.escape(text)
    words = (f'<span>{html.escape(word)}</span>' for word in text.split(' '))
    return f'<code>{" ".join(words)}</code>'


# Pictures and tables of a report.

PICTURE_KINDS = ('.png', '.svg')  # of the pictures of reports


def write_pictures(folder: Path, figures: Mapping[str, bytes]) -> None:
    """Writes pictures by file name into `folder`, and removes those of an earlier report that are not among them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in figures.items():
        atomic_io.write(folder / name, content)
    for path in sorted(folder.iterdir()):
        if path.name not in figures and path.suffix in PICTURE_KINDS and path.is_file():
            path.unlink()


def csv_table(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as CSV; None and NaN become empty fields."""
    written = io.StringIO()
    writer = csv.DictWriter(written, keys, lineterminator='\n')
    writer.writeheader()
    for row in rows:
        writer.writerow({key: '' if row[key] is None or row[key] != row[key] else row[key] for key in keys})
    return written.getvalue().encode()
