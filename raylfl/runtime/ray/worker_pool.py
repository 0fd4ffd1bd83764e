"""Worker actors that may die or hang: who is here, what they are asked, and what becomes of calls that are lost.

Actor restarts re-run only the constructor, and a call may have been carried out although its answer was lost:
so every call is a pure function of its arguments and is simply made again, elsewhere if need be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from raylfl.errors import RaylflError

RESTART_SECONDS = 180  # a fresh worker imports torch and Lightning: seconds, on a busy machine many
START_SECONDS = 10  # from the first one on: then the run begins, for where nodes were lost not all of them fit


@dataclass(frozen=True)
class Call:
    """A method of a worker, its arguments, how many values it returns, and the seconds it may take, if not any."""

    method: str
    arguments: tuple
    returns: int = 1
    patience: float | None = None


@dataclass(frozen=True)
class Sent:
    """A call under way on a worker, in its so-manieth life; references to what it returns."""

    call: Call
    worker: int
    life: int
    references: list[Any]


@dataclass(frozen=True)
class WorkerLost:
    """Stands for the answer of a worker that died over a call, or hung."""

    reason: str


class WorkerPool:
    """The worker actors of one run, which share an experiment by reference."""

    def __init__(self, actors: Sequence[Any], shared: Any, say: Callable[[str], None]):
        """shared: a reference to the experiment, the first argument of every call; say: takes one line of news."""
        self.actors, self.shared, self.say = list(actors), [shared], say
        self._lives = [0] * len(actors)
        self._absent = {w: self._ping(w) for w in range(len(actors))}  # not here yet, or lost
        for many, seconds in ((1, RESTART_SECONDS), (len(actors), START_SECONDS)):
            ray.wait(list(self._absent.values()), num_returns=many, timeout=seconds)

    def __len__(self) -> int:
        return len(self.actors)

    def ask(self, worker: int, call: Call) -> Sent:
        method = getattr(self.actors[worker], call.method)
        references = method.options(num_returns=call.returns).remote(self.shared, *call.arguments)
        return Sent(call, worker, self._lives[worker], [references] if call.returns == 1 else references)

    def send(self, calls: Sequence[Call], workers: Sequence[int] = ()) -> list[Sent]:
        """Call k to the k-th of these workers, or of those who are here, modulo their number."""
        here = workers or self.present()
        return [self.ask(here[k % len(here)], call) for k, call in enumerate(calls)]

    def answers(self, sent: Sequence[Sent]) -> list[Any]:
        """In order of the calls: the value returned, of several [the first, *references], or `WorkerLost`."""
        out: list[Any] = [None] * len(sent)
        waiting = {s.references[0]: k for k, s in enumerate(sent)}
        while waiting:
            limits = [sent[k].call.patience for k in waiting.values()]
            limit = None if None in limits else max(limits)  # type: ignore[type-var]
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=limit)
            if not ready:  # nobody answered in time: these workers hang in somebody's code
                for k in waiting.values():
                    out[k] = self._hanging(sent[k])
                break
            for reference in ready:
                k = waiting.pop(reference)
                try:
                    value = ray.get(reference)
                    out[k] = [value, *sent[k].references[1:]] if sent[k].call.returns > 1 else value
                except RayActorError as error:
                    out[k] = self._died(sent[k], error)
        return out

    def insist(self, sent: Sequence[Sent], attempts: int) -> list[Any]:
        """The answers; calls that were lost are made again, after the worker's restart or elsewhere.

        Raises RaylflError where that does not help so many times in a row.
        """
        out = self.answers(sent)
        for _ in range(attempts):
            again = [k for k, value in enumerate(out) if isinstance(value, WorkerLost)]
            if not again:
                return out
            for k, value in zip(again, self.answers(self.send([sent[k].call for k in again])), strict=True):
                out[k] = value
        lost = next((value for value in out if isinstance(value, WorkerLost)), None)
        if lost is not None:
            raise RaylflError(f"workers were lost {attempts + 1} times in a row: {lost.reason}")
        return out

    def call(self, method: str, *arguments: Any, attempts: int) -> Any:
        """One call's answer, from whoever is here."""
        return self.insist(self.send([Call(method, arguments)]), attempts)[0]

    # -- who is here -------------------------------------------------------------------------------------------

    def present(self) -> list[int]:
        """The workers that can be asked now; waits where all are being started again."""
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            for worker, ping in list(self._absent.items()):
                if not ray.wait([ping], timeout=0)[0]:
                    continue
                try:
                    ray.get(ping)
                    del self._absent[worker]
                except RayActorError as error:  # not back yet
                    if error.actor_init_failed:
                        raise RaylflError(f"worker {worker} could not be started: {_lines(error)[-1]}") from error
                    self._absent[worker] = self._ping(worker)
            here = [w for w in range(len(self)) if w not in self._absent]
            if here:
                return here
            if time.monotonic() > deadline:
                raise RaylflError(
                    f"no worker was there for {RESTART_SECONDS} s: lost, or no room for them on the cluster"
                )
            time.sleep(0.2)

    def _ping(self, worker: int) -> Any:
        return self.actors[worker].ping.remote(self.shared)

    def _died(self, sent: Sent, error: Exception) -> WorkerLost:
        """Ray starts the worker again, and until it answers its work goes elsewhere."""
        first = _lines(error)[0]
        self._gone(sent, f"worker {sent.worker} was lost ({first}): its work goes elsewhere")
        return WorkerLost(f"the worker was lost: {first}")

    def _hanging(self, sent: Sent) -> WorkerLost:
        reason = f"no answer within {sent.call.patience:g} s (runtime.client_timeout)"
        if self._lives[sent.worker] == sent.life:
            ray.kill(self.actors[sent.worker], no_restart=False)
        self._gone(sent, f"worker {sent.worker}: {reason}; it is started again")
        return WorkerLost(reason)

    def _gone(self, sent: Sent, news: str) -> None:
        """A life ends once, however many calls were lost with it."""
        if self._lives[sent.worker] == sent.life:
            self._lives[sent.worker] += 1
            self._absent[sent.worker] = self._ping(sent.worker)
            self.say(news)

    def dismiss(self) -> None:
        """End them. Safe to call twice."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
