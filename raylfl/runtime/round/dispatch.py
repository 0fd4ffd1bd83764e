"""The local work of a round and the step after it: the interface (`Dispatch`), and the methods with a server."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, normalise
from raylfl.core.chunked_matrix import as_matrix
from raylfl.core.costs import floats_in
from raylfl.core.deferred import Deferred
from raylfl.core.oracle import GradientMode
from raylfl.core.partial_sums import SumPlan, in_subtrees
from raylfl.core.population import Population, Round
from raylfl.core.returned import broadcast_of, step_of
from raylfl.core.summing import Summing, coefficients_of, rows_reason
from raylfl.core.threads import one_thread
from raylfl.core.transfer import all_to_host
from raylfl.errors import ClientFailed, NonFinite
from raylfl.experiment.parts import BUFFERS, MEAN, MOMENTS, UNSEEN, Initial
from raylfl.runtime.round.device_server import DeviceServer, on_host
from raylfl.runtime.round.plan import drop_uploads
from raylfl.runtime.round.state import FederationState, RoundResult
from raylfl.runtime.workers.backend import Executor, Handle
from raylfl.runtime.workers.task import ClientReports, Task, TaskResult, order_of


class Dispatch(ABC):
    """The interface to a round's local work and the step after it, for methods with a server or on a graph of nodes.

    ways: `GradientMode` (how the gradient of a local step was computed) -> the number of gradients so far. rows: the
    reason why the server needs each upload as a row of its own; None if sums of uploads may replace them. on_device:
    keeps the server's vectors on `device` if workers add up the uploads; None: they are on the host.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        backend: Executor,
        runtime: RuntimeConfig,
        rows: str | None = None,
        device: torch.device | None = None,
    ):
        self.algorithm, self.backend, self.runtime, self.rows = algorithm, backend, runtime, rows
        self.ways = Counter[GradientMode]()
        self.on_device = DeviceServer(None if rows or rows_reason(algorithm) else device)

    def initial_state(self, initial: Initial, population: Population) -> FederationState:
        """The state of a run before its first round."""
        server = self.scattered(self.algorithm.init_server(initial.x, population))
        return FederationState(0, server, initial.buffers, moments=initial.moments)

    def scattered(self, server: ServerState) -> ServerState:
        """The server state as it is between rounds, from the one in a checkpoint; default: the same."""
        return server

    def gathered(self, server: ServerState) -> ServerState:
        """The server state for a checkpoint, with all tensors in this process: the inverse of `scattered`."""
        return server

    def broadcast(self, server: ServerState) -> State:
        """The algorithm's broadcast."""
        return broadcast_of(self.algorithm, server)

    def models(self, server: ServerState) -> Tensor | None:
        """The parameters [N, d] of the nodes' models; None for methods with a server."""
        return None

    @abstractmethod
    def send(self, r: Round, broadcast: State, state: FederationState) -> Deferred[RoundResult]:
        """Submits the local work of round r from this broadcast to the backend; returns the deferred result.

        state: the state before the round. Raises ClientFailed or NonFinite if a client fails and the config does not
        drop failures.
        """

    @abstractmethod
    def step(self, server: ServerState, result: RoundResult) -> tuple[ServerState, Info]:
        """Takes the step after the local work; returns (new server state, the algorithm's metrics).

        server: the server state before the round. The step is also taken if no upload was received. Metrics whose names
        do not begin with `algo/` are not returned, but added to `result.metrics`.
        """

    def uploads(self, result: RoundResult) -> State:
        """The uploads, in cohort order (on a graph: the nodes' rows after the local work); used by tests only."""
        return result.uploads

    def _failures(self, r: Round, reports: ClientReports, last_loss: float) -> list[str]:
        """One line for each dropped upload, that is for each client that failed or returned non-finite values.

        Raises ClientFailed or NonFinite if `runtime.on_client_error` or `runtime.on_nonfinite` is `fail`. last_loss:
        the last finite mean loss of the run, shown for clients that had no finite loss.
        """
        events = []
        for report in reports.bad:
            client, last = int(report["client"]), float(report["last_loss"])
            if error := reports.errors.get(client):
                reason, attempts = error.strip().splitlines()[-1], 1 + self.runtime.client_retries
                text = f"client {client} failed in round {r.index} after {attempts} attempts: {reason}"
                if self.runtime.on_client_error == "fail":
                    raise ClientFailed(f"{text} (runtime.on_client_error=drop continues without it)\n{error}")
            else:
                last = last if np.isfinite(last) else last_loss
                loss = f"last finite loss {last:.6g}" if np.isfinite(last) else "no loss was finite so far"
                what = f"not finite: {reports.reasons[client]}"
                text = f"client {client} sent a non-finite update in round {r.index}; {loss}; {what}"
                if self.runtime.on_nonfinite == "fail":
                    raise NonFinite(f"{text} (lower local.lr, set local.clip_norm, or runtime.on_nonfinite=drop)")
            events.append(text)
        return events


