"""Pictures and tables of a report."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semisfl_jax.core import file_io

KINDS = ('.png', '.svg')  # of the pictures of reports


def pictures(folder: Path, figures: Mapping[str, bytes]) -> None:
    """Writes pictures by file name into `folder`, and removes those of an earlier report that are not among them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in figures.items():
        file_io.write(folder / name, content)
    for path in sorted(folder.iterdir()):
        if path.name not in figures and path.suffix in KINDS and path.is_file():
            path.unlink()


def table(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as CSV; None and NaN become empty fields."""
    written = io.StringIO()
    writer = csv.DictWriter(written, keys, lineterminator='\n')
    writer.writeheader()
    for row in rows:
        writer.writerow({key: '' if row[key] is None or row[key] != row[key] else row[key] for key in keys})
    return written.getvalue().encode()
