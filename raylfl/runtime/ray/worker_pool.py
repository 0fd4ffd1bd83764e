"""The worker pool of a run: available workers, calls in flight, and calls whose worker died or hung.

Ray restarts a lost actor by calling its constructor, and a call may have been executed although its result was lost.
Every call can therefore be repeated: its result depends only on its arguments.
"""

import math
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

from raylfl.errors import BadConfig, RaylflError, headline
from raylfl.runtime.ray.failures import ACTOR_LOST, error_of_start, reason_of_loss, reason_of_start
from raylfl.runtime.ray.resources import node_text
from raylfl.runtime.ray.stored import SamplesMissing, StoredExperiment, StoredSamples
from raylfl.runtime.ray.traffic import TrafficCounter

READ_SECONDS = 1.0  # seconds after which results that have arrived are read, and losses noticed, before all are there
START_SECONDS = 10  # seconds to wait for another worker to start; if nodes were lost, not all of them fit
NOTICE_SECONDS = 30  # seconds between two lines for the user during a wait
MOST_STARTS = 8  # largest number of consecutive failed starts of a worker; after one more the run ends


@dataclass(frozen=True)
class WorkerCall:
    """A call of a worker: method, arguments, number of returned values, and time limit in seconds (None: no limit).

    assigned: the number of the worker to which the call's clients are assigned, because it has their samples; None if
    any worker can run the call.
    """

    method: str
    arguments: tuple[Any, ...]
    returns: int = 1
    timeout: float | None = None
    assigned: int | None = None


@dataclass(frozen=True, eq=False)
class CallInFlight:
    """A call in flight: its worker, that worker's restart count, and references to its results."""

    call: WorkerCall
    worker: int
    restart: int
    references: list[Any]


@dataclass(frozen=True)
class WorkerLost:
    """The result of a call whose worker died or hung, with the reason as a text for the user.

    waited: whether an earlier call of the worker may have been unfinished, and thus be the cause of the loss.
    """

    reason: str
    waited: bool = False