class ServerDispatch(Dispatch):
    """The local work and the server step of methods with a server.

    If `rows` is None and the algorithm reads only sums over clients, workers add up the uploads; otherwise they send
    each upload as a row. The new parameters have the same bits in either case.
    """

    def scattered(self, server: ServerState) -> ServerState:
        return self.on_device.placed(server)

    def gathered(self, server: ServerState) -> ServerState:
        return on_host(server)

    def broadcast(self, server: ServerState) -> State:
        return self.on_device.call("broadcast", super().broadcast, server)

    def send(self, r: Round, broadcast: State, state: FederationState) -> Deferred[RoundResult]:
        """As in `Dispatch`. If workers have added up an upload that must be dropped, all work is repeated with rows."""
        need_rows = self.rows or rows_reason(self.algorithm)
        plan = None
        if need_rows is None:
            of_sums = partial(sum_plan, self.algorithm, broadcast, r=r)
            plan = self.on_device.call("sum_coefficients", of_sums, state.server)
        tasks, last_loss = self._tasks(r, plan, state), state.last_finite_loss
        run = self.backend.run_ring if self.algorithm.pattern.sequential else self.backend.run
        work = run(tasks, broadcast)

        def collected(results: Sequence[TaskResult]) -> RoundResult:
            result = self._collect(r, results, plan, last_loss)
            if plan is None or result.sums is not None:
                self.ways.update(result.reports.ways)
                return result
            self.rows = "an upload was dropped after it had been added up, which may happen again"
            return self.send(r, broadcast, state).result()

        return work.then(collected)

    def step(self, server: ServerState, result: RoundResult) -> tuple[ServerState, Info]:
        algorithm, call, received = self.algorithm, self.on_device.call, result.round.received_view
        with one_thread():
            if not len(received.cohort):
                return call("empty_round", lambda server: algorithm.empty_round(server, result.round), server), {}
            if result.sums is None:
                returned = algorithm.server_step(self.gathered(server), result.visible_uploads, received)
                server, info = step_of(algorithm, "server_step", returned, server["x"])
                return self.scattered(server), info
            assert isinstance(algorithm, Summing)
            sums = {name: vector for name, vector in result.sums.items() if name not in UNSEEN}
            name, step = "server_step_from_sums", algorithm.server_step_from_sums
            returned = call(name, lambda server, sums: step(server, sums, received), server, sums)
            return step_of(algorithm, name, returned, server["x"])

    def _tasks(self, r: Round, plan: SumPlan | None, state: FederationState) -> list[Task]:
        """The tasks of the cohort: one per client if clients run one by one, otherwise vectorised ones of similar size.

        plan: as in `_collect`. The clients of a vectorised task are neighbours in the tree of sums, so that few partial
        sums replace their uploads. The tasks do not depend on the number of workers.
        """
        count = len(r.cohort)
        if self.backend.one_by_one or self.algorithm.pattern.sequential:
            parts = list(np.arange(count)[:, None])
        else:
            parts = in_subtrees(count, calls(count, len(state.server["x"]), self.runtime, self.backend))
        return [Task.of(r, rows, plan, state.clients) for rows in parts]

    def _collect(self, r: Round, results: Sequence[TaskResult], plan: SumPlan | None, last_loss: float) -> RoundResult:
        """The round result, from the results of all tasks; its uploads are the received ones, in cohort order.

        plan: the sums that replace uploads, None if all uploads are rows. last_loss: as in `_failures`.
        """
        joined = ClientReports.joined([result.reports for result in results])
        reports = joined.in_order(r.cohort)
        events = self._failures(r, reports, last_loss)
        r = drop_uploads(r, reports.bad["client"]) if events else r
        received = set(r.received_view.cohort.tolist())
        states, rows = list[Handle](), dict[str, list[Tensor]]()
        for result in results:
            keep = [k for k, client in enumerate(result.clients) if client in received]
            states += [result.client_states[k] for k in keep if result.client_states]
            for name, values in result.uploads.items():
                if plan is None or not plan.replaces(name):
                    mine = [values] if len(keep) == len(values) else [values[k : k + 1] for k in keep] or [values[:0]]
                    rows.setdefault(name, []).extend(mine)
        order = order_of([client for client in joined.rows["client"].tolist() if client in received], r.cohort)
        sums = None
        if plan is not None and len(received) == len(plan.clients):  # no upload that was added up must be dropped
            parts = [result.sums for result in results if result.sums]
            rest = [result for result in results if result.failed and result.uploads]
            sums = plan.sums([*parts, *(plan.parts(result.clients, [result.uploads]) for result in rest)])
            sums |= all_to_host({name: sums[name] for name in UNSEEN if name in sums})
        sent = next((result.uploads for result in results if result.uploads), {})  # may have no rows
        one = {name: torch.zeros(1).expand(1, *rows.shape[1:]) for name, rows in sent.items()}
        unseen = {name: one.pop(name) for name in UNSEEN if name in one}
        return RoundResult(
            round=r,
            reports=reports,
            uploads={name: as_matrix(pieces, order) for name, pieces in rows.items()},
            client_states=states if order is None or not states else [states[k] for k in order],
            up_floats=(self.algorithm.sent_floats(one) if one else 0) + floats_in(unseen),
            events=events,
            sums=sums,
        )


