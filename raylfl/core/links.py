"""Totals of messages and floats along each link of a run, in each direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raylfl.core.arrays import Bools, Floats, Ints

SERVER = -1  # the number of the server as an end of a link
HEAD = "from,to,messages,floats\n"


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Links:
    """The numbers of messages and floats along L directed links, [L] each; links without messages are left out.

    codes: the ends (from, to) of each link as one integer, ascending [L]; `ends` decodes them.
    """

    codes: Ints = field(default_factory=_none)
    messages: Ints = field(default_factory=_none)
    floats: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def ends(self) -> Ints:
        """The ends (from, to) of each link [L, 2]: client ids, or -1 for the server."""
        return np.column_stack([self.codes >> 32, self.codes & 0xFFFFFFFF]) - 1

    def add(self, ends: Ints, floats: Floats) -> Links:
        """The totals with M further messages, given by their ends (from, to) [M, 2] and floats [M].

        >>> two = Links().add(np.array([[-1, 0], [0, -1], [-1, 0]]), np.array([5.0, 3.0, 5.0]))
        >>> two.ends.tolist(), two.messages.tolist(), two.floats.tolist()
        ([[-1, 0], [0, -1]], [2, 1], [10.0, 3.0])
        """
        codes = (ends[:, 0] + 1 << 32) + ends[:, 1] + 1
        distinct, inverse, count = np.unique(codes, return_inverse=True, return_counts=True)
        places: Ints = np.asarray(np.searchsorted(self.codes, distinct))
        new: Bools = np.append(self.codes, -1)[places] != distinct
        every, messages, carried = self.codes, self.messages.copy(), self.floats.copy()
        if new.any():  # inserted: sorting all links again would take most of a round after many rounds
            every = np.insert(every, places[new], distinct[new])
            messages, carried = np.insert(messages, places[new], 0), np.insert(carried, places[new], 0.0)
            places = places + np.cumsum(new) - new
        messages[places] += count
        carried[places] += np.bincount(inverse.ravel(), floats, len(distinct))
        return Links(every, messages, carried)

    def busiest(self) -> tuple[int, int, float] | None:
        """(end, other end, floats) of the link with the most floats in both directions together; None without links."""
        if not len(self.codes):
            return None
        pairs, positions = np.unique(np.sort(self.ends, axis=1), axis=0, return_inverse=True)
        carried = np.bincount(positions.ravel(), self.floats)
        k = int(carried.argmax())
        return int(pairs[k, 0]), int(pairs[k, 1]), float(carried[k])

    def csv(self) -> str:
        """The content of edges.csv: a header, and one line per directed link."""
        rows = zip(self.ends.tolist(), self.messages.tolist(), self.floats.tolist(), strict=True)
        lines = (f"{end_name(a)},{end_name(b)},{messages},{whole(floats)}\n" for (a, b), messages, floats in rows)
        return HEAD + "".join(lines)

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """The arrays `codes`, `messages` and `floats` by name, for a checkpoint."""
        return {"codes": self.codes, "messages": self.messages, "floats": self.floats}

    @staticmethod
    def of_columns(columns: Mapping[str, NDArray[np.generic]]) -> Links:
        """The totals from the arrays that the method `columns` returned. Raises ValueError for invalid arrays."""
        links = Links(**{name: np.asarray(values) for name, values in columns.items()})
        lengths = {len(values) for values in links.columns().values()}
        kinds = [values.dtype for values in links.columns().values()]
        if len(lengths) != 1 or kinds != [np.int64, np.int64, np.float64] or (np.diff(links.codes) <= 0).any():
            raise ValueError("its record of the floats on links is damaged")
        return links


def end_name(client: int) -> str:
    """An end of a link as text: the client's id, or `server`."""
    return "server" if client == SERVER else str(client)


def whole(floats: float) -> str:
    """A number of floats as text, without a decimal point if it is an integer (a mean over clients may not be)."""
    return str(int(floats)) if floats == int(floats) else repr(floats)
