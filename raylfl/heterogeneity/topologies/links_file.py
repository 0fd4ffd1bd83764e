"""Latency and bandwidth of single edges, from a text file with one edge per line, such as `0 1 0.05 2000`.

The four numbers are two clients in either order, the latency in seconds, and the bandwidth in floats per second (`inf`:
infinite). Text after a # is a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.errors import BadValue

KEY = "links"


@dataclass(frozen=True)
class EdgeLinks:
    """The L edges in a file, with their latency and bandwidth.

    ends: client ids [L, 2], the smaller one first. latency: in seconds [L]. bandwidth: in floats per second [L].
    """

    path: str
    ends: Ints
    latency: Floats
    bandwidth: Floats

    @staticmethod
    def read(path: str) -> EdgeLinks:
        """The edges in the file `path`. Raises BadValue for an unreadable file, a bad number, or a repeated edge."""
        with reading(KEY, path, "a text file with lines of two client numbers, seconds and floats a second"):
            rows = [(int(a), int(b), float(seconds), float(rate)) for a, b, seconds, rate in words(path)]
        ends = np.sort(np.array([row[:2] for row in rows], dtype=np.int64).reshape(-1, 2), axis=1)
        latency, bandwidth = np.array([row[2:] for row in rows]).reshape(-1, 2).T
        for bad, need in (
            (ends[:, 0] < 0, "client numbers from 0"),
            (~((latency >= 0) & np.isfinite(latency)), "seconds of at least 0"),
            (~(bandwidth > 0), "floats a second above 0"),
        ):
            if bad.any():
                raise BadValue(KEY, got=f"{path} with edge {_text(ends[bad][0])}", need=need)
        found, times = np.unique(ends, axis=0, return_counts=True)
        if (times > 1).any():
            raise BadValue(KEY, got=f"{path} with edge {_text(found[times > 1][0])} twice", need="one line for an edge")
        return EdgeLinks(path, ends, latency, bandwidth)

    def check(self, count: int, pairs: Ints | None) -> None:
        """Checks that the file's edges are between clients 0..count-1 and are edges of the graph.

        pairs: the E edges of a constant graph [E, 2]; None: the graph changes and is not checked. Raises BadValue.
        """
        beyond = self.ends[:, 1] >= count
        if beyond.any():
            need = f"edges between clients 0..{count - 1}"
            raise BadValue(KEY, got=f"{self.path} with edge {_text(self.ends[beyond][0])}", need=need)
        if pairs is not None:
            strange = ~np.isin(_codes(self.ends, count), _codes(pairs, count))
            if strange.any():
                raise BadValue(
                    KEY, got=f"{self.path} with edge {_text(self.ends[strange][0])}", need="edges of the graph"
                )

    def of(self, ends: Ints, count: int) -> tuple[Bools, Ints]:
        """Finds M pairs of clients among the edges of the file.

        Returns a mask of the found pairs, bool [M], and for each found pair the index of its edge in `self.ends`. ends:
        the pairs [M, 2], the two clients in either order; -1: a server, never in the file. count: the number of clients
        of the run.
        """
        if not len(self.ends):
            return np.zeros(len(ends), dtype=bool), np.zeros(0, dtype=np.int64)
        own, wanted = _codes(self.ends, count), _codes(ends, count)
        order = np.argsort(own)
        at = np.searchsorted(own, wanted, sorter=order).clip(max=len(own) - 1)
        known: Bools = own[order[at]] == wanted
        return known, order[at[known]]


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


def _codes(ends: Ints, count: int) -> Ints:
    """A number for each of M pairs of clients [M], the same in either order; -1 for a pair with a server.

    ends: the two client ids of each pair [M, 2], -1 for a server. count: the number of clients.
    """
    low, high = np.sort(ends, axis=1).T
    return np.where(low < 0, -1, low * count + high)


def _text(edge: Ints) -> str:
    return f"{edge[0]} {edge[1]}"
