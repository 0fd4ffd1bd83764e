"""Rows of numbers as tables of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table


def table_of(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """One column a key of the first row, three digits a number, words to the left."""
    table = Table(title=title, title_justify="left")
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " - ".join(map(_cell, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
