"""Rows of `participation.jsonl`: sampled clients, draws, received uploads and local steps of each round.

The file has one JSON object per round, each on its own line:

    {"round": 0, "cohort": [3, 5, 9], "draws": [1, 2, 1], "received": [true, false, true], "steps": [4, 2, 2]}

Entry k of each of the four lists is about the same client; the clients are in the order in which they work. A row may
also have `p` and `q`, two more such lists: the clients' probabilities in one draw of a method that samples the clients
itself, and the failure probabilities of their links if these can change over the rounds. A row has no entry for a
client that was not sampled, so its size does not depend on N. The text of a row is a function of its content: reading
and writing a file gives the same bytes.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from raylfl.errors import BadValue
from raylfl.heterogeneity.values import MOST, PROBABILITY

Row = dict[str, Any]
_ALIGNED = ("cohort", "draws", "received", "steps")
_PROBABILITIES = ("p", "q")  # aligned with the others, in some rows


def parse(text: str) -> Any:
    """The value of a JSON text, as plain Python objects. Raises ValueError that names the fault."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)} occurs twice")
    return content


def make_row(
    round_: int,
    cohort: ArrayLike,
    draws: ArrayLike,
    received: ArrayLike,
    steps: ArrayLike,
    p: ArrayLike | None = None,
    q: ArrayLike | None = None,
) -> Row:
    """A row of `participation.jsonl`, as plain Python numbers.

    All lists have one entry for each sampled client. p, q: None to omit them from the row.
    """
    lists = {"cohort": cohort, "draws": draws, "received": received, "steps": steps, "p": p, "q": q}
    dtypes: dict[str, type] = {"received": np.bool_, "p": np.float64, "q": np.float64}
    entries = {key: np.asarray(x, dtypes.get(key, np.int64)).tolist() for key, x in lists.items() if x is not None}
    row: Row = {"round": int(round_), **entries}
    problem = row_problem(row)
    assert problem is None, problem
    return row


def encode_row(row: Row) -> str:
    """A row as a line of JSON with its newline."""
    return json.dumps(row, allow_nan=False) + "\n"


def write_trace(path: Path, rows: Iterable[Row]) -> None:
    """Writes the rows to a file, one per line and in their order; an existing file is replaced."""
    path.write_text("".join(map(encode_row, rows)), encoding="utf-8")


def read_trace(path: Path) -> list[Row]:
    """All rows of a participation.jsonl, in the order of the file.

    Raises BadValue (key `path`) that names file, line and fault; two rows of one round are a fault.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue("path", got=path, need=f"a readable participation.jsonl: {error}") from None
    rows: dict[int, Row] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = parse(line)
            problem = row_problem(row) if isinstance(row, dict) else "not an object"
        except ValueError as error:
            problem = f"not JSON ({error})"
        if problem is None and row["round"] in rows:
            problem = f"a second row of round {row['round']}"
        if problem is not None:
            raise BadValue("path", got=f"{path}, line {number}: {problem}", need="rows of a participation.jsonl")
        rows[row["round"]] = row
    return list(rows.values())


def row_problem(row: Row) -> str | None:
    """A description of the first fault of a row; None for a valid row."""
    missing = [key for key in ("round", *_ALIGNED) if key not in row]
    if missing:
        return f"no {', '.join(missing)}"
    if not _whole([row["round"]], 0):
        return f"round is {row['round']!r}"
    lists = [row[key] for key in _ALIGNED]
    if set(map(type, lists)) != {list} or len(set(map(len, lists))) != 1:
        return f"{', '.join(_ALIGNED)} are not lists of one length"
    if not _whole(row["cohort"], 0) or len(set(row["cohort"])) != len(row["cohort"]):
        return "cohort is not a list of distinct client ids"
    for key, least in (("draws", 1), ("steps", 0)):
        if not _whole(row[key], least):
            return f"{key} is not a list of whole numbers, at least {least}"
    if not set(map(type, row["received"])) <= {bool}:
        return "received is not a list of true and false"
    for key in _PROBABILITIES:
        if key in row and not (isinstance(row[key], list) and all(x in PROBABILITY for x in row[key])):
            return f"{key} is not a list of probabilities"
        if key in row and len(row[key]) != len(row["cohort"]):
            return f"{key} has {len(row[key])} entries, not one per sampled client"
    return None


def _whole(values: list[Any], least: int) -> bool:
    whole = set(map(type, values)) <= {int}  # True does not count as a number
    return whole and min(values, default=least) >= least and max(values, default=least) <= MOST
