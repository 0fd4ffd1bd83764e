"""The cohort's local work: cut into tasks, handed to a backend, and collected at the server."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raylfl.config.schema import RuntimeConfig
from raylfl.core.algorithm import Algorithm, State
from raylfl.core.costs import floats_in
from raylfl.core.deferred import Deferred
from raylfl.core.oracle import Way
from raylfl.core.population import Round
from raylfl.errors import ClientFailed, NonFinite
from raylfl.runtime.round.plan import dropped
from raylfl.runtime.round.state import FederationState, RoundResult
from raylfl.runtime.workers.backend import Executor
from raylfl.runtime.workers.task import ClientReports, Task, TaskResult

LARGE = 32 * 2**20  # bytes from which malloc gives memory back to the system


class Dispatch:
    """Hands a round's local work to a backend; `collect` puts together what comes back.

    ways: how many local steps were taken which way.
    """

    def __init__(self, algorithm: Algorithm, backend: Executor, runtime: RuntimeConfig):
        self.algorithm, self.backend, self.runtime = algorithm, backend, runtime
        self.uploads, self.ways = UploadMemory(), Counter[Way]()
        self._width = len(backend.initial()[0])

    def send(self, r: Round, broadcast: State, state: FederationState) -> Deferred[RoundResult]:
        """The local work of round r, from this broadcast on."""
        tasks = self._tasks(r)
        client_states = [[state.clients.get(c) for c in task.clients] for task in tasks]
        received, last_loss = [bool(b) for b in r.received], state.last_finite_loss
        work = self.algorithm.topology.exchange(self.backend, tasks, broadcast, client_states, received)
        return work.then(lambda results: self._collect(r, results, last_loss))

    def _tasks(self, r: Round) -> list[Task]:
        """The cohort cut into micro-cohorts of consecutive clients: one client each, or for vectorised calls
        chunks of nearly equal size. Which clients share a call follows from the cohort and the config, not from the
        number of workers.
        """
        count = len(r.cohort)
        alone = self.backend.one_by_one or self.algorithm.topology.sequential
        pieces = count if alone else calls(count, self._width, self.runtime)
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

    def _collect(self, r: Round, results: Sequence[TaskResult], last_loss: float) -> RoundResult:
        """Received uploads in cohort order; failures by `runtime.on_client_error` and `runtime.on_nonfinite`."""
        reports = ClientReports.joined([result.reports for result in results])
        self.ways.update(reports.ways)
        events = self._failures(r, reports, last_loss)
        r = dropped(r, set(reports.bad["client"].tolist())) if events else r
        received = set(r.received_view.cohort.tolist())
        states = [
            state
            for result in results
            for client, state in zip(result.task.clients, result.client_states, strict=False)
            if client in received
        ]
        rows: dict[str, list[Tensor]] = {}
        width = 0
        for result in results:
            if not result.uploads:
                continue
            width = width or self._upload_floats(result.uploads)
            keep = [k for k, client in enumerate(result.task.clients) if client in received]
            for name, values in result.uploads.items():
                rows.setdefault(name, []).append(values if len(keep) == len(values) else values[keep])
        uploads = {name: self.uploads.stack(name, pieces) for name, pieces in rows.items()}
        return RoundResult(r, reports, uploads, states, width, events)

    def _upload_floats(self, uploads: State) -> int:
        """Floats of one client's upload, without what the server knows already."""
        return floats_in({k: v[0] for k, v in uploads.items() if k not in self.algorithm.server_known})

    def _failures(self, r: Round, reports: ClientReports, last_loss: float) -> list[str]:
        """One line for each upload that is dropped; raises for what `fail` says must end the run.

        last_loss: the last finite mean loss of the run, for clients that had none of their own.
        """
        events = []
        for report in reports.bad:
            client, last = int(report["client"]), float(report["last_loss"])
            if error := reports.errors.get(client):
                reason = error.strip().splitlines()[-1]
                attempts = 1 + self.runtime.client_retries
                text = f"client {client} failed in round {r.index} after {attempts} attempts: {reason}"
                if self.runtime.on_client_error == "fail":
                    raise ClientFailed(f"{text} (runtime.on_client_error=drop goes on without it)\n{error}")
            else:
                last = last if np.isfinite(last) else last_loss
                text = f"client {client} sent a non-finite update in round {r.index}; last finite loss {last:.6g}"
                if self.runtime.on_nonfinite == "fail":
                    raise NonFinite(f"{text} (lower local.lr, set local.clip_norm, or runtime.on_nonfinite=drop)")
            events.append(text)
        return events


class UploadMemory:
    """Matrices [n, d] of large uploads, in the memory of the round before once that is no longer referenced.

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
    """The number of vectorised calls of nearly equal size for a cohort, given d.

    `runtime.micro_cohort` is the largest number of clients in a call; null stands for a rule:

    A call holds as many clients as have 2^18 parameters together, but 32 at least, as more are little faster then,
    and 128 at most. Calls are a multiple of 4, which 1, 2 or 4 workers share evenly, or one a client where there are
    fewer. But on a GPU each has 2^20 parameters, else all clients: with less the GPU waits for the host's next step.
    """
    if runtime.micro_cohort:
        return -(-count // runtime.micro_cohort)
    largest = min(max(2**18 // width, 32), 128)
    pieces = min(count, 4 * -(-count // (4 * largest)))
    return min(pieces, max(1, count * width // 2**20)) if runtime.gpus_per_worker > 0 else pieces
