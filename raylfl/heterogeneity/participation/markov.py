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
from typing import ClassVar

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

    p_on: P(off -> on). p_off: P(on -> off).
    """

    p_on: ValuePerClient = None
    p_off: ValuePerClient = None
    law: ClassVar[Law | None] = "independent"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("p_on", "p_off"):
            if getattr(self, key) is None:
                raise BadValue(key, got=None, need="given: both p_on and p_off")
        self._p_on = PerClient.parse(self.p_on, "p_on", _RATE, purpose="participation/p_on")
        self._p_off = PerClient.parse(self.p_off, "p_off", _RATE, purpose="participation/p_off")
        # A cache of the newest states saves steps backwards and never changes a result.
        self._recent: dict[tuple[int, int, int], Bools] = {}

    def check(self, world: RunContext) -> None:
        self._chains(world)

    def available(self, r: int, world: RunContext) -> Bools:
        on = self._state(r, world, *self._chains(world))
        self._recent[world.seed, world.count, r] = on
        if len(self._recent) > RECENT:
            del self._recent[min(self._recent, key=lambda key: key[-1])]
        return on

    def marginals(self, world: RunContext, r: int) -> Floats | None:
        """The stationary P(on) of all N clients [N]."""
        return _stationary(*self._chains(world))

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
