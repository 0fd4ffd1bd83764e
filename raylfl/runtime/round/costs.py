"""The costs of a round: floats sent, local steps, gradients and virtual seconds."""

from __future__ import annotations

import numpy as np

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import State
from raylfl.core.costs import Costs, floats_in
from raylfl.core.cut import Cut
from raylfl.core.population import Floats, Ints, Round
from raylfl.parts import Experiment
from raylfl.runtime.round.plan import Planner
from raylfl.runtime.round.state import RoundResult


class CostModel:
    """Counts what was sent and computed in the rounds of one experiment."""

    def __init__(self, experiment: Experiment, planner: Planner, cut: Cut | None):
        self.e, self.planner, self.cut = experiment, planner, cut

    def of_round(self, result: RoundResult, broadcast: State, second: State | None) -> Costs:
        """The costs of one round; second: the second broadcast, to every received client, if there was one."""
        algorithm, r, reports = self.e.algorithm, result.round, result.reports.rows
        sampled, steps, down, up = len(r.cohort), int(r.steps.sum()), floats_in(broadcast), result.up_floats
        gradients, exchanged = int(reports["gradients"].sum()), 0
        if self.cut is not None:  # only the client's half of the model moves; activations up, gradients down
            down = up = self.cut.client_width
            exchanged = gradients * self.cut.floats_per_sample
        sent = algorithm.topology.traffic(sampled, up, down)
        uplink, downlink = sent.uplink + exchanged, sent.downlink + exchanged
        peer = sent.peer if r.edges is None else up * len(self._messages(r))
        if second is not None:
            downlink += floats_in(second) * len(r.received_view.cohort)
        if self.planner.samples_by_norm:  # all available clients receive x, train and send one norm
            uplink, downlink = uplink + len(reports), downlink + (len(reports) - sampled) * down
            steps = self._steps_of_available(result)
        return Costs(uplink, downlink, peer, steps, gradients)

    def seconds(self, result: RoundResult, costs: Costs) -> tuple[float, float]:
        """(virtual seconds of a round, virtual seconds of its computation alone), by the `system` clock."""
        clock, r, run = self.e.config.system, result.round, self.e.world
        if not len(r.cohort):
            return 0.0, 0.0
        topology = self.e.algorithm.topology
        sent = costs.uplink_floats + costs.downlink_floats + costs.peer_floats
        up: Floats = np.full(len(r.cohort), sent / len(r.cohort))
        down: Floats = np.zeros(len(r.cohort))
        if r.edges is not None:  # what each node sends and receives
            ends = self._messages(r).T
            up, down = (np.bincount(end, minlength=len(up)).astype(np.float64) * result.up_floats for end in ends)
        whole = clock.round_seconds(r.steps, up, down, r.cohort, topology, run)
        whole += self.e.topology.latency * topology.hops(len(r.cohort))
        return whole, clock.computation_seconds(r.steps, r.cohort, run)

    def _messages(self, r: Round) -> Ints:
        """The messages between the working nodes of a graph, lost ones included: (from, to) [M, 2]."""
        algorithm = self.e.algorithm
        assert r.edges is not None
        assert isinstance(algorithm, GraphAlgorithm)
        return r.edges.messages(r.cohort, algorithm.family)

    def _steps_of_available(self, result: RoundResult) -> int:
        clients = np.sort(result.reports.rows["client"])
        return int(self.e.work.draw(result.round.index, clients, self.e.world)[0].sum())
