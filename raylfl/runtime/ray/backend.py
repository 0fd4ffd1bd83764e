"""The backend of worker actors: one call per worker and round, broadcasts and client states by reference."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch
from torch import Tensor

from raylfl.core.algorithm import State
from raylfl.core.deferred import Deferred
from raylfl.core.samples import as_tensor
from raylfl.parts import Experiment
from raylfl.runtime.ray.actors import pack, unpack
from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.ray.resources import resources_here, workers_that_fit
from raylfl.runtime.ray.traffic import Traffic, weight
from raylfl.runtime.ray.worker_pool import Call, Sent, WorkerLost, WorkerPool
from raylfl.runtime.workers.backend import Backend, Handle, patience
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.task import Chunk, ClientReports, Task, TaskResult

COPIES = 2**20  # bytes of one broadcast in all calls, beyond which one object for all is quicker
HEAP = 2**30  # bytes of all clients' states, beyond which they go to the object store, which can spill


class RayBackend(Backend):
    """Sends tasks to a pool of worker actors, and repeats tasks that are lost or fail."""

    def __init__(self, experiment: Experiment, shared: Any, actors: Sequence[Any], notify: Callable[[str], None]):
        """A backend on these actors.

        shared: a reference to `experiment` in the object store, which outlives the backend; actors: from
        `start_workers`; notify: takes one line for the user.
        """
        runtime = experiment.config.runtime
        self.attempts, self.timeout = 1 + runtime.client_retries, runtime.client_timeout
        self.pool = WorkerPool(actors, shared, notify, lambda: workers_that_fit(runtime, resources_here()) > 0)
        self.workers = len(self.pool)
        self._batch_size = experiment.setup.eval_batch_size
        self._sequential = experiment.algorithm.topology.sequential
        self._measuring = 0  # evaluations in progress
        self._traffic = Traffic()
        fresh, self.one_by_one, self.whole, self.cut = self.pool.call("initial", attempts=self.attempts)
        self._initial = torch.from_numpy(fresh["x"].copy()), torch.from_numpy(fresh["buffers"].copy())
        state = experiment.setup.fresh_state(*self._initial)
        self.keeps, self._state_bytes = bool(state), weight(state)
        spilt = self._state_bytes * experiment.clients > HEAP
        self._spills = self._state_bytes < direct_bytes() and spilt

    def initial(self) -> tuple[Tensor, Tensor]:
        return self._initial

    def put(self, state: State) -> Handle:
        return ray.put(pack(state))

    def get(self, handles: Sequence[Handle]) -> list[State]:
        return [unpack(p) for p in ray.get(list(handles))]

    # -- cohorts -----------------------------------------------------------------------------------------------

    def run(
        self, tasks: Sequence[Task], broadcast: State, client_states: Sequence[Sequence[Handle | None]]
    ) -> Deferred[list[TaskResult]]:
        broadcast = self._for_all(broadcast)

        def send(shares: Sequence[list[int]]) -> list[Sent]:
            return self.pool.send(
                [self._call([tasks[k] for k in s], broadcast, [client_states[k] for k in s]) for s in shares]
            )

        shares = self._shares([task.load for task in tasks])
        first, rest = self._wave(shares)
        sent = send(first)

        def outcomes() -> list[TaskResult]:
            wave, waiting, under_way = first, rest, sent
            out: dict[int, TaskResult] = {}
            tries = [0] * len(tasks)
            while wave:
                for share, answer in zip(wave, self.pool.results(under_way), strict=True):
                    self._take(share, answer, tasks, out)
                    for k in share:  # a lost call does not tell which of its tasks killed the worker
                        tries[k] += out[k].failed and not (isinstance(answer, WorkerLost) and len(share) > 1)
                    waiting = waiting + [[k] for k in share if out[k].failed and tries[k] < self.attempts]
                wave, waiting = self._wave(waiting)
                under_way = send(wave)
            return [out[k] for k in range(len(tasks))]

        return Deferred(outcomes)

    def _wave(self, shares: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """(shares to send now, the rest): one call per worker, so that a call that kills its worker harms no other."""
        here = len(self.pool.available()) if shares else 0
        return shares[:here], shares[here:]

    def _take(self, share: Sequence[int], answer: Any, tasks: Sequence[Task], out: dict[int, TaskResult]) -> None:
        """Adds the results of a worker's share of the tasks to `out`."""
        if isinstance(answer, WorkerLost):
            for k in share:
                out[k] = TaskResult(tasks[k], ClientReports.failed(tasks[k].clients, answer.reason))
            return
        (reports, ups), *kept = answer if self.keeps else [answer]
        self._traffic.received += weight((reports, ups)) + len(kept) * self._state_bytes
        at = 0
        for k, uploads in zip(share, ups, strict=True):
            mine = slice(at, at := at + len(tasks[k].clients))
            out[k] = TaskResult(tasks[k], reports[mine], unpack(uploads), self._stored(kept[mine]))

    def _stored(self, states: Sequence[Any]) -> list[Any]:
        """Handles of new client states; small states stay in this process unless all of them together exceed `HEAP`."""
        return [ray.put(state) for state in ray.get(list(states))] if self._spills else list(states)

    def _shares(self, loads: Sequence[int]) -> list[list[int]]:
        """The tasks of each worker, in task order: the largest task first, to the worker with the smallest load."""
        heap = [(0, w) for w in range(self.workers)]
        shares: list[list[int]] = [[] for _ in range(self.workers)]
        for k in sorted(range(len(loads)), key=lambda k: -loads[k]):
            total, w = heapq.heappop(heap)
            shares[w].append(k)
            heapq.heappush(heap, (total + max(loads[k], 1), w))
        return [sorted(share) for share in shares if share]

    def _call(self, tasks: Sequence[Task], broadcast: Any, client_states: Sequence[Sequence[Handle | None]]) -> Call:
        handles = [h for states in client_states for h in states]
        given = [h for h in handles if h is not None]
        known, at = [], 0
        for h in handles:
            known.append(at if h is not None else -1)
            at += h is not None
        self._traffic.sent += weight(broadcast) + len(given) * self._state_bytes
        returns = 1 + sum(len(task.clients) for task in tasks) if self.keeps else 1
        return Call("run", (list(tasks), broadcast, self.keeps, known, *given), returns, self.timeout)

    def run_ring(
        self,
        tasks: Sequence[Task],
        broadcast: State,
        client_states: Sequence[Sequence[Handle | None]],
        received: Sequence[bool],
    ) -> Deferred[list[TaskResult]]:
        """Submits the whole ring at once: each upload goes to the next worker by reference.

        Only one worker of a ring is busy at a time, so half of the workers are left to an evaluation in progress.
        """
        start: Any = pack(broadcast)

        def hand_out(begin: int, last: Any, attempt: int) -> list[Sent]:
            here = self._halves()[0] if self._measuring else self.pool.available()
            links, previous = [], last
            for k in range(begin, len(tasks)):
                state = [h for h in client_states[k] if h is not None]
                self._traffic.sent += (weight(start) if previous is start else 0) + len(state) * self._state_bytes
                arguments = (tasks[k], previous, previous is start, self.keeps, 0 if state else -1, *state)
                call = Call("run_link", arguments, 3, self.timeout)
                links.append(self.pool.submit(here[(k + attempt) % len(here)], call))
                previous = links[-1].references[1] if received[k] else previous
            return links

        first = hand_out(0, start, 0)

        def results() -> list[TaskResult]:
            outcomes: list[TaskResult] = []
            links, last, attempt = first, start, 0
            sender = 0  # the task whose upload `last` is
            while len(outcomes) < len(tasks):
                for link in links:
                    k = len(outcomes)
                    answer = self.pool.results([link])[0]
                    lost = isinstance(answer, WorkerLost)
                    reports = ClientReports.failed(tasks[k].clients, answer.reason) if lost else answer[0]
                    _, uploads, state = link.references
                    self._traffic.received += weight(reports) + self._state_bytes * self.keeps
                    broken = len(reports.bad) > 0
                    if reports.errors and attempt < self.attempts - 1:
                        attempt += 1
                        break  # the rest of the ring depends on this result: submit it again
                    mine = self._stored([state]) if self.keeps and not broken else []
                    outcomes.append(TaskResult(tasks[k], reports, {}, mine))
                    attempt = 0
                    if received[k] and not broken:
                        last, sender = uploads, k
                    elif broken and received[k]:
                        break
                if len(outcomes) < len(tasks):
                    links = hand_out(len(outcomes), last, attempt)
            if last is not start:
                final = ray.get(last)
                self._traffic.received += weight(final)
                self._traffic.sent += weight(final) * max(sum(received) - 1, 0)  # from each worker to the next
                outcomes[sender].uploads = unpack(final)
            return outcomes

        return Deferred(results)

    def _halves(self) -> tuple[list[int], list[int]]:
        """(workers of a ring, workers of an evaluation) while both are in progress."""
        here = self.pool.available()
        middle = (len(here) + 1) // 2
        return here[:middle], here[middle:] or here

    # -- measurements --------------------------------------------------------------------------------------------

    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> Deferred[list[Logged]]:
        batches = [-(-len(chunk.indices) // self._batch_size) for chunk in chunks]
        return self._spread("evaluate", broadcast, chunks, batches)

    def objective(self, broadcast: State, groups: Sequence[Sequence[int]]) -> Deferred[list[tuple[float, Tensor]]]:
        pairs = self._spread("objective", broadcast, groups, [1] * len(groups))
        return pairs.then(lambda found: [(loss, as_tensor(g)) for loss, g in found])

    def _spread(self, method: str, state: State, items: Sequence[Any], sizes: Sequence[int]) -> Deferred[list[Any]]:
        """Results of `method` on these items, in their order; the items are distributed over the workers in turn.

        sizes: the time limit of each item, as a multiple of `client_timeout`.
        """
        broadcast = self._for_all(state)
        workers = self._halves()[1] if self._sequential else self.pool.available()
        hands = [list(range(w, len(items), len(workers))) for w in range(min(len(workers), len(items)))]
        calls = [
            Call(
                method,
                (broadcast, [items[k] for k in hand]),
                timeout=patience(self.timeout, sum(sizes[k] for k in hand)),
            )
            for hand in hands
        ]
        sent = self.pool.send(calls, workers)
        self._traffic.sent += sum(weight(call.arguments[0]) for call in calls)
        self._measuring += 1

        def answers() -> list[Any]:
            out: list[Any] = [None] * len(items)
            answered = self.pool.with_retries(sent, self.attempts)
            self._traffic.received += weight(answered)
            self._measuring -= 1
            for hand, answer in zip(hands, answered, strict=True):
                for k, value in zip(hand, answer, strict=True):
                    out[k] = value
            return out

        return Deferred(answers)

    def _for_all(self, broadcast: State) -> Any:
        """A broadcast as an argument of many calls: copied into each call if small, otherwise one shared object.

        A tenth of Ray's size limit for values in calls is reserved for the overhead of a call.
        """
        packed = pack(broadcast)
        size = weight(packed)
        if size < 0.9 * direct_bytes() and size * self.workers <= COPIES:
            return packed
        self._traffic.sent += size
        return ray.put(packed)

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.pool.call("state_dict", x.numpy(), buffers.numpy(), attempts=self.attempts)
        return found

    def traffic(self) -> dict[str, int]:
        return self._traffic.take()

    def describe(self) -> dict[str, Any]:
        return {"backend": "ray", "workers": self.workers, "cluster": ray.cluster_resources()}

    def close(self) -> None:
        self.pool.dismiss()
