"""The costs of a round: floats sent, local steps, gradients and simulated duration."""

import numpy as np

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.arrays import Floats, Ints
from raylfl.core.costs import SERVER, Costs, RoundCosts
from raylfl.core.cut import Cut
from raylfl.core.pattern import from_server, to_server
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
        r, reports = result.round, result.reports.rows
        clients, steps = r.cohort, r.steps  # of all clients that train
        if self.planner.samples_by_norm:
            clients = np.sort(reports["client"])
            steps, _ = self.planner.steps(r.index, clients)
        hops, floats = self._messages(result, clients, steps, down, second)
        kinds = 2 * (hops[:, 0] == SERVER) + (hops[:, 1] == SERVER)  # from client to client, up, down
        peer, uplink, downlink = map(int, np.bincount(kinds, floats, 3))
        places = hops[:, :2]
        low, high = np.minimum(*places.T), np.maximum(*places.T)
        codes = low * high.max(initial=0) + high  # of the links, whatever the direction of their messages
        _, links, link_of = np.unique(codes, return_index=True, return_inverse=True)
        of_link: Floats = np.asarray(np.bincount(link_of, floats, minlength=1), dtype=np.float64)
        loads = np.bincount(places.ravel() + 1, floats.repeat(2), len(clients) + 1)
        of_node: Floats = np.asarray(loads, dtype=np.float64)  # in and out of the server and of each client
        work = int(steps.sum()), int(reports["gradients"].sum())
        costs = Costs(uplink, downlink, peer, *work, int(of_node.max()), int(of_link.max()))
        ends = np.append(clients, SERVER)[places]
        if not len(clients):
            return RoundCosts(costs, ends, floats, 0.0, 0.0)
        clock, world, topology = self.experiment.config.system, self.experiment.world, self.experiment.topology
        waits: Floats | float = 0.0  # the seconds for which each client waits for messages
        if r.edges is None:  # for the sum of the times of its messages
            carried = np.asarray(np.bincount(hops[:, 2], floats, len(clients)), dtype=np.float64)
            if not topology.instant:
                seconds = topology.seconds(ends, floats, world)
                waits = np.asarray(np.bincount(hops[:, 2], seconds, len(clients)), dtype=np.float64)
        else:  # for the slowest of its links
            carried = of_node[1:]
            if not topology.instant:
                seconds = topology.seconds(ends[links], of_link[: len(links)], world)
                waits = np.zeros(len(clients))
                np.maximum.at(waits, places.ravel(), seconds[link_of].repeat(2))
        computation = clock.computation(steps, clients, world)
        duration = clock.round_seconds(computation, carried, self.experiment.algorithm.pattern, waits)
        return RoundCosts(costs, ends, floats, duration, float(computation.sum()))

    def _messages(self, result: RoundResult, clients: Ints, steps: Ints, down: int, second: int) -> tuple[Ints, Floats]:
        """The M messages of a round as `ExchangePattern.hops` gives them [M, 3], and the floats of each [M].

        clients, steps: the C clients that train and their local steps. down, second: as in `of_round`. A message
        without floats is not sent.
        """
        pattern, r, up = self.experiment.algorithm.pattern, result.round, result.up_floats
        if r.edges is not None:  # the messages of a graph, lost ones included
            assert isinstance(self.experiment.algorithm, GraphAlgorithm)
            edges = r.edges.messages(r.cohort, self.experiment.algorithm.family)[:, [0, 1, 1]]
            return edges, np.full(len(edges), float(up))
        if self.cut is not None:  # the client's half of the model travels
            down = up = self.cut.client_width
        model, first = pattern.hops(len(clients)), 1 if self.planner.samples_by_norm else up
        uploads = (model[:, 1] == SERVER) & (not pattern.sequential)  # a client of a sequence passes the model on
        parts: list[tuple[Ints, Ints | int]] = [(model, np.where(uploads, first, down))]
        if second:
            parts.append((from_server(np.flatnonzero(np.isin(clients, r.received_view.cohort))), second))
        if self.planner.samples_by_norm:  # after their norms, the sampled clients send their uploads
            parts.append((to_server(np.flatnonzero(np.isin(clients, r.cohort))), up))
        if self.cut is not None:  # activations up and gradients down, in every local step
            owner = np.arange(len(clients)).repeat(steps)
            number = np.arange(len(owner)) - (steps.cumsum() - steps)[owner]  # of the step
            total = result.reports.rows["gradients"] * self.cut.floats_per_sample
            share = (total[owner] + number) // steps[owner]  # whole numbers, of sum `total` for each client
            parts += [(to_server(owner), share), (from_server(owner), share)]
        hops = np.concatenate([rows for rows, _ in parts])
        floats = np.concatenate([np.full(len(rows), size, dtype=np.float64) for rows, size in parts])
        return hops[floats > 0], floats[floats > 0]
