"""Local work in flight: calls to workers, of which lost and failed ones are repeated.

The clients of a cohort work at the same time, those of a ring in sequence. A block of graph nodes has the same worker
in every round, unless workers are lost.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray

from raylfl.core.algorithm import State
from raylfl.core.partial_sums import depth_first
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.ray.group import StoredSums
from raylfl.runtime.ray.sums import fetch
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import CallInFlight, WorkerCall, WorkerLost
from raylfl.runtime.workers.backend import BlockCall
from raylfl.runtime.workers.task import Task, TaskResult, pack, unpack

Share = list[int]  # the numbers of the tasks in one call


class CohortInFlight:
    """The calls of a cohort: one for each worker at first, then one for each failed task."""

    def __init__(self, channel: Channel, tasks: Sequence[Task], broadcast: Any):
        """Sends the first calls. broadcast: packed arrays, or a reference to them."""
        self.channel, self.tasks, self.broadcast = channel, tasks, broadcast
        self.done: dict[int, TaskResult] = {}
        self.stored_sums = list[StoredSums]()  # partial sums that are still on the workers
        self.fetched_sums = list[TaskResult]()
        self.tries = [0] * len(tasks)
        self._send(self._first_shares())

    def results(self) -> list[TaskResult]:
        """Waits for the results, in task order, repeating failed tasks; then come stored sums, without clients."""
        while self.sent:
            again: list[Share] = []
            answers = self.channel.pool.results(self.sent)
            for share, kind, sent, answer in zip(self.shares, self.kinds, self.sent, answers, strict=True):
                self._take(share, kind, sent, answer)
                again += self._failed(share, answer)
            if not again and self.stored_sums and (plan := self.tasks[0].sums) is not None:
                stored, self.stored_sums = self.stored_sums, []
                fetched, lost = fetch(self.channel, stored, len(plan.clients))
                self.fetched_sums += fetched
                again = [[k] for k in lost]  # whose sums were lost with a node
            self._send(again)
        return [*(self.done[k] for k in range(len(self.tasks))), *self.fetched_sums]

    def _first_shares(self) -> list[Share]:
        """Divides all tasks into shares, one per call: by worker if clients are pinned, otherwise by load."""
        by_worker = numbers_by_worker(map(self.channel.worker_of, self.tasks))
        if None in by_worker:
            return shares([task.load for task in self.tasks], len(self.channel.pool), in_tree_order(self.tasks))
        return list(by_worker.values())

    def _send(self, shares: list[Share]) -> None:
        """Sends each share of the tasks as a call; one of pinned clients goes to their worker or its replacement."""
        groups = [[self.tasks[k] for k in share] for share in shares]
        self.shares, self.kinds = shares, list(map(self._separate, groups))
        calls = [self.channel.call(tasks, self.broadcast, kind) for tasks, kind in zip(groups, self.kinds, strict=True)]
        self.sent = self.channel.pool.send(calls)

    def _separate(self, tasks: Sequence[Task]) -> str | None:
        """The separate value of a call (`RunArguments`): `sums` or `resident` if sums are too large for its answer.

        `sums`: a worker can join such objects on its node; if one is lost, only its tasks are repeated. `resident`:
        they stay in the worker's memory for the group of workers.
        """
        plan, broadcast, group = tasks[0].sums, self.broadcast, self.channel.group
        if plan is None:
            return None
        vectors = plan.vectors([client for task in tasks for client in task.clients])
        if isinstance(broadcast, Mapping):
            longest = max((vector.nbytes for vector in broadcast.values()), default=0)
            if vectors * longest <= 0.9 * direct_bytes():
                return None
        return "resident" if group is not None and group.fits(vectors) else "sums"

    def _take(self, share: Share, kind: str | None, sent: CallInFlight, answer: Any) -> None:
        """Stores the results of one share of the tasks, whose separate value is of this kind (`_separate`)."""
        results, sums = self.channel.results([self.tasks[k] for k in share], sent, answer)
        self.done.update(zip(share, results, strict=True))
        if sums and (added := [k for k in share if not self.done[k].failed]):
            uploads, node = self.done[added[0]].uploads.values(), self.channel.pool.nodes[sent.worker]
            size = max((rows.element_size() * math.prod(rows.shape[1:]) for rows in uploads), default=0)
            restart = sent.restart if kind == "resident" else None
            self.stored_sums.append(StoredSums(sums[0], sent.worker, node, added, size, restart))

    def _failed(self, share: Share, answer: Any) -> list[Share]:
        """The failed tasks of a share that have attempts left, each as a share of its own.

        If a worker is lost during a call with several tasks, or while the call may have waited for another one, this
        does not count as an attempt at them, because the cause of the loss is unknown.
        """
        shared = isinstance(answer, WorkerLost) and (len(share) > 1 or answer.waited)
        failed = [k for k in share if self.done[k].failed]
        for k in failed:
            self.tries[k] += not shared
        return [[k] for k in failed if self.tries[k] < self.channel.attempts]


class RingInFlight:
    """The calls of one ring, one per client, all submitted at once.

    If a call fails, it is repeated, and all calls after it in the ring are submitted again.
    """

    def __init__(self, channel: Channel, tasks: Sequence[Task], broadcast: State):
        """Submits the tasks, each with one client, in the order of the ring."""
        self.channel, self.tasks = channel, tasks
        self.received = [all(task.received) for task in tasks]  # whether the upload reaches the next client
        self.start: Any = pack(broadcast)
        self.last: Any = self.start  # the newest upload, from which the next task starts
        self.sender = 0  # the task that sent `last`
        self.hops = list[tuple[str | None, str | None]]()  # (from, to): nodes between which uploads went
        self.node: str | None = None  # node of the worker that sent `last`
        self.attempt = 0  # attempts at the first call without a result
        self.done: list[TaskResult] = []
        self.links = self._hand_out()

    def results(self) -> list[TaskResult]:
        """Waits for the results; returns them in task order. Only the last received upload is included."""
        while not all(map(self._take, self.links)):
            self.links = self._hand_out()
        if self.last is not self.start:
            self._fetch_model()
        return self.done

    def _hand_out(self) -> list[CallInFlight]:
        """Submits the tasks that have no result, each with a reference to the newest received upload before it."""
        channel, here = self.channel, self.channel.pool.available()
        links, previous = [], self.last
        for k in range(len(self.done), len(self.tasks)):
            call = channel.call([self.tasks[k]], previous, "uploads", in_ring=previous is not self.start)
            worker = channel.pool.place(call.assigned, here[(k + self.attempt) % len(here)])
            links.append(channel.pool.submit(worker, call))
            previous = links[-1].references[1] if self.received[k] else previous
        return links

    def _take(self, link: CallInFlight) -> bool:
        """Stores the result of the next task, from its call `link`; returns False if tasks must be submitted again.

        If the task failed and has attempts left, stores nothing, because this task is submitted again, too.
        """
        channel, k = self.channel, len(self.done)
        (answer,) = channel.pool.results([link])
        (result,), uploads = channel.results([self.tasks[k]], link, answer)
        if result.failed and self.attempt < channel.attempts - 1:
            self.attempt += 1
            return False
        broken = len(result.reports.bad) > 0
        node = channel.pool.nodes[link.worker]
        if self.last is not self.start:
            self.hops.append((self.node, node))
        self.done.append(result)
        self.attempt = 0
        if self.received[k] and not broken:
            (self.last,), self.sender, self.node = uploads, k, node
        return not (broken and self.received[k])

    def _fetch_model(self) -> None:
        traffic = self.channel.pool.traffic
        traffic.count_arguments([self.last], traffic.here)
        final = ray.get(self.last)
        handed_on = max(sum(self.received) - 1, 0)  # uploads that went from worker to worker
        traffic.count(sent=weight(final) * handed_on, received=weight(final))
        through = weight(final) <= direct_bytes()  # small ones go through this process, in results and calls
        for source, target in self.hops:
            traffic.count_between(weight(final), traffic.here if through else source, target)
        self.done[self.sender].uploads = unpack(final)


def send_blocks(channel: Channel, calls: Sequence[BlockCall]) -> list[CallInFlight]:
    """Sends calls for blocks of graph nodes; counts the messages from blocks on other workers as sent."""
    workers, sent = channel.pool.available() if calls else [], list[CallInFlight]()
    for call in calls:
        place = call.block % len(workers)
        channel.pool.traffic.count(sent=sum(size for sender, size in call.arriving if sender % len(workers) != place))
        arguments = (call.operation, call.job, *call.handles)
        sent.append(
            channel.pool.submit(workers[place], WorkerCall("run_block", arguments, call.returns, channel.timeout))
        )
    return sent


def results_of_blocks(channel: Channel, calls: Sequence[BlockCall], sent: Sequence[CallInFlight]) -> list[Any]:
    """Waits for the results of calls for blocks; returns [a value, *references to states] for each call.

    Lost calls are repeated. If a worker was lost in every attempt at a call, the result is failed reports for a call of
    local work. Any other call raises RaylflError.
    """
    works = {k for k, call in enumerate(calls) if call.operation == "work"}
    answers = channel.pool.with_retries(
        sent, channel.attempts, lambda lost: send_blocks(channel, [calls[k] for k in lost]), works
    )
    results = list[Any]()
    for call, answer in zip(calls, answers, strict=True):
        if isinstance(answer, WorkerLost):
            results.append(call.failed(answer.reason))
        else:
            results.append(answer if call.returns > 1 else [answer])
    channel.pool.traffic.count(received=sum(weight(answer[0]) for answer in results))
    return results


def numbers_by_worker(assigned: Iterable[int | None]) -> dict[int | None, list[int]]:
    """Assigned worker -> the numbers of the items that are assigned to it. assigned: the worker of each item."""
    numbers: dict[int | None, list[int]] = {}
    for k, worker in enumerate(assigned):
        numbers.setdefault(worker, []).append(k)
    return numbers


def in_tree_order(tasks: Sequence[Task]) -> list[int] | None:
    """The numbers of the tasks, in the order of the tree that sums the uploads; None if workers do not add them up."""
    if (plan := tasks[0].sums) is None:
        return None
    place = dict(zip(plan.clients.tolist(), depth_first(len(plan.clients)).tolist(), strict=True))
    last = len(place)  # tasks without a received upload come last
    return sorted(range(len(tasks)), key=lambda k: min(place.get(c, last) for c in tasks[k].clients))


def shares(loads: Sequence[int], workers: int, order: Sequence[int] | None) -> list[Share]:
    """Divides tasks of these loads into at most one share per worker, in ascending order.

    The shares are ranges of `order` (`in_tree_order`), each with at most 1.05 times the largest load of the
    `even_shares`. If `order` is None, or this takes more ranges than workers, the shares are the `even_shares`.
    """
    even = even_shares(loads, workers)
    if order is None:
        return even
    work = [max(load, 1) for load in loads]
    limit = 1.05 * max(sum(work[k] for k in share) for share in even)
    runs, total = list[Share](), 0.0
    for k in order:
        if not runs or total + work[k] > limit:
            runs, total = [*runs, []], 0.0
        runs[-1].append(k)
        total += work[k]
    return [sorted(run) for run in runs] if len(runs) <= workers else even


def even_shares(loads: Sequence[int], workers: int) -> list[Share]:
    """Divides the tasks into shares of about equal load: each task, largest first, goes to the least loaded share."""
    heap = [(0, w) for w in range(workers)]
    dealt: list[Share] = [[] for _ in range(workers)]
    for k in sorted(range(len(loads)), key=lambda k: -loads[k]):
        total, w = heapq.heappop(heap)
        dealt[w].append(k)
        heapq.heappush(heap, (total + max(loads[k], 1), w))
    return [sorted(share) for share in dealt if share]
