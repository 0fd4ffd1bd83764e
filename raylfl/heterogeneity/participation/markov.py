"""Markov availability: each client is a two-state Markov chain (off, on).

    P(off -> on) = p_on, P(on -> off) = p_off; stationary P(on) = p_on/(p_on + p_off)
    mean length of a stay: on 1/p_off rounds, off 1/p_on rounds

One uniform number u per round and client determines the new state: on -> on iff u < 1 - p_off, off -> on iff u < p_on.
If u is below both thresholds or above both, the new state does not depend on the old one. The state in round r
therefore follows from the last such round, without a simulation from round 0. If u is between the thresholds, the state
stays the same (p_on <= 1 - p_off) or flips (p_on > 1 - p_off).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from raylfl.core.arrays import Bools, Floats
from raylfl.core.draws import Law
from raylfl.core.keyed import keyed_uniform
from raylfl.errors import BadValue
from raylfl.heterogeneity.forms import PROBABILITY
from raylfl.heterogeneity.participation.base import PARTICIPATION, Availability
from raylfl.heterogeneity.values import PerClient, ValuePerClient
from raylfl.heterogeneity.world import RunContext

_RATE = replace(PROBABILITY, phases=False)  # a chain with changing rates has no stationary start
RECENT = 3  # rounds whose states are cached: the next round is drawn before the current one is measured


@PARTICIPATION.register("markov", paper="FedAU (Wang & Ji 2024)")
@dataclass
class Markov(Availability):
    """Each client is a two-state chain (off, on) that starts in its stationary distribution.

    It is on for 1/p_off rounds and off for 1/p_on rounds on average: p_on/(p_on + p_off) of the time.

    p_on: P(off -> on). p_off: P(on -> off). matrix: the transition matrix [[stay off, off -> on], [on -> off, stay on]]
    of all clients, with rows of sum 1, instead of p_on and p_off. on_empty: `resample` redraws an empty round r, given
    the states in round r - 1. The states in round r + 1 follow from the first draw of round r, because a round must not
    depend on redraws of earlier rounds.
    """

    p_on: ValuePerClient = None
    p_off: ValuePerClient = None
    matrix: list[list[float]] | None = None
    law: ClassVar[Law | None] = "independent"

    def __post_init__(self) -> None:
        super().__post_init__()
        p_on, p_off = self._rates()
        self._p_on = PerClient.parse(p_on, "p_on", _RATE, purpose="participation/p_on")
        self._p_off = PerClient.parse(p_off, "p_off", _RATE, purpose="participation/p_off")
        # A cache of the newest states saves steps backwards and never changes a result.
        self._recent: dict[tuple[int, int, int], Bools] = {}

    def _rates(self) -> tuple[Any, Any]:
        """The pair (p_on, p_off), from the options of these names or from `matrix`; not yet parsed."""
        if self.matrix is None:
            for key, value in (("p_on", self.p_on), ("p_off", self.p_off)):
                if value is None:
                    raise BadValue(key, got=value, need="given (both p_on and p_off), unless there is a matrix")
            return self.p_on, self.p_off
        if self.p_on is not None or self.p_off is not None:
            raise BadValue("matrix", got=self.matrix, need="left out where p_on and p_off are given")
        rows = np.array(self.matrix) if [len(row) for row in self.matrix] == [2, 2] else None
        if rows is None or (rows < 0).any() or (abs(rows.sum(axis=1) - 1) > 1e-9).any():
            need = "[[stay off, off -> on], [on -> off, stay on]], each row >= 0 with sum 1"
            raise BadValue("matrix", got=self.matrix, need=need)
        return self.matrix[0][1], self.matrix[1][0]

    def check(self, world: RunContext) -> None:
        self._chains(world)

    def available(self, r: int, world: RunContext, attempt: int = 0) -> Bools:
        p_on, p_off = self._chains(world)
        if attempt == 0:
            on = self._state(r, world, p_on, p_off)
            self._recent[world.seed, world.count, r] = on
            if len(self._recent) > RECENT:
                del self._recent[min(self._recent, key=lambda key: key[-1])]
            return on
        everyone = np.arange(world.count)
        u = keyed_uniform(world.seed, "availability", r, everyone, lane=attempt)
        if r == 0:
            return u < _stationary(p_on, p_off)
        return u < np.where(self._state(r - 1, world, p_on, p_off), 1 - p_off, p_on)

    def marginals(self, world: RunContext, r: int) -> Floats | None:
        """The stationary P(on) of all N clients [N]; None with `resample`: a redraw depends on the previous round."""
        return _stationary(*self._chains(world)) if self.on_empty == "skip" else None

    def _chains(self, world: RunContext) -> tuple[Floats, Floats]:
        """The transition probabilities p_on and p_off of all N clients, [N] each.

        Raises BadValue if lists do not fit N, or if both are 0 for a client.
        """
        everyone = np.arange(world.count)
        p_on, p_off = self._p_on.at(0, everyone, world), self._p_off.at(0, everyone, world)
        stuck = np.flatnonzero((p_on == 0) & (p_off == 0))
        if len(stuck):
            got = f"0 beside p_off=0 (client {stuck[0]})"
            need = "above 0, or p_off above 0: otherwise the client never changes its state"
            raise BadValue("p_on", got=got, need=need, hint="for constant availability use bernoulli with p 0 or 1")
        return p_on, p_off

    def _state(self, r: int, world: RunContext, p_on: Floats, p_off: Floats) -> Bools:
        """Whether each of the N clients is on in round r, bool [N].

        Goes back from round r, one round a step, until every client's state is determined (see the module's docstring).
        A step determines a client's state with probability 1 - |1 - p_on - p_off|. p_on, p_off: [N].
        """
        both, either = np.minimum(p_on, 1 - p_off), np.maximum(p_on, 1 - p_off)
        on, flipped = np.zeros(world.count, dtype=bool), np.zeros(world.count, dtype=bool)
        open_ = np.arange(world.count)  # clients whose state is not determined yet
        for t in range(r, -1, -1):
            if (known := self._recent.get((world.seed, world.count, t))) is not None:
                on[open_] = known[open_] ^ flipped[open_]
                break
            u = keyed_uniform(world.seed, "availability", t, open_)
            if t == 0:
                on[open_] = (u < _stationary(p_on, p_off)[open_]) ^ flipped[open_]
                break
            decided = (u < both[open_]) | (u >= either[open_])
            done, rest = open_[decided], open_[~decided]
            on[done] = (u[decided] < both[done]) ^ flipped[done]
            flipped[rest] ^= (p_on > 1 - p_off)[rest]
            open_ = rest
            if not len(open_):
                break
        return on


def _stationary(p_on: Floats, p_off: Floats) -> Floats:
    return p_on / (p_on + p_off)
