"""Who there is (Population) and who did what in one round (Round): plain numbers, nothing of width d."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Population:
    """The N clients of a run.

    sizes: n_i, training samples of client i, int64 [N]. weights: w_i >= 0, float64 [N], sum 1.
    """

    sizes: Ints
    weights: Floats

    @property
    def count(self) -> int:
        """N."""
        return len(self.sizes)

    @staticmethod
    def of(sizes: Ints, weights: str = "uniform") -> Population:
        """weights: `uniform` (1/N) or `data_size` (n_i / n)."""
        sizes = np.asarray(sizes, dtype=np.int64)
        w = np.full(len(sizes), 1.0 / len(sizes)) if weights == "uniform" else sizes / sizes.sum()
        return Population(sizes, w)


@dataclass(frozen=True)
class Round:
    """Round r as it was drawn, and what arrived. All lists align with `cohort`, in the order in which it ran.

    cohort: distinct client ids [C]; draws: s_i [C]; received: bool [C]; steps: K_i [C];
    batch_sizes: samples a local step [C]; lr: eta of this round; a_norm: |a_i|_1 [C].
    failure: q [C]; inclusion: p [C], the sampling probabilities of a draw with replacement (sum 1 over all N).
    Either of the last two is nan where it is not known. conditions: what was known of all N beforehand.
    """

    index: int
    cohort: Ints
    draws: Ints
    received: Bools
    steps: Ints
    batch_sizes: Ints
    lr: float
    population: Population
    a_norm: Floats
    failure: Floats
    inclusion: Floats
    asked: Round | None = None  # of an `received_view`: the whole round
    system: SystemInfo | None = None

    @property
    def received_view(self) -> Round:
        """The same round as the server sees it: only the received clients, in the same order."""
        return self._only(np.asarray((self.asked or self).received, dtype=bool))

    @property
    def lost(self) -> Round:
        """The clients that were asked and whose upload did not arrive."""
        return self._only(~np.asarray((self.asked or self).received, dtype=bool))

    def _only(self, keep: Bools) -> Round:
        whole = self.asked or self
        if keep.all():
            return replace(whole, asked=whole)
        rows = ("cohort", "draws", "received", "steps", "batch_sizes", "a_norm", "failure", "inclusion")
        return replace(whole, asked=whole, **{name: getattr(whole, name)[keep] for name in rows})

    @property
    def total_draws(self) -> int:
        """M = sum of s_i over all who were asked, also in the `received_view`."""
        return int((self.asked or self).draws.sum())

    @property
    def weights(self) -> Floats:
        """w_i of the cohort [C]."""
        return self.population.weights[self.cohort]


@dataclass(frozen=True)
class SystemInfo:
    """What is known of a round before anybody is asked: the server's view when it samples or calibrates.

    failure: q [N]; a_norm: |a_i|_1 [N]; available: bool [N]; lr: the configured eta of this round;
    size: M, the number of draws asked for.
    """

    index: int
    population: Population
    failure: Floats
    a_norm: Floats
    available: Bools
    lr: float
    size: int
