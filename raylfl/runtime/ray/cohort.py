"""Local work of a cohort in flight: shares of its tasks go to the workers; lost and failed tasks are repeated.

Rings have calls of their own (`raylfl.runtime.ray.ring`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from raylfl.core.partial_sums import Roots, depth_first, joined
from raylfl.runtime.ray.actors import Work, unpack, unpack_roots
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.ray.sums import Part, fetch
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import Call, Sent, WorkerLost
from raylfl.runtime.workers.backend import Handle
from raylfl.runtime.workers.task import ClientReports, PartialSums, Task, TaskResult

Share = list[int]  # the numbers of the tasks in one call


class CohortInFlight:
    """The calls of a cohort, in waves of one call per worker: a call that kills its worker then affects no other."""

    def __init__(
        self, channel: Channel, tasks: Sequence[Task], broadcast: Any, states: Sequence[Sequence[Handle | None]]
    ):
        """Sends the first wave; broadcast: packed, or a reference to it; states: the client states of each task."""
        self.channel, self.tasks, self.broadcast, self.states = channel, tasks, broadcast, states
        self.done: dict[int, TaskResult] = {}
        self.parts = list[Part]()  # partial sums that are still on the workers
        self.arrived = list[list[Roots]]()  # partial sums that came with an answer
        self.sums, self.widths = list[Roots](), dict[str, int]()  # all partial sums, added up
        self.tries = [0] * len(tasks)
        self._send(self._first_shares())

    def results(self) -> list[TaskResult]:
        """Waits for the results, repeating failed tasks; returns them in task order. The first has the partial sums."""
        while self.wave:
            again: list[Share] = []
            for share, sent, answer in zip(self.wave, self.sent, self.channel.pool.results(self.sent), strict=True):
                self._take(share, sent, answer)
                again += self._failed(share, answer)
            again += self.waiting
            self._send(again or self._fetch_sums())
        if self.widths:
            self.done[0].partial = PartialSums(self.sums, self.widths)
        return [self.done[k] for k in range(len(self.tasks))]

    def _fetch_sums(self) -> list[Share]:
        """Adds up the partial sums of all calls; returns the tasks whose sums were lost with their node, as shares."""
        parts, arrived, self.parts, self.arrived = self.parts, self.arrived, [], []
        if not (parts or arrived) or (plan := self.tasks[0].sums) is None:
            return []
        found, lost = fetch(self.channel, parts, len(plan.clients)) if parts else ([], [])
        self.sums = joined([*([self.sums] if self.sums else []), *arrived, *found], len(plan.clients))
        return [[k] for k in lost]

    def _first_shares(self) -> list[Share]:
        """The first shares: one per home if clients are pinned, otherwise at most one per worker."""
        by_home: dict[int | None, Share] = {}
        for k in range(len(self.tasks)):
            by_home.setdefault(self._home([k]), []).append(k)
        if None in by_home:
            return shares([task.load for task in self.tasks], len(self.channel.pool), in_tree_order(self.tasks))
        return list(by_home.values())

    def _home(self, share: Share) -> int | None:
        return self.channel.home_of(self.tasks[share[0]])

    def _send(self, shares: list[Share]) -> None:
        """Sends one share to each available worker, shares of pinned clients to their home; other shares wait."""
        pool = self.channel.pool
        here = pool.available() if shares else []
        self.wave, self.waiting = list[Share](), list[Share]()
        self.sent, busy = list[Sent](), set[int]()
        for share in shares:
            home, free = self._home(share), [w for w in here if w not in busy]
            away = not free if home is None else bool(self.wave) and not pool.hosts(home)
            worker = -1 if away else pool.place(home, free[0] if free else -1)
            if away or worker in busy:
                self.waiting.append(share)
                continue
            busy.add(worker)
            self.wave.append(share)
            self.sent.append(pool.submit(worker, self._call(share)))

    def _call(self, share: Share) -> Call:
        handles = [h for k in share for h in self.states[k]]
        channel, tasks = self.channel, [self.tasks[k] for k in share]
        known, given = channel.given(handles)
        channel.traffic.count(sent=weight(self.broadcast) + len(given) * channel.state_bytes)
        apart = self._sums_apart(tasks)
        returns = 1 + apart + channel.returned * sum(len(task.clients) for task in tasks)
        work = Work(tasks, channel.returned, known, apart, channel.held).pickled()
        return Call("run", (work, self.broadcast, *given), returns, channel.timeout, self._home(share))

    def _sums_apart(self, tasks: Sequence[Task]) -> bool:
        """Whether the sums of these tasks are too large for an answer, and become separate objects.

        A worker of their node can join such objects; if one is lost, only its tasks are repeated.
        """
        plan, broadcast = tasks[0].sums, self.broadcast
        if plan is None or not isinstance(broadcast, Mapping):
            return plan is not None
        vectors = plan.vectors([client for task in tasks for client in task.clients])
        return vectors * max((vector.nbytes for vector in broadcast.values()), default=0) > 0.9 * direct_bytes()

    def _take(self, share: Share, sent: Sent, answer: Any) -> None:
        """Stores the results of one share; answer: the result of its call."""
        if isinstance(answer, WorkerLost):
            for k in share:
                self.done[k] = TaskResult(self.tasks[k], ClientReports.failed(self.tasks[k].clients, answer.reason))
            return
        channel = self.channel
        (reports, uploads, widths, sums), *others = answer if sent.call.returns > 1 else [answer]
        kept = others if sums is not None else others[1:]
        channel.traffic.count(received=weight((reports, uploads, sums or [])) + len(kept) * channel.state_bytes)
        at = 0
        for k, own in zip(share, uploads, strict=True):
            mine = slice(at, at := at + len(self.tasks[k].clients))
            states = channel.left(self.tasks[k]) or channel.stored(kept[mine])
            self.done[k] = TaskResult(self.tasks[k], reports[mine], unpack(own), states)
        if widths:
            self.widths = widths
        if widths and sums is not None:
            self.arrived.append(unpack_roots(sums))
        elif widths:
            added = [k for k in share if not self.done[k].failed]
            node = channel.pool.nodes[sent.worker]
            self.parts.append(Part(others[0], sent.worker, node, added, max(widths.values())))

    def _failed(self, share: Share, answer: Any) -> list[Share]:
        """The failed tasks of a share that are repeated, as shares of one task.

        If the worker of several tasks was lost, it is unknown which task was the cause.
        """
        shared = isinstance(answer, WorkerLost) and len(share) > 1
        failed = [k for k in share if self.done[k].failed]
        for k in failed:
            self.tries[k] += not shared
        return [[k] for k in failed if self.tries[k] < self.channel.attempts]


def in_tree_order(tasks: Sequence[Task]) -> list[int] | None:
    """The order of tasks in which the tree of the round's sums adds neighbours first; None: uploads are rows."""
    plan = tasks[0].sums if tasks else None
    if plan is None:
        return None
    place = dict(zip(plan.clients.tolist(), depth_first(len(plan.clients)).tolist(), strict=True))
    last = len(place)  # tasks without a received upload come last
    return sorted(range(len(tasks)), key=lambda k: min(place.get(c, last) for c in tasks[k].clients))


