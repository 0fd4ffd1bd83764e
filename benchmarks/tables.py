"""Tables of numbers for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table


def table_of(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """A table with one column per key of the first row; numbers have three digits, words are left-aligned."""
    table = Table(title=title, title_justify="left")
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(cell, row.values()))
    return table


def cell(value: Any) -> str:
    """A number with three digits, a sequence as its entries."""
    if isinstance(value, (tuple, list)):
        return " - ".join(map(cell, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
