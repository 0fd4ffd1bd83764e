"""A round as it is drawn, before anybody works: cohort, draws, links, local work. A function of (seed, r)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from raylfl.core.algorithm import ServerState, overrides
from raylfl.core.keyed import keyed
from raylfl.core.local import a_norm
from raylfl.core.population import Floats, Ints, Population, Round, SystemInfo
from raylfl.errors import BadConfig
from raylfl.heterogeneity.participation.base import Draw, Independent, Sampler
from raylfl.heterogeneity.participation.full import Full
from raylfl.heterogeneity.participation.trace import Trace
from raylfl.heterogeneity.trace import Row, make_row
from raylfl.heterogeneity.world import RunContext
from raylfl.parts import Experiment


class Planner:
    """Draws rounds for one experiment."""

    def __init__(self, experiment: Experiment):
        self.e = experiment
        self.everyone = np.arange(experiment.world.count, dtype=np.int64)
        self.replayed = experiment.participation if isinstance(experiment.participation, Trace) else None
        n = int(experiment.world.population.sizes.sum())
        pooled = Population(np.array([n], dtype=np.int64), np.ones(1))
        self.pooled_world = RunContext(experiment.world.seed, pooled, experiment.world.rounds)
        self._ahead: tuple[Round, Floats | None] | None = None

    def lr(self, r: int) -> float:
        """eta of round r as configured, before any calibration."""
        schedule = self.e.rule.schedule
        return self.e.rule.lr * (schedule.over_rounds(r) if schedule else 1.0)

    def system(self, r: int) -> SystemInfo:
        """What is known of all N clients before anybody is asked."""
        e, world = self.e, self.e.world
        available = None if self.replayed else e.participation.eligible(r, world)
        return SystemInfo(
            r,
            world.population,
            self._failure(r, self.everyone),
            self._norms(self._steps(r, self.everyone)[0], self.lr(r)),
            np.ones(world.count, dtype=bool) if available is None else available,
            self.lr(r),
            e.participation.cohort_size(world) if isinstance(e.participation, Sampler) else world.count,
        )

    @property
    def independent(self) -> bool:
        """Whether each client is asked independently of the others, so that M is random."""
        return isinstance(self.e.participation, (Independent, Full)) and not self._samples()

    def marginals(self, c: SystemInfo, server: ServerState) -> Floats | None:
        """E[s_i] of the round that `c` describes, [N], by the process or by the method's own p; None: not known."""
        e = self.e
        if e.algorithm.samples_by_norm:
            return None
        if self._samples():
            p = e.algorithm.probabilities(server, c)
            if p is not None:
                return c.size * p
        return e.participation.marginals(e.world, c.index)

    def draw(self, r: int, server: ServerState) -> tuple[Draw, Floats | None]:
        """(who is asked, the p [N] they were sampled by, where the method itself samples)."""
        e = self.e
        if self.replayed:
            row = self.replayed.row(r)
            p = np.asarray(row["p"]) if "p" in row else None
            return e.participation.draw(r, e.world), p
        if e.algorithm.pooled or e.algorithm.full_participation(server, r):
            return Draw.once(self.everyone), None
        p = e.algorithm.probabilities(server, self.system(r)) if self._samples() else None
        if p is not None:
            return self.sample(p, r), p
        return e.participation.draw(r, e.world), None

    def sample(self, p: Floats, r: int) -> Draw:
        """M draws with replacement from an algorithm's own p [N]."""
        assert isinstance(self.e.participation, Sampler)
        return self.e.participation.draw_from(p, r, self.e.world)

    def _samples(self) -> bool:
        return overrides(self.e.algorithm, "probabilities")

    def plan(self, r: int, server: ServerState) -> tuple[Round, Floats | None]:
        """Round r (who is asked, how much they work, whose upload will arrive), and the p [N] of `draw`."""
        if self._ahead is not None and self._ahead[0].index == r:
            return self._ahead
        drawn, p = self.draw(r, server)
        return self.round_of(r, drawn, p), p

    def prefetch(self, r: int) -> None:
        """Have round r at hand when it is asked for, where it does not depend on the rounds before."""
        algorithm = self.e.algorithm
        if self.replayed or not (
            algorithm.samples_by_norm or self._samples() or overrides(algorithm, "full_participation")
        ):
            with suppress(Exception):  # it comes again when the round is asked for, and the one before is not lost
                self._ahead = self.plan(r, {})

    def round_of(self, r: int, drawn: Draw, p: Floats | None) -> Round:
        """The round with this cohort: its order (a ring's is a fresh random one), work, links and eta."""
        e = self.e
        cohort, draws = drawn.cohort, drawn.draws
        if e.algorithm.route == "ring" and not self.replayed:
            order = keyed(e.world.seed, "ring", r).permutation(len(cohort))
            cohort, draws = cohort[order], draws[order]
        steps, batch_sizes = self._steps(r, cohort)
        if self.replayed:
            row = self.replayed.row(r)
            steps = np.asarray(row["steps"], dtype=np.int64)
            received = np.asarray(row["received"], dtype=bool)
        else:
            received = ~e.link.lost(r, cohort, e.world)
        if e.algorithm.pooled:
            received = np.ones(len(cohort), dtype=bool)
        lr = e.algorithm.step_length(self.system(r)) if getattr(e.algorithm, "calibrate", False) else self.lr(r)
        with_replacement = p if p is not None else self._inclusion(r)
        return Round(
            r,
            cohort,
            draws,
            received,
            steps,
            batch_sizes,
            lr,
            e.world.population,
            self._norms(steps, lr),
            self._failure(r, cohort),
            with_replacement[cohort] if with_replacement is not None else np.full(len(cohort), np.nan),
            system=self.system(r) if e.algorithm.wants_system else None,
        )

    def row(self, r: Round, p: Floats | None = None) -> Row:
        """The line of participation.jsonl; with p where the method sampled, with q where links change."""
        dynamic = getattr(self.e.link, "dynamic", False)
        q = self._failure(r.index, self.everyone) if dynamic else None
        return make_row(r.index, r.cohort, r.draws, r.received, r.steps, p, q)

    def _inclusion(self, r: int) -> Floats | None:
        """p [N] of a participation process that samples with replacement."""
        e = self.e
        if not getattr(e.participation, "replace", False):
            return None
        marginals = e.participation.marginals(e.world, r)
        return None if marginals is None else marginals / marginals.sum()

    def _steps(self, r: int, clients: Ints) -> tuple[Ints, Ints]:
        e = self.e
        if e.algorithm.pooled:
            steps, batch = e.work.draw(r, np.zeros(1, dtype=np.int64), self.pooled_world)
            steps, batch = np.repeat(steps, len(clients)), np.repeat(batch, len(clients))
        else:
            steps, batch = e.work.draw(r, clients, e.world)
        common = e.algorithm.draw_local_steps(keyed(e.world.seed, "steps", r))
        if common is not None:
            steps = np.where(steps > 0, common, 0)
        return (np.minimum(steps, 1) if e.algorithm.one_step else steps), batch

    def _norms(self, steps: Ints, lr: float) -> Floats:
        return a_norm(steps, self.e.rule, lr, self.e.algorithm.proximal)

    def _failure(self, r: int, clients: Ints) -> Floats:
        row = self.replayed.row(r) if self.replayed else {}
        if "q" in row:
            return np.asarray(row["q"], dtype=np.float64)[clients]
        return self.e.link.failure(r, clients, self.e.world)


def dropped(r: Round, clients: set[int]) -> Round:
    """The round with the uploads of these clients counted as lost."""
    keep = np.array([int(c) not in clients for c in r.cohort], dtype=bool)
    return replace(r, received=np.asarray(r.received, dtype=bool) & keep)


def check_sampling(experiment: Experiment) -> None:
    """Raises BadConfig where the method samples clients itself but no number of draws M is configured."""
    samples = overrides(experiment.algorithm, "probabilities")
    if samples and not isinstance(experiment.participation, (Sampler, Trace)):
        resolved = experiment.config.resolved
        raise BadConfig(
            f"participation.name={resolved['participation']['name']}, but must be one with a size "
            f"(uniform, say): algorithm {resolved['algorithm']['name']} draws participation.size clients itself; "
            "an availability process goes into participation.availability"
        )
