"""The clients' half of a round: a cohort's work sent out, and what came back of it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from raylfl.config.schema import RuntimeConfig
from raylfl.core.algorithm import State
from raylfl.core.costs import floats_in
from raylfl.core.population import Floats, Round
from raylfl.errors import ClientFailed, NonFinite
from raylfl.heterogeneity.participation.base import Draw
from raylfl.parts import Experiment
from raylfl.runtime.round.plan import Planner, dropped
from raylfl.runtime.workers.backend import Backend, Deferred, Handle
from raylfl.runtime.workers.task import POOL, ClientReports, Task, TaskResult

if TYPE_CHECKING:
    from raylfl.runtime.round.loop import FederationState

LARGE = 32 * 2**20  # bytes from which malloc gives memory back to the system


@dataclass
class RoundResult:
    """What came back in a round: the round with who really arrived, reports, uploads and new states of those."""

    round: Round
    reports: ClientReports
    uploads: State
    client_states: list[Handle]
    up_floats: int  # of one client's upload
    events: list[str] = field(default_factory=list)


Probed = tuple[RoundResult, Floats | None]  # and the p [N] that the cohort was sampled by, where the method samples


class CohortRunner:
    """Sends rounds to a backend; what comes back is collected when the returned `Deferred` is called."""

    def __init__(self, experiment: Experiment, backend: Backend, planner: Planner):
        self.e, self.backend, self.planner = experiment, backend, planner
        self.uploads = UploadMemory()
        self._width = len(backend.initial()[0])

    def send(self, r: Round, broadcast: State, state: FederationState) -> Deferred[RoundResult]:
        """The work of a planned round, from this broadcast on."""
        if self.e.algorithm.pooled:
            return self._send_pooled(r, broadcast, state)
        tasks = self._tasks(r)
        client_states = [[state.clients.get(c) for c in task.clients] for task in tasks]
        last_loss = state.last_finite_loss
        if self.e.algorithm.route == "ring":
            ring = self.backend.run_ring(tasks, broadcast, client_states, [bool(b) for b in r.received])
            return lambda: self._collect(r, *ring(), last_loss)
        work = self.backend.run(tasks, broadcast, client_states)
        return lambda: self._collect(r, work(), None, last_loss)

    def probe(self, index: int, broadcast: State, state: FederationState) -> Deferred[Probed]:
        """Every available client computes and sends the norm of its update; then the server samples by them.

        A client whose work fails or is not finite, where the config says `drop`, counts as not available in this round.
        """
        algorithm: Any = self.e.algorithm
        system = self.planner.system(index)
        everyone = self.planner.round_of(index, Draw.once(np.flatnonzero(system.available)), None)
        work = self.send(replace(everyone, received=np.ones(len(everyone.cohort), dtype=bool)), broadcast, state)

        def sampled() -> Probed:
            tried = work()
            norms = np.full(self.e.world.count, np.nan)
            seen = tried.round.received_view.cohort
            if len(seen):
                norms[seen] = torch.linalg.vector_norm(tried.uploads["update"], dim=1).double().numpy()
            came_back = np.isin(self.planner.everyone, seen)
            here = replace(system, available=system.available & came_back)
            p = algorithm.norm_probabilities(state.server, here, norms)
            planned = self.planner.round_of(index, self.planner.sample(p, index), p)
            where = {int(c): k for k, c in enumerate(seen)}
            keep = [where[int(c)] for c in planned.received_view.cohort]
            uploads = {name: rows[keep] for name, rows in tried.uploads.items()}
            client_states = [tried.client_states[k] for k in keep] if tried.client_states else []
            return replace(tried, round=planned, uploads=uploads, client_states=client_states), p

        return sampled

    def _tasks(self, r: Round) -> list[Task]:
        """The cohort cut into micro-cohorts of consecutive clients: one client each, or for vectorised calls
        chunks of nearly equal size. Who works with whom follows from the cohort and the config, not from the
        number of workers.
        """
        count = len(r.cohort)
        pieces = count if self.backend.one_by_one else calls(count, self._width, self.e.setup.runtime)
        return [
            Task(
                r.index,
                tuple(r.cohort[rows].tolist()),
                tuple(r.steps[rows].tolist()),
                tuple(r.batch_sizes[rows].tolist()),
                tuple(r.a_norm[rows].tolist()),
                r.lr,
            )
            for rows in (np.array_split(np.arange(count), pieces) if count else [])
        ]

    def _send_pooled(self, r: Round, broadcast: State, state: FederationState) -> Deferred[RoundResult]:
        n = int(self.e.world.population.sizes.sum())
        batch = int(r.batch_sizes[0])
        task = Task(r.index, (POOL,), (int(r.steps[0]),), (0 if batch >= n else batch,), (float(r.a_norm[0]),), r.lr)
        work, last_loss = self.backend.run([task], broadcast, [[None]]), state.last_finite_loss

        def collected() -> RoundResult:
            outcome = work()[0]
            events = self._refuse(r, outcome.reports, last_loss)
            kept = dropped(r, set(map(int, r.cohort))) if events else r
            return RoundResult(kept, outcome.reports, outcome.uploads, [], 0, events)

        return collected

    def _collect(
        self, r: Round, outcomes: Sequence[TaskResult], ring_last: State | None, last_loss: float
    ) -> RoundResult:
        """Uploads of those that arrived, in cohort order; failures by `runtime.on_client_error`, `on_nonfinite`."""
        reports = ClientReports.joined([outcome.reports for outcome in outcomes])
        events = self._refuse(r, reports, last_loss)
        r = dropped(r, set(reports.bad["client"].tolist())) if events else r
        arrived = set(r.received_view.cohort.tolist())
        client_states = [
            o
            for outcome in outcomes
            for c, o in zip(outcome.task.clients, outcome.client_states, strict=False)
            if c in arrived
        ]
        if ring_last is not None:
            return RoundResult(r, reports, ring_last, client_states, 0, events)
        rows: dict[str, list[Tensor]] = {}
        width = 0
        for outcome in outcomes:
            if not outcome.uploads:
                continue
            width = width or self._upload_floats(outcome.uploads)
            keep = [k for k, c in enumerate(outcome.task.clients) if c in arrived]
            for name, values in outcome.uploads.items():
                rows.setdefault(name, []).append(values if len(keep) == len(values) else values[keep])
        uploads = {name: self.uploads.stack(name, pieces) for name, pieces in rows.items()}
        return RoundResult(r, reports, uploads, client_states, width, events)

    def _upload_floats(self, uploads: State) -> int:
        """Floats of one client's upload, without what the server knows already."""
        return floats_in({k: v[0] for k, v in uploads.items() if k not in self.e.algorithm.server_known})

    def _refuse(self, r: Round, reports: ClientReports, last_loss: float) -> list[str]:
        """Raises for what `fail` says must end the run; otherwise one line for each upload dropped.

        last_loss: the last finite mean loss of the run, for clients that had none of their own.
        """
        runtime, events = self.e.setup.runtime, []
        for report in reports.bad:
            client, last = int(report["client"]), float(report["last_loss"])
            who = "everybody's data" if client == POOL else f"client {client}"
            if error := reports.errors.get(client):
                reason = error.strip().splitlines()[-1]
                text = f"{who} failed in round {r.index} after {1 + runtime.client_retries} attempts: {reason}"
                if runtime.on_client_error == "fail":
                    raise ClientFailed(f"{text} (runtime.on_client_error=drop goes on without it)\n{error}")
                events.append(text)
            else:
                last = last if np.isfinite(last) else last_loss
                text = f"{who} sent a non-finite update in round {r.index}; last finite loss {last:.6g}"
                if runtime.on_nonfinite == "fail":
                    raise NonFinite(f"{text} (lower local.lr, set local.clip_norm, or runtime.on_nonfinite=drop)")
                events.append(text)
        return events


