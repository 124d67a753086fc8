"""A report: headings, paragraphs, tables and figures as Markdown and as one self-contained HTML file, and CSV files."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax.core import file_io

NOTHING = '—'  # in a table, where there is no value


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


class Figure(NamedTuple):
    name: str  # of its files in figures/, without extension
    part: str  # of the report that it belongs to
    caption: str
    png: bytes
    svg: bytes

    @property
    def data(self) -> str:
        """The PNG in base64."""
        return base64.b64encode(self.png).decode()

    @property
    def width(self) -> int:
        """On the page in CSS pixels, scaled so that text has the same size in all figures."""
        return round(int.from_bytes(self.png[16:20], 'big') * 0.72)  # the width is in a PNG's first chunk


Block = Heading | Paragraph | Listing | Grid | Figure


def write(
    folder: Path,
    blocks: Sequence[Block],
    tables: Mapping[str, tuple[Sequence[str], Sequence[Mapping[str, Any]]]],
    figures: Sequence[Figure],
) -> None:
    """Writes report.md and report.html of `blocks`, `tables` (columns and rows by file name) as CSV, and figures/ into
    `folder`. Figures of an earlier report are removed; None and NaN in a table become empty fields."""
    pictures = {f'{figure.name}.{kind}': getattr(figure, kind) for figure in figures for kind in ('png', 'svg')}
    (folder / 'figures').mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        file_io.write(folder / 'figures' / name, content)
    for path in (folder / 'figures').iterdir():
        if path.name not in pictures and path.suffix in ('.png', '.svg'):
            path.unlink()
    for name, (columns, rows) in tables.items():
        file_io.write(folder / name, file_io.as_csv(columns, ([row.get(key) for key in columns] for row in rows)))
    file_io.write(folder / 'report.md', markdown(blocks).encode())
    file_io.write(folder / 'report.html', page(blocks).encode())


def markdown(blocks: Sequence[Block]) -> str:
    """The document as Markdown, with figures referenced by their paths."""
    return '\n\n'.join(map(_markdown, blocks)) + '\n'


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f'{"#" * level} {text}'
        case Paragraph(text, strong):
            return f'**{text}**' if strong else text
        case Listing(items):
            return '\n'.join(f'- {item}' for item in items)
        case Figure(name, _, caption):
            return f'![{caption}](figures/{name}.png)\n\n{caption}'
        case Grid(header, rows, code):
            lines = [tuple(_markdown_cell(x, False) for x in header), ('---',) * len(header)]
            lines += [tuple(_markdown_cell(x, column in code) for column, x in enumerate(row)) for row in rows]
            return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    raise TypeError(block)


def _markdown_cell(text: str, code: bool) -> str:
    text = text.replace('|', '\\|').replace('\n', ' ')
    return f'`{text}`' if code and text else text


def page(blocks: Sequence[Block]) -> str:
    """The document as one HTML file with embedded figures; its title is the first heading."""
    import jinja2

    title = next((block.text for block in blocks if isinstance(block, Heading)), '')
    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_PAGE)
    return template.render(title=title, blocks=[(type(block).__name__, block) for block in blocks])


class Framed:
    """A page for display in notebooks: `display(Framed(text))`. The frame isolates its styles."""

    def __init__(self, text: str):
        self.text = text

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.text)}" style="width: 100%; height: 50rem; border: 0"></iframe>'


# A line of code ends between words: browsers would also end it after a hyphen, inside --config.KEY
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { color: #1a1a1a; background: #ffffff; font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem;
  padding: 0 1rem; }
h1, h2, h3 { line-height: 1.25; } h2 { margin-top: 2.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #c8c8c8; padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { background: #f0f2f5; }
code { font-size: .85em; overflow-wrap: anywhere; }
code span { display: inline-block; max-width: 100%; }
.warning { background: #fff3cd; padding: .6rem .9rem; border-left: .3rem solid #c98a00; font-weight: 600; }
figure { display: inline-block; margin: 1rem 1rem 1rem 0; vertical-align: top; max-width: 100%; }
figure img { background: #ffffff; padding: .5rem; max-width: 100%; box-sizing: border-box; }
figcaption { font-size: .9rem; }
</style>
</head>
<body>
{% for kind, block in blocks %}
{% if kind == 'Heading' %}
<h{{ block.level }}>{{ block.text }}</h{{ block.level }}>
{% elif kind == 'Paragraph' %}
<p{{ ' class=warning' if block.strong }}>{{ block.text }}</p>
{% elif kind == 'Listing' %}
<ul>{% for item in block.items %}<li>{{ item }}</li>{% endfor %}</ul>
{% elif kind == 'Figure' %}
<figure><img alt="{{ block.caption }}" width="{{ block.width }}" src="data:image/png;base64,{{ block.data }}">
<figcaption>{{ block.caption }}</figcaption></figure>
{% else %}
<div class="scroll"><table>
<thead><tr>{% for name in block.header %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in block.rows %}
<tr>
  {%- for cell in row %}<td>
    {%- if loop.index0 in block.code and cell %}<code>
      {%- for word in cell.split(' ') %}<span>{{ word }}</span>{{ ' ' if not loop.last }}{% endfor %}
</code>{% else %}{{ cell }}{% endif %}
</td>{% endfor %}
</tr>
{% endfor %}
</tbody>
</table></div>
{% endif %}
{% endfor %}
</body>
</html>
"""
