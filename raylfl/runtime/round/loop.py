"""The round loop: draw, local work, server step, commit, measure. It knows a Backend, not Ray.

A round is a transaction: nothing of `FederationState` changes until all of a round's uploads are in and the
server step is done; then everything changes together, and only then is the round written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import ServerState, State, overrides
from raylfl.core.costs import Costs
from raylfl.core.reduce import finite_rows, weighted_sum
from raylfl.core.threads import one_thread
from raylfl.errors import NonFinite
from raylfl.heterogeneity.trace import Row
from raylfl.parts import BUFFERS, Experiment
from raylfl.runtime.faults import Fault
from raylfl.runtime.round.cohort import CohortRunner, Probed, RoundResult
from raylfl.runtime.round.costs import CostModel
from raylfl.runtime.round.measure import Measurements, Metrics
from raylfl.runtime.round.plan import Planner, check_sampling
from raylfl.runtime.workers.backend import Backend, Deferred, Handle

T = TypeVar("T")


@dataclass
class FederationState:
    """All that the next round needs; what a checkpoint holds.

    server: the algorithm's; buffers [b]: the module's (averaged); clients: handles of the client states of those
    who took part; changed: clients whose state is newer than the last checkpoint; seconds: the virtual clock.
    """

    round: int
    server: ServerState
    buffers: Tensor
    clients: dict[int, Handle] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    costs: Costs = field(default_factory=Costs)
    seconds: float = 0.0
    computation_seconds: float = 0.0
    last_finite_loss: float = float("nan")


class Federation:
    """One run of one experiment on one backend, round by round."""

    def __init__(self, experiment: Experiment, backend: Backend, fault: Fault | None = None):
        check_sampling(experiment)
        self.e, self.backend = experiment, backend
        self.planner = Planner(experiment)
        self.cohorts = CohortRunner(experiment, backend, self.planner)
        self.accounts = CostModel(experiment, self.planner, backend.cut)
        self.fault: Fault = fault or (lambda phase, r: None)
        x, buffers = backend.initial()
        self.x0 = x
        self.state = FederationState(0, experiment.algorithm.init_server(x, experiment.world.population), buffers)
        self.measurements = Measurements(experiment, backend, self.planner)
        self.whole = True  # the state is that after the last round handed out: no round has begun to change it

    def rounds(self, until: int) -> Iterator[tuple[Metrics, Row]]:
        """(metrics, participation row) of each round from `state.round` on; the state is then after that round.

        A round is measured, and handed out, while the workers are at the next one, and the one after that is drawn, if
        it does not depend on what they send: the server's work between two rounds is what the next broadcast needs.
        """
        stamp = time.perf_counter()
        measured: Deferred[tuple[Metrics, Row]] | None = None
        while self.state.round < until or measured is not None:
            work = _or_later(self._begin) if self.state.round < until else None
            if measured is not None:
                metrics, row = measured()
                measured = None
                now = time.perf_counter()
                metrics["time/round"], stamp = now - stamp, now
                yield metrics, row
            self.whole = True
            if work is not None:
                if self.state.round + 1 < until:
                    self.planner.prefetch(self.state.round + 1)
                measured = self._end(work, last=self.state.round == until - 1)

    def _begin(self) -> Callable[[], tuple[State, Probed]]:
        """Draw the next round's cohort and send its work out; (broadcast, what came back) when called."""
        r, algorithm, server = self.state.round, self.e.algorithm, self.state.server
        self.fault("draw", r)
        broadcast = algorithm.broadcast(server)
        if len(self.state.buffers) and not self.e.setup.local_buffers:
            broadcast = {**broadcast, BUFFERS: self.state.buffers}
        if algorithm.samples_by_norm and self.planner.replayed is None:
            probe = self.cohorts.probe(r, broadcast, self.state)
            self.fault("train", r)
            return lambda: (broadcast, probe())
        planned, p = self.planner.plan(r, server)
        self.fault("train", r)
        work = self.cohorts.send(planned, broadcast, self.state)
        return lambda: (broadcast, (work(), p))

    def _end(self, work: Callable[[], tuple[State, Probed]], last: bool) -> Deferred[tuple[Metrics, Row]]:
        """Wait for the round's work, step, commit; then its metrics and row, when called."""
        r, server = self.state.round, self.state.server
        self.fault("collect", r)
        broadcast, (got, p) = work()
        self.fault("aggregate", r)
        self.whole = False  # Tables change in place, and the round is not written down yet
        after, info, answered = self._server_step(got)
        self.fault("commit", r)
        self._commit(got, after, answered, broadcast)
        measured = self.measurements.of_round(got, self.state, server, info, last)
        return lambda: (measured(), self.planner.row(got.round, p))

    def _server_step(self, got: RoundResult) -> tuple[ServerState, dict[str, float], State | None]:
        algorithm, server, r = self.e.algorithm, self.state.server, got.round
        arrived = r.received_view
        if not len(arrived.cohort):
            return algorithm.empty_round(server, r), {}, None
        uploads = {k: v for k, v in got.uploads.items() if k != BUFFERS}
        with one_thread():
            after, info = algorithm.server_step(server, uploads, arrived)
        if not finite_rows(after["x"][None]).all():
            raise NonFinite(
                f"the server's parameters are not finite after round {r.index}; last finite mean loss "
                f"{self.state.last_finite_loss:.6g} (lower algorithm.gamma or local.lr)"
            )
        return after, info, self._acknowledge(after, uploads, got)

    def _acknowledge(self, after: ServerState, uploads: State, got: RoundResult) -> State | None:
        if not overrides(self.e.algorithm, "update_clients"):
            return None
        states = self.backend.get(got.client_states)
        client_states = {k: torch.cat([s[k] for s in states]) for k in states[0]}
        buffers = (
            {BUFFERS: client_states.pop(BUFFERS)} if BUFFERS in client_states else {}
        )  # the algorithm knows nothing of them
        answered = self.e.algorithm.update_clients(after, uploads, client_states, got.round.received_view)
        return None if answered is None else {**answered, **buffers}

    def _commit(self, got: RoundResult, after: ServerState, answered: State | None, broadcast: State) -> None:
        state, r = self.state, got.round
        arrived = r.received_view.cohort.tolist()
        if answered is not None:
            handles = [self.backend.put({k: v[i : i + 1] for k, v in answered.items()}) for i in range(len(arrived))]
        else:
            handles = got.client_states
        if handles and self.keeps_client_state:
            state.clients.update(zip(arrived, handles, strict=True))
            state.changed.update(arrived)
        if BUFFERS in got.uploads and len(got.uploads[BUFFERS]):
            state.buffers = weighted_sum(
                got.uploads[BUFFERS], np.full(len(got.uploads[BUFFERS]), 1.0 / len(got.uploads[BUFFERS]))
            )
        state.server = after
        answer = None if answered is None else self.e.algorithm.second_broadcast(after)
        costs = self.accounts.costs(got, broadcast, answer)
        state.costs = state.costs.add(costs)
        whole, computation = self.accounts.seconds(got, costs)
        state.seconds += whole
        state.computation_seconds += computation
        losses = got.reports.heard(r.received_view.cohort)
        if len(losses) and np.isfinite(mean := float(losses.mean())):
            state.last_finite_loss = mean
        state.round += 1

    @property
    def keeps_client_state(self) -> bool:
        """Whether clients have a state of their own between rounds."""
        return bool(self.e.setup.fresh_state(self.x0[:1], self.state.buffers))


def _or_later(begin: Callable[[], Callable[[], T]]) -> Callable[[], T]:
    """What `begin` returns; where it raises, the error comes when that is called, and the round before is not lost."""
    try:
        return begin()
    except Exception as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail
