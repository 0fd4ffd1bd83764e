"""The gaps in the ledger of an experiment, in words: cells and seeds without a published run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from papers.choice import plain
from papers.ledger import Row


def by_cell(rows: Iterable[Row], *keys: str) -> dict[tuple[str, ...], set[int]]:
    """The seeds of the rows by cell: values of these keys, as `plain` text -> seeds of the runs with these values."""
    found: dict[tuple[str, ...], set[int]] = {}
    for row in rows:
        found.setdefault(tuple(plain(row.cell[key]) for key in keys), set()).add(row.seed)
    return found


def gaps(wanted: Mapping[str, tuple[str, ...]], seeds: Mapping[tuple[str, ...], set[int]], each: int) -> list[str]:
    """Sentences about cells without a run, and about cells with fewer seeds than `each`.

    wanted: name of a cell -> its key in `seeds`, which is the result of `by_cell`.
    """
    none = [name for name, place in wanted.items() if place not in seeds]
    few: dict[int, list[str]] = {}
    for name, place in wanted.items():
        if 0 < len(seeds.get(place, ())) < each:
            few.setdefault(len(seeds[place]), []).append(name)
    told = [f"no run of {listed(none)}"] if none else []
    return told + [f"{count} of {each} seeds of {listed(names)}" for count, names in sorted(few.items())]


def listed(names: Sequence[str], most: int = 12) -> str:
    """The names, separated by semicolons; only the number of names if there are more than `most`."""
    return "; ".join(names) if len(names) <= most else f"{len(names)} cells"