def shares(loads: Sequence[int], workers: int, order: Sequence[int] | None = None) -> list[Share]:
    """At most one share of the tasks per worker; loads: the load of each task; order: from `in_tree_order`.

    Shares are ranges of `order` if their loads need not exceed 1.05 times the largest load of `even_shares`. Otherwise,
    or if order is None, they are `even_shares`. Each share is in task order.
    """
    even = even_shares(loads, workers)
    if order is None:
        return even
    work = [max(load, 1) for load in loads]
    limit = 1.05 * max((sum(work[k] for k in share) for share in even), default=0)
    runs, total = list[Share](), 0.0
    for k in order:
        if not runs or total + work[k] > limit:
            runs, total = [*runs, []], 0.0
        runs[-1].append(k)
        total += work[k]
    return [sorted(run) for run in runs] if len(runs) <= workers else even


def even_shares(loads: Sequence[int], workers: int) -> list[Share]:
    """Shares of about equal load, each in task order; the largest task goes first, to the least loaded worker."""
    heap = [(0, w) for w in range(workers)]
    dealt: list[Share] = [[] for _ in range(workers)]
    for k in sorted(range(len(loads)), key=lambda k: -loads[k]):
        total, w = heapq.heappop(heap)
        dealt[w].append(k)
        heapq.heappush(heap, (total + max(loads[k], 1), w))
    return [sorted(share) for share in dealt if share]
