"""What a round cost: floats sent, steps and gradients computed, and virtual seconds."""

from __future__ import annotations

import numpy as np

from raylfl.core.algorithm import State
from raylfl.core.costs import Costs, floats_in
from raylfl.core.cut import Cut
from raylfl.parts import Experiment
from raylfl.runtime.round.cohort import RoundResult
from raylfl.runtime.round.plan import Planner


class CostModel:
    """Counts what was really sent and computed in the rounds of one experiment."""

    def __init__(self, experiment: Experiment, planner: Planner, cut: Cut | None):
        self.e, self.planner, self.cut = experiment, planner, cut

    def costs(self, got: RoundResult, broadcast: State, answer: State | None) -> Costs:
        """Of one round. down: its broadcast; answer: what every client heard from was sent back, if anything."""
        algorithm, r = self.e.algorithm, got.round
        asked, steps = len(r.cohort), int(r.steps.sum())
        reports = got.reports.rows
        gradients = int(reports["gradients"].sum())
        if algorithm.pooled:
            return Costs(0, 0, 0, int(r.steps[0]), gradients)
        down_floats, up_floats, exchanged = floats_in(broadcast), got.up_floats, 0
        if self.cut is not None:  # only the client's half of the model moves; activations one way, gradients back
            down_floats = up_floats = self.cut.client_width
            exchanged = gradients * self.cut.floats_per_sample
        if algorithm.route == "ring":
            entering = min(asked, 1) * down_floats
            handed = max(asked - 1, 0) * down_floats
            return Costs(entering + exchanged, entering + exchanged, handed, steps, gradients)
        answered = floats_in(answer) * len(r.received_view.cohort) if answer is not None else 0
        fetched, norms = asked, 0
        if (
            algorithm.samples_by_norm and self.planner.replayed is None
        ):  # all available fetch, work, and send a norm each
            fetched = norms = len(reports)
            steps = self._probe_steps(got)
        uploads, downs = asked * up_floats + norms + exchanged, fetched * down_floats + answered + exchanged
        return Costs(uploads, downs, 0, steps, gradients)

    def seconds(self, got: RoundResult, costs: Costs) -> tuple[float, float]:
        """(virtual seconds of a round, those of its computation alone), by the `system` clock."""
        clock, r, world = self.e.config.system, got.round, self.e.world
        if not len(r.cohort) or self.e.algorithm.pooled:
            return 0.0, 0.0
        route = "ring" if self.e.algorithm.route == "ring" else "parallel"
        sent = costs.uplink_floats + costs.downlink_floats + costs.peer_floats
        floats = np.full(len(r.cohort), sent / len(r.cohort))
        whole = clock.round_seconds(r.steps, floats, np.zeros(len(floats)), r.cohort, route, world)
        return whole, clock.computation_seconds(r.steps, r.cohort, world)

    def _probe_steps(self, got: RoundResult) -> int:
        clients = np.sort(got.reports.rows["client"])
        return int(self.e.work.draw(got.round.index, clients, self.e.world)[0].sum())