def sum_plan(algorithm: Algorithm, broadcast: State, server: ServerState, r: Round) -> SumPlan:
    """The sums over uploads that the server needs in a round.

    They are the algorithm's sums, the mean update (for metrics), and the means of the module's buffers and of the
    optimizer states. Buffers or optimizer states that the broadcast lacks are left out. Optimizer states are sent as
    rows instead if a received client takes no local step. server: the server state at the draw.
    """
    assert isinstance(algorithm, Summing)
    received, count = r.received_view, int(r.received.sum())
    if not count:
        return SumPlan.of(received.cohort, {}, server["x"].dtype)
    sums = coefficients_of(algorithm, server, received)
    if algorithm.uploads_update:
        sums[MEAN] = "update", normalise(received.weights)
    if BUFFERS in broadcast:
        sums[BUFFERS] = BUFFERS, np.full(count, 1.0 / count)
    if MOMENTS in broadcast and (received.steps > 0).all():
        sums[MOMENTS] = MOMENTS, normalise(received.weights)
    return SumPlan.of(received.cohort, sums, server["x"].dtype)


def calls(count: int, width: int, runtime: RuntimeConfig, backend: Executor | None = None) -> int:
    """The number of calls of nearly equal size for `count` clients with `width` parameters each.

    `runtime.micro_cohort`, if set, is the largest number of clients in a call. Otherwise, a call on a CPU has at most
    2^18 / width clients; this limit is never below 32 or above 128. The number of calls is rounded up to a multiple of
    4, so that 1, 2 or 4 workers get equally many calls, but there are at most `count` calls. On GPUs, a call has as
    many clients as a worker has room for. Clients side by side are divided evenly among the workers, because their bits
    do not depend on the division; vectorised clients are not divided if they have fewer than about 2^20 parameters
    together.
    """
    room = backend.room if backend is not None else None
    if runtime.micro_cohort:
        return -(-count // runtime.micro_cohort)
    if room is not None and room.side_by_side:
        workers = getattr(backend, "workers", 1)
        return min(count, workers * -(-count // (workers * room.clients)))
    largest = min(max(2**18 // width, 32), 128) if room is None else room.clients
    pieces = min(count, 4 * -(-count // (4 * largest)))
    return pieces if room is None else min(pieces, max(-(-count // largest), count * width // 2**20))
