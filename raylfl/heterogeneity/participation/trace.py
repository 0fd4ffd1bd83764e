"""Replay of a recorded `participation.jsonl`.

Cohort, draws, received uploads and local steps come from the record; `link`, `local.steps` and an algorithm's own
sampling do not apply. A row may also hold the sampling probabilities p and failure probabilities q of its clients
(format: `raylfl.heterogeneity.trace`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from raylfl.errors import BadValue
from raylfl.heterogeneity.participation.base import PARTICIPATION, Draw, Participation
from raylfl.heterogeneity.trace import Row, read_trace
from raylfl.heterogeneity.world import RunContext


@PARTICIPATION.register("trace")
@dataclass
class Trace(Participation):
    """Replay of a recorded run: its cohorts in their order, draws, received uploads and local steps.

    path: a `participation.jsonl`; round r replays the row whose `round` is r.
    """

    path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise BadValue("path", got="nothing", need="the participation.jsonl of a run")
        self._rows = {row["round"]: row for row in read_trace(Path(self.path))}

    def row(self, r: int) -> Row:
        """The recorded row of round r. Raises BadValue if there is none."""
        if r not in self._rows:
            got, held = f"{self.path} without round {r}", _spans(sorted(self._rows))
            raise BadValue("path", got=got, need="a record of every round of the run", hint=f"the record has {held}")
        return self._rows[r]

    def check(self, world: RunContext) -> None:
        missing = [r for r in range(world.rounds) if r not in self._rows]
        if missing:
            got = f"{self.path} without rounds {_spans(missing)}"
            hint = f"the record has {_spans(sorted(self._rows))}; set rounds accordingly"
            raise BadValue("path", got=got, need=f"a record of all rounds 0..{world.rounds - 1}", hint=hint)
        for row in self._rows.values():
            beyond = [client for client in row["cohort"] if client >= world.count]
            if beyond:
                got = f"client {beyond[0]} in round {row['round']} of {self.path}"
                raise BadValue("path", got=got, need=f"clients 0..{world.count - 1} (num_clients={world.count})")

    def sample(self, r: int, world: RunContext) -> Draw:
        row = self.row(r)
        return Draw(np.array(row["cohort"], dtype=np.int64), np.array(row["draws"], dtype=np.int64))


def _spans(rounds: list[int]) -> str:
    """Ascending round numbers as text in which consecutive rounds are a span: `0..4, 7`."""
    if not rounds:
        return "no rounds"
    cuts = [0, *(np.flatnonzero(np.diff(rounds) > 1) + 1).tolist(), len(rounds)]
    ends = [(rounds[a], rounds[b - 1]) for a, b in pairwise(cuts)]
    return ", ".join(f"{a}..{b}" if a < b else f"{a}" for a, b in ends)