class UploadMemory:
    """Matrices [n, d] of large uploads, in the memory of the round before where nobody looks at it any more.

    Fresh memory of hundreds of MB costs as much in page faults as the copy itself.
    """

    def __init__(self) -> None:
        self._memory: dict[str, np.ndarray] = {}
        self._in_use: dict[str, weakref.ref[np.ndarray]] = {}

    def stack(self, name: str, pieces: Sequence[Tensor]) -> Tensor:
        """Rows of all pieces [n_j, ...] in one tensor [sum n_j, ...] of its own memory."""
        shape = (sum(map(len, pieces)), *pieces[0].shape[1:])
        size, dtype = math.prod(shape), pieces[0].numpy().dtype
        if size * dtype.itemsize < LARGE:
            return torch.cat(list(pieces))
        memory = self._memory.get(name)
        taken = name in self._in_use and self._in_use[name]() is not None
        if memory is None or taken or memory.size < size or memory.dtype != dtype:
            memory = self._memory[name] = np.empty(size, dtype=dtype)
        part = memory[:size]
        self._in_use[name] = weakref.ref(part)  # the tensor, and every view of it, keeps this alive
        return torch.cat(list(pieces), out=torch.from_numpy(part).view(shape))


def calls(count: int, width: int, runtime: RuntimeConfig) -> int:
    """Into how many vectorised calls of nearly equal size a cohort goes, given d. By `runtime.micro_cohort`, the
    clients that a call holds at most; null, a rule:

    A call holds as many clients as have 2^18 parameters together, but 32 at least, as more are little faster then,
    and 128 at most. Calls are a multiple of 4, which 1, 2 or 4 workers share evenly, or one a client where there are
    fewer. But on a GPU each has 2^20 parameters, else all clients: with less the GPU waits for the host's next step.
    """
    if runtime.micro_cohort:
        return -(-count // runtime.micro_cohort)
    largest = min(max(2**18 // width, 32), 128)
    pieces = min(count, 4 * -(-count // (4 * largest)))
    return min(pieces, max(1, count * width // 2**20)) if runtime.gpus_per_worker > 0 else pieces
