"""Calls for blocks of graph nodes: a block has the same worker in every round, unless workers are lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylfl.errors import RaylflError
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import CallInFlight, WorkerCall, WorkerLost
from raylfl.runtime.workers.backend import BlockCall


class BlocksInFlight:
    """Calls in flight for blocks of graph nodes; calls whose worker is lost are repeated."""

    def __init__(self, channel: Channel, calls: Sequence[BlockCall]):
        self.channel, self.calls = channel, calls
        self.sent = self._send(calls)

    def results(self) -> list[Any]:
        """Waits for the results of all calls; returns [a value, *references to states] for each call.

        If a worker was lost in every attempt at a call, the result is failed reports for a call of local work. Any
        other call raises RaylflError.
        """
        pool, attempts = self.channel.pool, self.channel.attempts
        out = pool.repeated(self.sent, attempts, lambda lost: self._send([self.calls[k] for k in lost]))
        found = [self._answer(call, answer) for call, answer in zip(self.calls, out, strict=True)]
        self.channel.traffic.count(received=sum(weight(answer[0]) for answer in found))
        return found

    def _send(self, calls: Sequence[BlockCall]) -> list[CallInFlight]:
        here = self.channel.pool.available() if calls else []
        return [self.channel.pool.submit(here[call.block % len(here)], self._call(call, len(here))) for call in calls]

    def _call(self, call: BlockCall, workers: int) -> WorkerCall:
        """The call of a worker; counts the messages from blocks on other workers as sent. workers: the available."""
        travelling = sum(size for sender, size in call.arriving if sender % workers != call.block % workers)
        self.channel.traffic.count(sent=travelling)
        arguments = (call.operation, call.job, *call.handles)
        return WorkerCall("run_block", arguments, call.returns, self.channel.timeout)

    def _answer(self, call: BlockCall, answer: Any) -> Any:
        if not isinstance(answer, WorkerLost):
            return answer if call.returns > 1 else [answer]
        if call.operation != "work":
            raise RaylflError(f"workers were lost {self.channel.attempts + 1} times in a row: {answer.reason}")
        return call.failed(answer.reason)
