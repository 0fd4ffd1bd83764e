"""JSON-lines records: append-only files with one object per line, read without their damaged lines."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ParsedRows:
    """The rows of a JSON-lines file that can be read, their line numbers (from 1), and those of damaged lines.

    An unreadable last line without a line end does not count as damaged, because it may have been cut off by a crash.
    """

    rows: list[dict[str, Any]]
    numbers: list[int]
    damaged: list[int]


def read_rows(path: Path) -> ParsedRows:
    """The rows of a file; no rows if there is no file."""
    return parse_rows(path.read_bytes()) if path.is_file() else ParsedRows([], [], [])


def last_row(path: Path) -> dict[str, Any] | None:
    """The row in the last complete line of a file (with a line end); None if there is none or it is damaged."""
    lines = path.read_bytes().rsplit(b"\n", 2) if path.is_file() else []
    return _object(lines[-2]) if len(lines) > 1 else None


def numbers_of(row: Mapping[str, Any]) -> dict[str, int | float]:
    """The numbers of a row of metrics, without its other values, such as lists of events."""
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}


def parse_rows(data: bytes) -> ParsedRows:
    *complete, last = data.split(b"\n")
    objects = {number: _object(line) for number, line in enumerate((*complete, last), 1)}
    sound = {number: row for number, row in objects.items() if row is not None}
    return ParsedRows(list(sound.values()), list(sound), [n for n in objects if n not in sound and n <= len(complete)])


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, not UTF-8, endless numbers, endless nesting
        return None
    return row if isinstance(row, dict) else None


def lines(numbers: Sequence[int]) -> str:
    """Line numbers as text: `line 3`, `lines 3, 7`, `lines 3, 7, 8, 9 and 12 more`."""
    shown = ", ".join(map(str, numbers[:4]))
    more = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
    return f"line{'s' * (len(numbers) > 1)} {shown}{more}"


def jsonable(value: Any) -> Any:
    """Converts a value and all values nested in it to plain Python objects; non-finite numbers become None."""
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return jsonable(value.item()) if hasattr(value, "item") else value


def metrics_line(metrics: dict[str, Any]) -> str:
    """A row of metrics.jsonl as text; non-finite metrics are left out."""
    return json.dumps({k: v for k, v in jsonable(metrics).items() if v is not None}) + "\n"
