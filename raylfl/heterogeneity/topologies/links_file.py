"""Text files of graphs: words of their lines, and the latency and bandwidth of single edges.

A file of links has one edge per line, such as `0 1 0.05 2000`: two clients in either order, the latency in seconds, and
the bandwidth in floats per second (`inf`: infinite). Text after a # is a comment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from raylfl.core.arrays import Ints
from raylfl.errors import BadValue

KEY = "links"
Links = Mapping[tuple[int, int], tuple[float, float]]  # edge, smaller client first -> (latency, bandwidth)


def read_links(path: str) -> Links:
    """The edges in the file `path`. Raises BadValue for an unreadable file, a bad number, or a repeated edge."""
    links: dict[tuple[int, int], tuple[float, float]] = {}
    with reading(KEY, path, "a text file with lines of two client numbers, seconds and floats a second"):
        rows = [(int(a), int(b), float(seconds), float(rate)) for a, b, seconds, rate in words(path)]
    for a, b, seconds, rate in rows:
        edge = min(a, b), max(a, b)
        for bad, need in (
            (edge[0] < 0, "client numbers from 0"),
            (not 0 <= seconds < math.inf, "seconds of at least 0"),
            (not rate > 0, "floats a second above 0"),
            (edge in links, "one line for an edge"),
        ):
            if bad:
                raise _refused(path, edge, need)
        links[edge] = seconds, rate
    return links


def check_links(links: Links, path: str, count: int, pairs: Ints | None) -> None:
    """Checks that the edges of a file are between clients 0..count-1 and are edges of the graph; raises BadValue.

    pairs: the E edges of a constant graph [E, 2]; None: the graph changes and is not checked.
    """
    known = None if pairs is None else {(min(pair), max(pair)) for pair in pairs.tolist()}
    for edge in links:
        if edge[1] >= count:
            raise _refused(path, edge, f"edges between clients 0..{count - 1}")
        if known is not None and edge not in known:
            raise _refused(path, edge, "edges of the graph")


def _refused(path: str, edge: tuple[int, int], need: str) -> BadValue:
    return BadValue(KEY, got=f"{path} with edge {edge[0]} {edge[1]}", need=need)


@contextmanager
def reading(key: str, path: str, need: str) -> Iterator[None]:
    """A context manager that turns OSError and ValueError into BadValue for the option `key`.

    path, need: the file that is read and its expected content, for the message.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise BadValue(key, got=path, need=f"{need}: {error}") from None


def words(path: str) -> list[list[str]]:
    """The words of each line of a text file, without comments (text after a #) and empty lines."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [found for line in lines if (found := line.partition("#")[0].split())]
