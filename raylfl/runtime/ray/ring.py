"""The local work of a ring in flight: each client starts from the previous client's upload, passed by reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray

from raylfl.core.algorithm import State
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.connection import direct_bytes
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import CallInFlight
from raylfl.runtime.workers.task import Task, TaskResult, pack, unpack


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
        while len(self.done) < len(self.tasks):
            for link in self.links:
                if not self._take(link):
                    break
            if len(self.done) < len(self.tasks):
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
        traffic = self.channel.traffic
        traffic.count_arguments([self.last], traffic.here)
        final = ray.get(self.last)
        handed_on = max(sum(self.received) - 1, 0)  # uploads that went from worker to worker
        traffic.count(sent=weight(final) * handed_on, received=weight(final))
        through = weight(final) <= direct_bytes()  # small ones go through this process, in results and calls
        for source, target in self.hops:
            traffic.count_between(weight(final), traffic.here if through else source, target)
        self.done[self.sender].uploads = unpack(final)
