"""The costs of a round: floats sent, local steps, gradients and simulated duration."""

from dataclasses import replace

import numpy as np

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.arrays import Floats, Ints
from raylfl.core.costs import Costs, RoundCosts
from raylfl.core.cut import Cut
from raylfl.experiment.parts import Experiment
from raylfl.runtime.round.plan import Planner
from raylfl.runtime.round.state import RoundResult


class CostModel:
    """Counts the traffic and computation of an experiment's rounds.

    cut: the cut of a split model; None if the model is not split.
    """

    def __init__(self, experiment: Experiment, planner: Planner, cut: Cut | None):
        self.experiment, self.planner, self.cut = experiment, planner, cut

    def of_round(self, result: RoundResult, down: int, second: int) -> RoundCosts:
        """The costs, messages and simulated duration of one round, whose uploads are not read.

        down: the number of floats of the broadcast. second: of a second one, sent to the received clients after the
        server step; 0 if there is none.
        """
        algorithm, r, reports = self.experiment.algorithm, result.round, result.reports.rows
        sampled, up = len(r.cohort), result.up_floats
        clients, steps = r.cohort, r.steps  # of all clients that train
        gradients, exchanged = int(reports["gradients"].sum()), 0
        messages: Ints | None = None  # of a graph, lost ones included: rows (sender, receiver), positions in the cohort
        if r.edges is not None:
            assert isinstance(algorithm, GraphAlgorithm)
            messages = r.edges.messages(r.cohort, algorithm.family)
        if self.cut is not None:  # the client's half of the model travels, and activations up, gradients down
            down = up = self.cut.client_width
            exchanged = gradients * self.cut.floats_per_sample
        sent = algorithm.pattern.traffic(sampled, up, down)
        uplink, downlink = sent.uplink + exchanged, sent.downlink + exchanged
        peer = sent.peer if messages is None else up * len(messages)
        downlink += second * len(r.received_view.cohort)
        if self.planner.samples_by_norm:  # all available clients receive x, train and send one norm
            clients = np.sort(reports["client"])
            steps, _ = self.planner.steps(r.index, clients)
            uplink, downlink = uplink + len(clients), downlink + (len(clients) - sampled) * down
        costs = Costs(uplink, downlink, peer, int(steps.sum()), gradients)
        ends, floats, waiting = self._links(result, costs, clients, messages)
        nodes = np.unique(ends, return_inverse=True)[1].ravel()
        of_node = np.bincount(nodes, np.repeat(floats, 2), minlength=1)  # in and out of each node; the server is one
        of_link = np.bincount(_distinct_links(ends)[1], floats, minlength=1)
        costs = replace(costs, busiest_node_floats=int(of_node.max()), busiest_link_floats=int(of_link.max()))
        seconds = self._seconds(result, costs, clients, steps, messages, ends, floats, waiting)
        return RoundCosts(costs, ends, floats, *seconds)

    def _seconds(
        self,
        result: RoundResult,
        costs: Costs,
        clients: Ints,
        steps: Ints,
        messages: Ints | None,
        ends: Ints,
        floats: Floats,
        waiting: Ints,
    ) -> tuple[float, float]:
        """The simulated duration of a round: (seconds, seconds of its computation alone); (0, 0) without clients.

        It follows from the speeds in the config group `system` and the links in `topology`. clients, steps: the clients
        that train and their local steps, [C] each. messages: of a graph (`of_round`). ends, floats, waiting: one entry
        per message, from `_links`.
        """
        clock, run = self.experiment.config.system, self.experiment.world
        if not len(clients):
            return 0.0, 0.0
        sent = costs.uplink_floats + costs.downlink_floats + costs.peer_floats
        up: Floats = np.full(len(clients), sent / len(clients))
        down: Floats = np.zeros(len(clients))
        if messages is not None:
            counts = (np.bincount(node, minlength=len(up)).astype(np.float64) for node in messages.T)
            up, down = (count * result.up_floats for count in counts)
        elif self.planner.samples_by_norm:  # the sampled clients send more than the others
            up = np.bincount(waiting, floats, minlength=len(clients)).astype(np.float64)
        waits = self._waits(messages, len(clients), ends, floats, waiting)
        seconds = clock.round_seconds(steps, up, down, clients, self.experiment.algorithm.pattern, run, waits)
        return seconds, clock.computation_seconds(steps, clients, run)

    def _links(
        self, result: RoundResult, costs: Costs, clients: Ints, messages: Ints | None
    ) -> tuple[Ints, Floats, Ints]:
        """(ends [M, 2], floats [M], waiting clients [M]) of the M messages of a round.

        clients: the clients that train [C]. ends: (sender, receiver) as client ids, -1 for the server. waiting clients:
        for each message, the position in `clients` of the client that waits for it.
        """
        r = result.round
        if messages is not None:
            return r.cohort[messages], np.full(len(messages), float(result.up_floats)), messages[:, 1]
        hops = self.experiment.algorithm.pattern.hops(clients)
        away, back, chain = hops[:, 1] == -1, hops[:, 0] == -1, (hops[:, :2] >= 0).all(axis=1)
        floats = np.zeros(len(hops))
        for which, total in ((away, costs.uplink_floats), (back, costs.downlink_floats), (chain, costs.peer_floats)):
            floats[which] = total / max(int(which.sum()), 1)
        if self.planner.samples_by_norm:  # each client sends its norm; then the sampled ones send their uploads
            floats[away] = 1.0
            uploads = hops[away & np.isin(hops[:, 0], r.cohort)]
            hops = np.concatenate([hops, uploads])
            floats = np.concatenate([floats, np.full(len(uploads), float(result.up_floats))])
        return hops[:, :2], floats, hops[:, 2]

    def _waits(self, messages: Ints | None, count: int, ends: Ints, floats: Floats, waiting: Ints) -> Floats:
        """The simulated seconds [C] for which each of the C = `count` clients that train waits for messages.

        With a server, a client waits for the sum of the times of its messages. On a graph, a node waits for the slowest
        of its links. ends, floats, waiting: one entry per message, as `_links` returns them.
        """
        waits = np.zeros(count)
        if messages is None:
            np.add.at(waits, waiting, self.experiment.topology.seconds(ends, floats, self.experiment.world))
            return waits
        links, position = _distinct_links(ends)
        carried = np.bincount(position, floats, len(links)).astype(np.float64)
        seconds = self.experiment.topology.seconds(links, carried, self.experiment.world)[position]
        for node in messages.T:
            np.maximum.at(waits, node, seconds)
        return waits


def _distinct_links(ends: Ints) -> tuple[Ints, Ints]:
    """(distinct links [L, 2], each message's position among the links [M]).

    ends: (sender, receiver) of each message [M, 2]. The ends of a link are in ascending order, whatever the direction
    of its messages.
    """
    low, high = np.minimum(ends[:, 0], ends[:, 1]), np.maximum(ends[:, 0], ends[:, 1])
    codes = low * high.max(initial=0) + high  # distinct, as low < high and low >= -1, the server
    _, first, position = np.unique(codes, return_index=True, return_inverse=True)
    return np.column_stack([low[first], high[first]]), position
