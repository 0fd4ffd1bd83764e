"""Availability processes: independent draws, constant or periodic in time, and Markov chains.

bernoulli: the "active arbitrary participation" of FOCUS (Ying, Li & Yang, NeurIPS 2025), Assumption 1, Case 2. Client
i takes part with probability p_i. The p_i need not sum to 1, and the cohort size varies.

sinusoid, staircase: the non-stationary processes of FedAWE's experiments (Xiang et al., NeurIPS 2024), in which client
i is available with probability p_i f(r); A is the amplitude and P the period in rounds. The paper computes p_i from the
client's labels; here it is any value per client.

    sinusoid    f(r) = A sin(2 pi r/P) + 1 - A          between 1 - 2A and 1
    staircase   f(r) = 1 in the first half of every P rounds, 1 - A in the second

markov: each client is a two-state Markov chain (off, on).

    P(off -> on) = p_on, P(on -> off) = p_off; stationary P(on) = p_on/(p_on + p_off)
    mean length of a stay: on 1/p_off rounds, off 1/p_on rounds

One uniform number u per round and client determines the new state: on -> on iff u < 1 - p_off, off -> on iff u < p_on.
If u is below both thresholds or above both, the new state does not depend on the old one. The state in round r
therefore follows from the last such round, without a simulation from round 0. If u is between the thresholds, the state
stays the same (p_on <= 1 - p_off) or flips (p_on > 1 - p_off).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from raylfl.components.options import Doc, Ge, Le
from raylfl.core.arrays import Bools, Floats
from raylfl.core.draws import Law
from raylfl.core.keyed import keyed_uniform
from raylfl.errors import BadValue
from raylfl.heterogeneity.participation.base import PARTICIPATION, Availability, Independent
from raylfl.heterogeneity.values import PROBABILITY, PerClient, ValuePerClient
from raylfl.heterogeneity.world import RunContext

PAPER = {"ranges": [{"fraction": 0.9, "uniform": [0.1, 0.3]}, {"fraction": 0.1, "uniform": [0.1, 0.9]}]}
_RATE = replace(PROBABILITY, phases=False)  # a chain with changing rates has no stationary start
RECENT = 3  # rounds whose states are cached: the next round is drawn before the current one is measured


@PARTICIPATION.register("full")
@dataclass
class Full(Availability):
    """Full participation: every client takes part in every round."""

    law: ClassVar[Law | None] = "independent"
    memoryless: ClassVar[bool] = True

    def available(self, r: int, world: RunContext, attempt: int = 0) -> Bools:
        return np.ones(world.count, dtype=bool)

    def marginals(self, world: RunContext, r: int) -> Floats:
        return np.ones(world.count)


@PARTICIPATION.register("bernoulli", paper="FOCUS, Case 2")
@dataclass
class Bernoulli(Independent):
    """Each client takes part with its own probability p_i, independently.

    p: the probabilities p_i, one value per client. Random values are drawn once per run, and every round inside
    `phases`. With null they are drawn as in FOCUS's experiments, from U(0.1, 0.3) for 90 % of the clients and from
    U(0.1, 0.9) for 10 %.
    """

    p: ValuePerClient = None  # the default is not PAPER itself, because a config's own mapping would be merged into it

    def __post_init__(self) -> None:
        super().__post_init__()
        self._p = PerClient(PAPER if self.p is None else self.p, "p", PROBABILITY, purpose="participation/p")

    def probabilities(self, r: int, world: RunContext) -> Floats:
        return self._p.at(r, np.arange(world.count), world)


@dataclass
class Seasonal(Bernoulli):
    """Independent availability of client i in round r with probability p_i f(r), f periodic.

    p: the probabilities p_i at the peak of the season, one value per client.
    """

    p: ValuePerClient = 0.5
    period: Annotated[int, Ge(2), Doc("the period P in rounds")] = 20

    @abstractmethod
    def season(self, r: int) -> float:
        """The factor f(r) of all availability probabilities in round r, in [0, 1]."""

    def probabilities(self, r: int, world: RunContext) -> Floats:
        return super().probabilities(r, world) * self.season(r)


@PARTICIPATION.register("sinusoid", paper="FedAWE")
@dataclass
class Sinusoid(Seasonal):
    """Independent availability in round r with probability p_i (A sin(2 pi r/P) + 1 - A), amplitude A and period P."""

    amplitude: Annotated[float, Ge(0), Le(0.5), Doc("the amplitude A, with 1 - 2A >= 0")] = 0.3

    def season(self, r: int) -> float:
        return self.amplitude * math.sin(2 * math.pi * r / self.period) + 1 - self.amplitude


@PARTICIPATION.register("staircase", paper="FedAWE")
@dataclass
class Staircase(Seasonal):
    """Independent availability with probability p_i in the first half of every period and p_i (1 - A) in the second.

    A: the amplitude.
    """

    amplitude: Annotated[float, Ge(0), Le(1), Doc("the amplitude A; the lower step is 1 - A")] = 0.6

    def season(self, r: int) -> float:
        return 1.0 if 2 * (r % self.period) < self.period else 1.0 - self.amplitude


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
        self._p_on = PerClient(p_on, "p_on", _RATE, purpose="participation/p_on")
        self._p_off = PerClient(p_off, "p_off", _RATE, purpose="participation/p_off")
        # A cache of the newest states saves steps backwards and never changes a result.
        self._recent: dict[tuple[int, int, int], Bools] = {}

    def _rates(self) -> tuple[Any, Any]:
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

        Goes back from round r until every client's state is determined (see the module), by a step with probability
        1 - |1 - p_on - p_off|.
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