class WorkerPool:
    """The worker actors of one run. While a worker is lost, another one that can read the same samples replaces it."""

    def __init__(
        self,
        actors: Sequence[Any],
        stored: StoredExperiment,
        notify: Callable[[str], None],
        traffic: TrafficCounter,
        deal: Callable[[int], StoredSamples] | None = None,
    ):
        """A pool of these actors.

        stored: the experiment, which every call gets; notify: called with one line for the user; traffic: counts the
        bytes of calls; deal: puts the samples of the clients that are assigned to a worker into the object store. The
        constructor waits for the first worker, and for the other ones until none has answered for START_SECONDS.
        """
        self.actors, self.stored, self._deal = list(actors), stored, deal
        self._samples: list[list[int]] = [[] for _ in actors]  # the assigned workers whose samples each worker has
        self.notify, self.traffic = notify, traffic
        self.nodes: list[str | None] = [None] * len(actors)  # the node of each worker that has been available
        self._former: dict[str | None, None] = {}  # the nodes of lost workers
        self.restarts = [0] * len(actors)  # of each worker, as far as calls have noticed
        self._unfinished: list[list[CallInFlight]] = [[] for _ in actors]  # in the order in which a worker runs them
        self._restarts_before = list(map(restarts_of, actors))  # of each worker when its newest start began
        # the ping of each worker that cannot be called now; None if its node cannot start it
        self._starting: dict[int, Any] = {w: self._ping(w) for w in range(len(actors))}
        self.available()
        while pings := self._pings():
            if not ray.wait(pings, num_returns=len(pings), timeout=START_SECONDS)[0]:
                break
            self.ready()

    def __len__(self) -> int:
        return len(self.actors)

    # -- calls -------------------------------------------------------------------------------------------------

    def submit(self, worker: int, call: WorkerCall) -> CallInFlight:
        method = getattr(self.actors[worker], call.method)
        assigned = worker if call.assigned is None else call.assigned
        shared = self.stored.shared(assigned, self._missing_samples(worker, assigned))
        self.traffic.count_arguments(call.arguments, self.nodes[worker])
        references = method.options(num_returns=call.returns).remote(shared, *call.arguments)
        references = [references] if call.returns == 1 else references
        sent = CallInFlight(call, worker, self.restarts[worker], references)
        self._unfinished[worker].append(sent)
        return sent

    def _missing_samples(self, worker: int, assigned: int) -> StoredSamples | None:
        """The samples of worker `assigned` in the object store if `worker` does not have them, otherwise None.

        They are freed after the call with them. A worker has its own samples, and those of one lost worker.
        """
        if not self.stored.assigned or assigned in self._samples[worker]:
            return None
        assert self._deal is not None
        self._samples[worker] = [*self._samples[worker][:1], assigned]
        return self._deal(assigned)

    def send(self, calls: Sequence[WorkerCall], workers: Sequence[int] = ()) -> list[CallInFlight]:
        """Submits each call to its assigned worker; others are divided among `workers`, by default all available."""
        here = workers or (self.available() if calls else [])
        return [self.submit(self.place(call.assigned, here[k % len(here)]), call) for k, call in enumerate(calls)]

    def place(self, assigned: int | None, otherwise: int) -> int:
        """Worker `assigned` or, while it is lost, one that can read the same samples; `otherwise` if it is None."""
        if assigned is None or assigned not in self._starting:
            return otherwise if assigned is None else assigned
        here = self.available(self.stored.placement.replacements(assigned))
        return assigned if assigned in here else here[assigned % len(here)]

    def results(self, sent: Sequence[CallInFlight]) -> list[Any]:
        """Waits for the results, in the order of the calls: the returned value, or `WorkerLost` if the call was lost.

        A call with several returned values gives [the first value, *references to the others]. If no result arrives
        within the longest time limit of the calls in flight, all their workers are killed and started again.
        """
        out: list[Any] = [None] * len(sent)
        waiting, arrived = {s.references[0]: k for k, s in enumerate(sent)}, time.monotonic()
        while waiting:
            longest = max(sent[k].call.timeout or math.inf for k in waiting.values())
            left = arrived + longest - time.monotonic()
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=max(0.0, min(left, READ_SECONDS)))
            if not ready and left <= READ_SECONDS:  # these workers hang in the user's code
                for k in waiting.values():
                    out[k] = self._kill_hanging(sent[k])
                break
            for reference in ready:
                k = waiting.pop(reference)
                out[k] = self._result(sent[k])
                arrived = time.monotonic()
        return out

    def _result(self, sent: CallInFlight) -> Any:
        try:
            value = ray.get(sent.references[0])
        except ACTOR_LOST as error:
            return self._note_death(sent, error)
        except RayTaskError as error:
            if isinstance(error.cause, SamplesMissing):  # Ray has restarted the worker between two calls
                return self._note_death(sent, error)
            if isinstance(error.cause, RaylflError):  # its message is for the user, without a traceback
                raise error.cause from None
            raise
        unfinished = self._unfinished[sent.worker]
        if sent in unfinished:
            del unfinished[: unfinished.index(sent) + 1]
        self.traffic.count_results(value, sent.references[1:], self.nodes[sent.worker])
        return [value, *sent.references[1:]] if sent.call.returns > 1 else value

    def with_retries(
        self,
        sent: Sequence[CallInFlight],
        attempts: int,
        send: Callable[[list[int]], list[CallInFlight]] | None = None,
        may_fail: Container[int] = (),
    ) -> list[Any]:
        """Waits for the results, as `results`; repeats lost calls, each at most `attempts` times.

        A loss that an earlier call of the worker may have caused does not count. send: submits the calls with these
        numbers again, by default to any worker that can run them. Raises RaylflError if another call than those with
        the numbers `may_fail` is lost once more.
        """
        send = send or (lambda lost: self.send([sent[k].call for k in lost]))
        out, left = self.results(sent), [attempts] * len(sent)
        while lost := [k for k, value in enumerate(out) if isinstance(value, WorkerLost) and (value.waited or left[k])]:
            for k in lost:
                left[k] -= not out[k].waited
            for k, value in zip(lost, self.results(send(lost)), strict=True):
                out[k] = value
        for k, value in enumerate(out):
            if isinstance(value, WorkerLost) and k not in may_fail:
                raise RaylflError(f"workers were lost {attempts + 1} times in a row: {value.reason}")
        return out

    def call(self, method: str, *arguments: Any, attempts: int) -> Any:
        """Calls any available worker and waits for the result; a lost call is repeated `attempts` times at most."""
        return self.with_retries(self.send([WorkerCall(method, arguments)]), attempts)[0]

    # -- availability ------------------------------------------------------------------------------------------

    def available(self, among: Sequence[int] | None = None) -> list[int]:
        """The workers among these that can be called now; if all of them are starting, waits for the first.

        The wait has no limit, because the driver ends a run without resources (`Reservation.update`), and is reported
        to the user every half minute.
        """
        among = range(len(self)) if among is None else among
        began = noticed = time.monotonic()
        while not (here := sorted(set(self.ready()).intersection(among))):
            now = time.monotonic()
            if now - noticed > NOTICE_SECONDS:
                noticed = now
                self.notify(f"waiting for a worker for {now - began:.0f} s: {len(among)} are being started")
            ray.wait(self._pings(), num_returns=1, timeout=1)
        return here

    def ready(self) -> list[int]:
        """The workers that can be called now."""
        pings = self._pings()
        answered = set(ray.wait(pings, num_returns=len(pings), timeout=0)[0]) if pings else set()
        for worker, ping in list(self._starting.items()):
            if ping not in answered:
                continue
            try:
                self.nodes[worker] = ray.get(ping)
                del self._starting[worker]
                self._samples[worker] = [worker]
            except ACTOR_LOST as error:
                if isinstance(error, RayActorError) and error.actor_init_failed:
                    raise RaylflError(f"worker {worker} could not be started: {reason_of_start(error)}") from error
                deaths = restarts_of(self.actors[worker]) - self._restarts_before[worker]
                if deaths > MOST_STARTS or isinstance(error, ActorDiedError):
                    what = f"died {deaths} times as it started" if deaths > MOST_STARTS else "was ended"
                    raise RaylflError(f"worker {worker} {what}: {headline(error)}") from error
                self._starting[worker] = self._ping(worker)  # no node has room for it so far
            except RayTaskError as error:
                if isinstance(error.cause, SamplesMissing):
                    self._starting[worker] = self._ping(worker, self._missing_samples(worker, worker))
                else:
                    self._leave_out(worker, error_of_start(error))
        return [w for w in range(len(self)) if w not in self._starting]

    def _pings(self) -> list[Any]:
        return [ping for ping in self._starting.values() if ping is not None]

    def _leave_out(self, worker: int, error: Exception) -> None:
        """Goes on without a worker that its node cannot start; raises the error if another node would not help."""
        self._starting[worker] = None
        others = self.stored.placement.replacements(worker) if self.stored.assigned else range(len(self))
        if not isinstance(error, BadConfig) or all(self._starting.get(w, ...) is None for w in others):
            raise error from None
        self.notify(f"{error}: other workers take its work")

    def _ping(self, worker: int, samples: StoredSamples | None = None) -> Any:
        """Pings a starting worker; without samples if it may have them, from an earlier server."""
        ping = self.actors[worker].ping.options(max_task_retries=MOST_STARTS)  # sent once the worker is there
        return ping.remote(self.stored.shared(worker, samples))

    # -- losses ------------------------------------------------------------------------------------------------

    def _note_death(self, sent: CallInFlight, error: Exception) -> WorkerLost:
        """Records the loss of a worker, whose calls other workers execute until Ray has restarted it."""
        reason, where = reason_of_loss(error), place_of(self.nodes[sent.worker])
        self._note_loss(sent, f"worker {sent.worker}{where} was lost ({reason}): other workers take its work")
        return WorkerLost(f"the worker{where} was lost: {reason}", self._waited(sent))

    def _kill_hanging(self, sent: CallInFlight) -> WorkerLost:
        key = "" if sent.call.method == "exchange" else " (runtime.client_timeout)"
        reason = f"no answer within {sent.call.timeout:g} s{key}"
        if self.restarts[sent.worker] == sent.restart:
            ray.kill(self.actors[sent.worker], no_restart=False)
        where = place_of(self.nodes[sent.worker])
        self._note_loss(sent, f"worker {sent.worker}{where}: {reason}; it is started again")
        return WorkerLost(reason, self._waited(sent))

    def _waited(self, sent: CallInFlight) -> bool:
        """Whether the worker got the call when an earlier one since its restart was unfinished."""
        return sent in [call for call in self._unfinished[sent.worker] if call.restart == sent.restart][1:]

    def _note_loss(self, sent: CallInFlight, news: str) -> None:
        """Records the restart of a worker and passes `news` to the user, once for all calls that were lost with it."""
        if self.restarts[sent.worker] == sent.restart:
            self.restarts[sent.worker] += 1
            self._former[self.nodes[sent.worker]] = None
            self._samples[sent.worker] = []
            self._restarts_before[sent.worker] = restarts_of(self.actors[sent.worker])
            self._starting[sent.worker] = self._ping(sent.worker)
            self.notify(news)

    def lost_nodes(self) -> str:
        """The nodes of workers that are not part of the cluster any more, as a text that begins with a space."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        nodes = dict.fromkeys((*self._former, *self.nodes))
        return " and".join(place_of(node) for node in nodes if node is not None and node not in alive)


def restarts_of(actor: Any) -> int:
    """How often Ray has started an actor again, or tried to."""
    return int(state.actors(actor._actor_id.hex()).get("NumRestarts", 0))


def place_of(node: str | None) -> str:
    """The place of an actor on the node with this id, such as ` on node gpu3 (10.0.0.3)`.

    Empty if the cluster has only ever had one node, or if the node is not known.
    """
    nodes = {known["NodeID"]: known for known in ray.nodes()}
    return f" on {node_text(nodes[node])}" if len(nodes) > 1 and node in nodes else ""
