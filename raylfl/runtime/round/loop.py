"""The federated round, from the draw of the cohort to the metrics.

Local work and evaluations are run by a `Backend`; nothing here depends on Ray.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.algorithm import Algorithm, ServerState, State, normalise, overrides
from raylfl.core.costs import floats_in
from raylfl.core.deferred import Deferred
from raylfl.core.population import Round
from raylfl.core.reduce import finite_rows, weighted_sum
from raylfl.core.returned import update_clients_of
from raylfl.core.transfer import to_host
from raylfl.core.unchanged import Unchanged
from raylfl.errors import NonFinite
from raylfl.experiment.parts import BUFFERS, MOMENTS, UNSEEN, Experiment
from raylfl.heterogeneity.trace import Row
from raylfl.runtime.faults import Fault
from raylfl.runtime.round.blocks import GraphDispatch
from raylfl.runtime.round.costs import CostModel
from raylfl.runtime.round.dispatch import Dispatch, ServerDispatch, calls
from raylfl.runtime.round.measure import Measurements
from raylfl.runtime.round.plan import Planner, check_sampling
from raylfl.runtime.round.state import Average, FederationState, Metrics, RoundResult
from raylfl.runtime.workers.backend import Backend, Executor

MEASURED = "eval.diversity and eval.drift measure the updates of single clients"


class RoundRecord(NamedTuple):
    """The records of a finished round."""

    metrics: Metrics
    row: Row  # of participation.jsonl
    graph_line: str | None  # of topology.jsonl; None for methods with a server


class UnderWay(NamedTuple):
    """A round in progress: its generator, and the bytes that it has sent and received so far."""

    parts: Generator[None, None, RoundRecord]
    traffic: Counter[str]


@dataclass(kw_only=True, eq=False)
class Federation:
    """A federated run, executed round by round; `state` is its state after the newest committed round.

    costs, measurements: None in a simulation, which has neither. keeps_client_state: whether clients keep a state from
    one round to the next. averages_buffers: whether the server averages the module's buffers (such as running
    statistics of batch normalisation) and broadcasts the means. fault: called with (phase, round) at the start of each
    phase of a round, for tests. committed: false from the server step of a round until the caller has recorded it.
    """

    algorithm: Algorithm
    backend: Executor
    planner: Planner
    dispatch: Dispatch
    costs: CostModel | None
    measurements: Measurements | None
    state: FederationState
    keeps_client_state: bool
    averages_buffers: bool = False
    fault: Fault = lambda phase, r: None
    committed: bool = field(default=True, init=False)
    unchanged: Unchanged = field(init=False)

    def __post_init__(self) -> None:
        self.unchanged = Unchanged(self.algorithm)

    @staticmethod
    def of(experiment: Experiment, backend: Backend, fault: Fault = lambda phase, r: None) -> Federation:
        """The federation of an experiment, before its first round.

        Raises BadConfig if the method samples clients itself and the config gives no number of draws.
        """
        check_sampling(experiment)
        algorithm, setup, planner = experiment.algorithm, experiment.setup, Planner(experiment)
        evaluated, population, initial = experiment.config.eval, experiment.world.population, backend.initial()
        count, width = population.count, len(initial.x)
        rows = MEASURED if evaluated.diversity or evaluated.drift else None
        device = None if planner.depends_on_server else backend.server_device
        dispatch = dispatch_of(algorithm, backend, setup.runtime, count, width, rows, experiment.minimiser, device)
        state = dispatch.initial_state(initial, population)
        if setup.optimizer_state != "averaged":
            state.moments = state.moments[:0]
        if (rho := evaluated.average) is not None:
            state.average = Average.of(initial.x, rho)
        return Federation(
            algorithm=algorithm,
            backend=backend,
            planner=planner,
            dispatch=dispatch,
            costs=CostModel(experiment, planner, backend.cut),
            measurements=Measurements(experiment, backend, planner, dispatch),
            state=state,
            keeps_client_state=bool(setup.fresh_state(initial._replace(x=initial.x[:1]))),
            averages_buffers=len(initial.buffers) > 0 and not setup.local_buffers,
            fault=fault,
        )

    def round(self, last: bool) -> Generator[None, None, RoundRecord]:
        """Runs the round with number `state.round`; a generator that returns the records of the round.

        last: whether it is the last round of the run, which is evaluated unless `eval.every` is 0.

        The generator yields twice, so that `rounds` can overlap rounds: first while the local work is in progress, then
        while the evaluations are. `state` does not change before all uploads are received.
        """
        algorithm, state, r = self.algorithm, self.state, self.state.round

        # Draw: the cohort, its local steps, and the uploads that will be received.
        self.fault("draw", r)
        server = state.server
        broadcast = self.dispatch.broadcast(server)
        if self.averages_buffers:
            broadcast = {**broadcast, BUFFERS: state.buffers}
        if len(state.moments):
            broadcast = {**broadcast, MOMENTS: state.moments}
        planned = self.planner.plan(r, server)

        # Local work, in parallel or along the ring.
        self.fault("train", r)
        work = self.dispatch.send(planned, broadcast, state)
        yield

        # Collect the uploads.
        self.fault("collect", r)
        result = self.planner.sample_by_norms(work.result(), server)
        del work  # frees the broadcast and the uploads

        # Server step: x_{r+1} from the received uploads; without a server, nodes mix their rows on the workers.
        self.fault("aggregate", r)
        self.committed = False  # a Table changes in place, and the round is not recorded yet
        server_after, info = self.dispatch.step(server, result)
        if not finite_rows(server_after["x"][None]).all():
            raise NonFinite(
                f"the server's parameters are not finite after round {r}; last finite mean loss "
                f"{state.last_finite_loss:.6g} (lower algorithm.gamma or local.lr)"
            )
        answered = self._update_clients(server_after, result)
        self.unchanged.check(r)

        # Commit.
        self.fault("commit", r)
        self._commit(result, server_after, answered)

        # Measure, after the step; evaluations are in flight while the next round starts.
        measured, completed = Deferred.of(Metrics()), result.round
        if self.measurements is not None:
            measured = self.measurements.of_round(result, state, server, info, last)
        second = 0 if answered is None else floats_in(algorithm.second_broadcast(server_after))
        counted = floats_in(broadcast), second
        # the uploads, unless the measurements need them
        result, broadcast, answered = replace(result, uploads={}, sums=None, client_states=[]), {}, None
        yield
        if self.costs is not None:
            costs = self.costs.of_round(result, *counted)
            state.costs, state.links = state.costs.add(costs.costs), state.links.add(costs.ends, costs.floats)
            state.seconds += costs.seconds
            state.computation_seconds += costs.computation_seconds
        return RoundRecord(measured.result(), self.planner.row(completed), self.planner.graph_line(completed))

    def collect(self) -> FederationState:
        """The state for a checkpoint; for a method without a server, it includes the states of all nodes."""
        return replace(self.state, server=self.dispatch.gathered(self.state.server))

    def resume(self, state: FederationState) -> None:
        """Replaces `state` by the state in a checkpoint, which has the form that `collect` returns."""
        self.state = replace(state, server=self.dispatch.scattered(state.server))

    def rounds(self, until: int) -> Iterator[RoundRecord]:
        """Yields the records of each round from `state.round` to `until` - 1.

        While a round is yielded, `state` is the state after that round. Two rounds overlap: the local work of round
        r + 1 starts before round r is evaluated and yielded. If the start of round r + 1 raises, round r is yielded
        first.
        """
        stamp = time.perf_counter()
        earlier: UnderWay | None = None
        while self.state.round < until or earlier is not None:
            current, failure = None, None
            if self.state.round < until:
                current = UnderWay(self.round(last=self.state.round == until - 1), Counter())
                try:
                    self._proceed(current)
                except Exception as error:
                    failure = error
            if earlier is not None:
                record, now = self._proceed(earlier), time.perf_counter()
                assert record is not None, "a round pauses twice"
                record.metrics.update(earlier.traffic)
                record.metrics["time/round"], stamp = now - stamp, now
                yield record
            self.committed = True
            if failure is not None:
                raise failure
            if current is not None:
                if self.state.round + 1 < until:
                    # while the local work is in progress
                    self.planner.plan_ahead(self.state.round + 1, self.state.server)
                self._proceed(current)
            earlier = current

    def _proceed(self, current: UnderWay) -> RoundRecord | None:
        """Runs a round up to its next pause; at the end of the round, returns its records.

        Rounds overlap, so the backend's counters are read at both ends of each part of a round. Bytes between two
        parts, such as those of a checkpoint, belong to no round.
        """
        self.backend.traffic()
        record: RoundRecord | None = None
        try:
            next(current.parts)
        except StopIteration as ended:
            record = ended.value
        current.traffic.update(self.backend.traffic())
        return record

    def _update_clients(self, server: ServerState, result: RoundResult) -> State | None:
        """The received clients' states [R, ...] after a second broadcast; None for algorithms without one.

        The second broadcast follows the server step; there is none without received uploads. server: the server state
        after that step.
        """
        received = result.round.received_view
        if not (len(received.cohort) and overrides(self.algorithm, "update_clients")):
            return None
        states = self.backend.get(result.client_states)
        rows = {name: torch.cat([state[name] for state in states]) for name in states[0]}
        unseen = {name: rows.pop(name) for name in UNSEEN if name in rows}
        answered = update_clients_of(self.algorithm, server, result.visible_uploads, rows, received)
        return None if answered is None else {**answered, **unseen}

    def _commit(self, result: RoundResult, server: ServerState, answered: State | None) -> None:
        """Applies all changes of the round to `state`, in place.

        server: the server state after the round; answered: from `_update_clients`.
        """
        state, received = self.state, result.round.received_view.cohort
        handles = result.client_states
        if answered is not None:
            handles = [self.backend.put({k: v[i : i + 1] for k, v in answered.items()}) for i in range(len(received))]
        if handles and self.keeps_client_state:
            state.clients.update(zip(received.tolist(), handles, strict=True))
            state.changed.update(received.tolist())
        sums = result.sums or {}
        if BUFFERS in sums:
            state.buffers = sums[BUFFERS].clone()
        elif len(buffers := result.uploads.get(BUFFERS, ())):
            state.buffers = weighted_sum(result.uploads[BUFFERS], np.full(len(buffers), 1.0 / len(buffers)))
        if MOMENTS in sums:
            state.moments = sums[MOMENTS].clone()
        elif MOMENTS in result.uploads:
            state.moments = _mean_moments(result.uploads[MOMENTS], result.round.received_view, state.moments)
        state.server = server
        if state.average is not None:
            state.average = state.average.with_(to_host(server["x"]))
        losses = result.reports.logs(received)["loss"]
        if len(losses) and np.isfinite(mean := float(losses.mean())):
            state.last_finite_loss = mean
        state.round += 1


def dispatch_of(
    algorithm: Algorithm,
    backend: Executor,
    runtime: RuntimeConfig,
    count: int,
    width: int,
    rows: str | None = None,
    optimum: Tensor | None = None,
    device: torch.device | None = None,
) -> Dispatch:
    """The dispatch of a method, with or without a server.

    count: the number of clients N; width: the number of parameters d; rows: as in `Dispatch`; optimum: x* = argmin F
    [d] if known, for metrics of nodes; device: as in `Dispatch`.
    """
    if isinstance(algorithm, GraphAlgorithm):
        return GraphDispatch(algorithm, backend, runtime, count, calls(count, width, runtime, backend), optimum)
    return ServerDispatch(algorithm, backend, runtime, rows, device)


def _mean_moments(rows: Tensor, received: Round, default: Tensor) -> Tensor:
    """The mean [m] of the received clients' optimizer states, weighted by the importance weights w_i.

    Clients without a local step do not count. rows: the states [R, m]; a single row, as in a ring, is the mean itself.
    default: the state [m] to return if no client took a step.
    """
    if len(rows) == 1:
        return rows[0].clone()
    took = received.steps > 0
    return weighted_sum(rows[took], normalise(received.weights[took])) if took.any() else default
