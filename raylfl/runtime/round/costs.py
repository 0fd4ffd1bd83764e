"""The costs of a round: floats sent, local steps, gradients and simulated duration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import State
from raylfl.core.arrays import Floats, Ints
from raylfl.core.costs import Costs, RoundCosts, floats_in
from raylfl.core.cut import Cut
from raylfl.core.population import Round
from raylfl.parts import Experiment
from raylfl.runtime.round.plan import Planner
from raylfl.runtime.round.state import RoundResult


class CostModel:
    """Counts the traffic and computation of an experiment's rounds.

    cut: the cut of a split model; None if the model is not split.
    """

    def __init__(self, experiment: Experiment, planner: Planner, cut: Cut | None):
        self.experiment, self.planner, self.cut = experiment, planner, cut

    def of_round(self, result: RoundResult, broadcast: State, second: State | None) -> RoundCosts:
        """The costs, messages and simulated duration of one round.

        second: the second broadcast, sent to the received clients after the server step; None if there is none.
        """
        algorithm, r, reports = self.experiment.algorithm, result.round, result.reports.rows
        sampled, steps, down, up = len(r.cohort), int(r.steps.sum()), floats_in(broadcast), result.up_floats
        gradients, exchanged = int(reports["gradients"].sum()), 0
        if self.cut is not None:  # the client's half of the model travels, and activations up, gradients down
            down = up = self.cut.client_width
            exchanged = gradients * self.cut.floats_per_sample
        sent = algorithm.pattern.traffic(sampled, up, down)
        uplink, downlink = sent.uplink + exchanged, sent.downlink + exchanged
        peer = sent.peer if r.edges is None else up * len(self._messages(r))
        if second is not None:
            downlink += floats_in(second) * len(r.received_view.cohort)
        if self.planner.samples_by_norm:  # all available clients receive x, train and send one norm
            uplink, downlink = uplink + len(reports), downlink + (len(reports) - sampled) * down
            steps = self._steps_of_available(result)
        costs = Costs(uplink, downlink, peer, steps, gradients)
        ends, floats, waiting = self._links(result, costs)
        costs = replace(costs, busiest_node_floats=_of_node(ends, floats), busiest_link_floats=_of_link(ends, floats))
        return RoundCosts(costs, ends, floats, *self._seconds(result, costs, ends, floats, waiting))

    def _seconds(
        self, result: RoundResult, costs: Costs, ends: Ints, floats: Floats, waiting: Ints
    ) -> tuple[float, float]:
        """The simulated duration of a round: (seconds, seconds of its computation alone); (0, 0) for an empty cohort.

        It follows from the speeds in the config group `system` and the links in `topology`. ends, floats, waiting: of
        each message, from `_links`.
        """
        clock, r, run = self.experiment.config.system, result.round, self.experiment.world
        if not len(r.cohort):
            return 0.0, 0.0
        sent = costs.uplink_floats + costs.downlink_floats + costs.peer_floats
        up: Floats = np.full(len(r.cohort), sent / len(r.cohort))
        down: Floats = np.zeros(len(r.cohort))
        if r.edges is not None:  # a graph: messages between nodes
            nodes = self._messages(r).T
            up, down = (np.bincount(node, minlength=len(up)).astype(np.float64) * result.up_floats for node in nodes)
        waits = self._waits(r, ends, floats, waiting)
        whole = clock.round_seconds(r.steps, up, down, r.cohort, self.experiment.algorithm.pattern, run, waits)
        return whole, clock.computation_seconds(r.steps, r.cohort, run)

    def _links(self, result: RoundResult, costs: Costs) -> tuple[Ints, Floats, Ints]:
        """(ends [M, 2], floats [M], waiting clients [M]) of the M messages of a round.

        ends: (sender, receiver) as client ids, -1 for the server. waiting clients: for each message, the position in
        the cohort of the client that waits for it.
        """
        r = result.round
        if r.edges is not None:
            sent = self._messages(r)
            return r.cohort[sent], np.full(len(sent), float(result.up_floats)), sent[:, 1]
        hops = self.experiment.algorithm.pattern.hops(r.cohort)
        away, back, chain = hops[:, 1] == -1, hops[:, 0] == -1, (hops[:, :2] >= 0).all(axis=1)
        floats = np.zeros(len(hops))
        for which, total in ((away, costs.uplink_floats), (back, costs.downlink_floats), (chain, costs.peer_floats)):
            floats[which] = total / max(int(which.sum()), 1)
        return hops[:, :2], floats, hops[:, 2]

    def _waits(self, r: Round, ends: Ints, floats: Floats, waiting: Ints) -> Floats:
        """The simulated seconds [C] for which each client of the cohort waits for messages.

        With a server, the times of all messages for which a client waits are added. On a graph, a node waits for the
        slowest of its links. ends, floats, waiting: of each message, from `_links`.
        """
        waits = np.zeros(len(r.cohort))
        if r.edges is None:
            np.add.at(waits, waiting, self.experiment.topology.seconds(ends, floats, self.experiment.world))
            return waits
        links, at = _distinct(ends)
        carried = np.bincount(at, floats, len(links)).astype(np.float64)
        seconds = self.experiment.topology.seconds(links, carried, self.experiment.world)[at]
        for node in self._messages(r).T:
            np.maximum.at(waits, node, seconds)
        return waits

    def _messages(self, r: Round) -> Ints:
        """The messages of round r, lost ones included: rows (sender, receiver) of positions in the cohort."""
        algorithm = self.experiment.algorithm
        assert r.edges is not None
        assert isinstance(algorithm, GraphAlgorithm)
        return r.edges.messages(r.cohort, algorithm.family)

    def _steps_of_available(self, result: RoundResult) -> int:
        clients = np.sort(result.reports.rows["client"])
        return int(self.experiment.work.draw(result.round.index, clients, self.experiment.world)[0].sum())


def _of_node(ends: Ints, floats: Floats) -> int:
    """The largest number of floats that one client, or the server, sends and receives in total.

    ends: (sender, receiver) of each message [M, 2]; floats: of each message [M].
    """
    return int(np.bincount(ends.ravel() + 1, np.repeat(floats, 2), 1).max())


def _of_link(ends: Ints, floats: Floats) -> int:
    """The largest number of floats on one link, in both directions.

    ends: (sender, receiver) of each message [M, 2]; floats: of each message [M].
    """
    return int(np.bincount(_distinct(ends)[1], floats, 1).max())


def _distinct(ends: Ints) -> tuple[Ints, Ints]:
    """(distinct links [L, 2], each message's position among the links [M]).

    ends: (sender, receiver) of each message [M, 2]. The ends of a link are in ascending order, whatever the direction
    of its messages.
    """
    low, high = np.minimum(ends[:, 0], ends[:, 1]), np.maximum(ends[:, 0], ends[:, 1])
    codes = low * high.max(initial=0) + high  # distinct, as low < high and low >= -1, the server
    _, first, at = np.unique(codes, return_index=True, return_inverse=True)
    return np.column_stack([low[first], high[first]]), at
