"""The costs of a round: floats sent, local steps, gradients and simulated duration."""

import numpy as np

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.arrays import Floats
from raylfl.core.costs import SERVER, Costs, RoundCosts
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
        algorithm, r, reports, up = self.experiment.algorithm, result.round, result.reports.rows, result.up_floats
        sampled, clients, steps = len(r.cohort), r.cohort, r.steps  # clients, steps: of all clients that train
        gradients, exchanged = int(reports["gradients"].sum()), 0
        if self.cut is not None:  # the client's half of the model travels, and activations up, gradients down
            down = up = self.cut.client_width
            exchanged = gradients * self.cut.floats_per_sample
        uplink, downlink, peer = (0, 0, 0) if r.edges is not None else algorithm.pattern.traffic(sampled, up, down)
        uplink, downlink = uplink + exchanged, downlink + exchanged + second * len(r.received_view.cohort)
        if self.planner.samples_by_norm:  # all available clients receive x, train and send one norm
            clients = np.sort(reports["client"])
            steps, _ = self.planner.steps(r.index, clients)
            uplink, downlink = uplink + len(clients), downlink + (len(clients) - sampled) * down
        if r.edges is not None:  # the messages of a graph, lost ones included
            assert isinstance(algorithm, GraphAlgorithm)
            hops = r.edges.messages(r.cohort, algorithm.family)[:, [0, 1, 1]]
            floats, peer = np.full(len(hops), float(up)), up * len(hops)
        else:
            hops = algorithm.pattern.hops(len(clients))
            kinds = 2 * (hops[:, 0] == SERVER) + (hops[:, 1] == SERVER)  # from client to client, up, down
            floats = (np.array([peer, uplink, downlink]) / np.maximum(np.bincount(kinds, minlength=3), 1))[kinds]
            if self.planner.samples_by_norm:  # each client sends its norm; then the sampled ones send their uploads
                floats[kinds == 1] = 1.0
                uploads = hops[kinds == 1]
                uploads = uploads[np.isin(clients[uploads[:, 0]], r.cohort)]
                hops = np.concatenate([hops, uploads])
                floats = np.concatenate([floats, np.full(len(uploads), float(result.up_floats))])
        places = hops[:, :2]
        low, high = np.minimum(*places.T), np.maximum(*places.T)
        codes = low * high.max(initial=0) + high  # of the links, whatever the direction of their messages
        _, links, link_of = np.unique(codes, return_index=True, return_inverse=True)
        of_link: Floats = np.asarray(np.bincount(link_of, floats, minlength=1), dtype=np.float64)
        loads = np.bincount(places.ravel() + 1, floats.repeat(2), len(clients) + 1)
        of_node: Floats = np.asarray(loads, dtype=np.float64)  # in and out of the server and of each client
        costs = Costs(uplink, downlink, peer, int(steps.sum()), gradients, int(of_node.max()), int(of_link.max()))
        ends = np.append(clients, SERVER)[places]
        if not len(clients):
            return RoundCosts(costs, ends, floats, 0.0, 0.0)
        clock, world, topology = self.experiment.config.system, self.experiment.world, self.experiment.topology
        waits: Floats | float = 0.0  # the seconds for which each client waits for messages
        if r.edges is None and not topology.instant:  # for the sum of the times of its messages
            seconds = topology.seconds(ends, floats, world)
            waits = np.asarray(np.bincount(hops[:, 2], seconds, len(clients)), dtype=np.float64)
        elif not topology.instant:  # for the slowest of its links
            seconds = topology.seconds(ends[links], of_link[: len(links)], world)
            waits = np.zeros(len(clients))
            np.maximum.at(waits, places.ravel(), seconds[link_of].repeat(2))
        unequal = r.edges is not None or self.planner.samples_by_norm  # some clients then send more than others
        carried = of_node[1:] if unequal else (uplink + downlink + peer) / len(clients)
        computation = clock.computation(steps, clients, world)
        duration = clock.round_seconds(computation, carried, algorithm.pattern, waits)
        return RoundCosts(costs, ends, floats, duration, float(computation.sum()))
