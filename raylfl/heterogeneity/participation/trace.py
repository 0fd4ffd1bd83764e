"""Replay of a recorded `participation.jsonl`.

Cohort, draws, received uploads and local steps come from the record; `link`, `local.steps` and an algorithm's own
sampling do not apply. A row may also hold the sampling probabilities p and failure probabilities q of its clients
(format: `raylfl.heterogeneity.trace`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from raylfl.components.options import Doc
from raylfl.errors import BadValue
from raylfl.heterogeneity.participation.base import PARTICIPATION, Draw, Participation
from raylfl.heterogeneity.trace import Row, read_trace
from raylfl.heterogeneity.world import RunContext


@PARTICIPATION.register("trace")
@dataclass
class Trace(Participation):
    """Replay of a recorded run: its cohorts in their order, draws, received uploads and local steps.

    `on_empty` has no effect: a row without clients is replayed as an empty round.
    """

    path: Annotated[str, Doc("the participation.jsonl of a run; round r replays the row whose `round` is r")]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rows = {row["round"]: row for row in read_trace(Path(self.path).expanduser())}

    def row(self, r: int) -> Row:
        """The recorded row of round r. Raises BadValue if there is none."""
        if r not in self._rows:
            hint = f"the record has {len(self._rows)} rounds; set rounds accordingly"
            got = f"{self.path} without round {r}"
            raise BadValue("path", got=got, need="a record of every round of the run", hint=hint)
        return self._rows[r]

    def check(self, world: RunContext) -> None:
        for r in range(world.rounds):
            beyond = [client for client in self.row(r)["cohort"] if client >= world.count]
            if beyond:
                got = f"client {beyond[0]} in round {r} of {self.path}"
                raise BadValue("path", got=got, need=f"clients 0..{world.count - 1} (num_clients={world.count})")

    def attempt(self, r: int, world: RunContext, attempt: int) -> Draw:
        row = self.row(r)
        return Draw(np.array(row["cohort"], dtype=np.int64), np.array(row["draws"], dtype=np.int64))
