"""Workers and server with addresses: Ray actors around plain classes, and the backend that speaks to them.

Actor restarts re-run only the constructor, and a call may have been carried out although its answer was lost:
so every call is a pure function of its arguments and is simply made again, elsewhere if need be.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from raylfl.algorithms.base import State
from raylfl.config.schema import RuntimeConfig
from raylfl.core.population import Ints
from raylfl.core.samples import as_tensor
from raylfl.errors import RaylflError
from raylfl.experiment import Experiment
from raylfl.runtime.backend import Backend, Handle, first_row
from raylfl.runtime.faults import kill_point
from raylfl.runtime.task import Outcome, Report, Task
from raylfl.runtime.worker import Worker

Packed = dict[str, np.ndarray]
RESTART_SECONDS = 180  # a fresh worker imports torch and Lightning: seconds, on a busy machine many
START_SECONDS = 10  # from the first one on: then the run begins, for where nodes were lost not all of them fit


def pack(state: State) -> Packed:
    """Tensors as numpy arrays, which Ray reads from shared memory without a copy."""
    return {name: t.contiguous().numpy() for name, t in state.items()}


def unpack(packed: Packed) -> State:
    """The inverse of `pack`; the tensors are read-only views of shared memory."""
    return {name: as_tensor(a) for name, a in packed.items()}


class WorkerActor:
    """A worker with an address; its methods take and return packed states.

    Each takes `shared`, [a reference to the experiment], and makes the worker if this process has none of it yet: a
    fresh or restarted one needs nothing to start, and loads its modules while the server loads its own.
    """

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._reference: Any = None
        self.fault = kill_point()
        import lightning.pytorch  # noqa: F401 - most of what a module of anybody's needs

    def worker(self, shared: list[Any]) -> Worker:
        if self._worker is None or shared[0] != self._reference:
            self._worker, self._reference = Worker(ray.get(shared[0]).setup), shared[0]
        return self._worker

    def ping(self, shared: list[Any]) -> None:
        """An answer means: here, and ready."""
        self.worker(shared)

    def initial(self, shared: list[Any]) -> tuple[Packed, str | None]:
        """The fresh module's x and buffers; why clients go one by one."""
        worker = self.worker(shared)
        return pack({"x": worker.x0.cpu(), "buffers": worker.buffers0.cpu()}), worker.one_by_one

    def run(
        self, shared: list[Any], tasks: Sequence[Task], down: Packed, keeps: bool, known: Sequence[int], *own: Packed
    ) -> Any:
        """[(reports, up) of each task], then one new state a client where the algorithm keeps any.

        known: for each client in order, which of `own` is its state; -1: it has none yet.
        """
        worker = self.worker(shared)
        states = [unpack(own[k]) if k >= 0 else None for k in known]
        head: list[tuple[list[Report], Packed]] = []
        kept: list[Packed] = []
        at = 0
        self.fault("work", tasks[0].round)
        for task in tasks:
            mine = states[at : at + len(task.clients)]
            at += len(task.clients)
            reports, up, new = worker.run(task, unpack(down), mine)
            head.append((reports, pack(up)))
            kept += [pack(state) for state in new] if new else [{} for _ in task.clients]
        self.fault("worked", tasks[0].round)
        return (head, *kept) if keeps else head

    def run_link(
        self, shared: list[Any], task: Task, previous: Packed, first: bool, keeps: bool, known: int, *own: Packed
    ) -> Any:
        """One client of a ring: (reports, up, state); previous: the broadcast, or the upload of the one before."""
        if not previous:
            error = [
                Report(c, float("nan"), float("nan"), 0, error="the client before sent nothing") for c in task.clients
            ]
            return error, {}, {}
        down = unpack(previous) if first else first_row(unpack(previous))
        state = unpack(own[0]) if known >= 0 else None
        reports, up, new = self.worker(shared).run(task, down, [state])
        return reports, pack(up), pack(new[0]) if new and keeps else {}

    def evaluate(self, shared: list[Any], down: Packed, chunks: Sequence[tuple[str, Ints]]) -> list[dict[str, float]]:
        return self.worker(shared).evaluate(unpack(down), chunks)

    def objective(
        self, shared: list[Any], down: Packed, groups: Sequence[Sequence[int]]
    ) -> list[tuple[float, np.ndarray]]:
        return [(loss, g.numpy()) for loss, g in self.worker(shared).objective(unpack(down), groups)]

    def state_dict(self, shared: list[Any], x: np.ndarray, buffers: np.ndarray) -> dict[str, Tensor]:
        return self.worker(shared).state_dict(as_tensor(x), as_tensor(buffers))


def start_workers(runtime: RuntimeConfig, workers: int) -> list[Any]:
    """Handles of worker actors that are being started; in the caller's placement group, if it is in one."""
    options: dict[str, Any] = {
        "num_cpus": runtime.cpus_per_worker,
        "num_gpus": runtime.gpus_per_worker,
        "max_restarts": -1,
        "max_task_retries": 0,
    }
    if (group := ray.util.get_current_placement_group()) is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            group, placement_group_capture_child_tasks=True
        )
    remote = ray.remote(WorkerActor).options(**options)
    return [remote.remote() for _ in range(workers)]


class RayBackend(Backend):
    """Worker actors, and what to do when they are lost."""

    def __init__(self, experiment: Experiment, shared: Any, actors: Sequence[Any], say: Callable[[str], None]):
        """shared: a reference to `experiment` in the object store, which outlives this; actors: from `start_workers`;
        say: takes one line of news.
        """
        runtime = experiment.config.runtime
        self.shared = [shared]
        self.actors, self.workers, self.say = list(actors), len(actors), say
        self.attempts = 1 + runtime.client_retries
        self.timeout = runtime.client_timeout
        self._absent = {
            w: actor.ping.remote(self.shared) for w, actor in enumerate(self.actors)
        }  # not here yet, or lost
        for many, patience in ((1, RESTART_SECONDS), (self.workers, START_SECONDS)):
            ray.wait(list(self._absent.values()), num_returns=many, timeout=patience)
        self.keeps = False
        fresh, self.one_by_one = self._map("initial", [()])[0]
        self._initial = torch.from_numpy(fresh["x"].copy()), torch.from_numpy(fresh["buffers"].copy())
        local_buffers = experiment.setup.local_buffers and len(self._initial[1]) > 0
        self.keeps = bool(experiment.algorithm.init_clients(self._initial[0][:1], 1)) or local_buffers

    def initial(self) -> tuple[Tensor, Tensor]:
        return self._initial

    def put(self, state: State) -> Handle:
        return ray.put(pack(state))

    def get(self, handles: Sequence[Handle]) -> list[State]:
        return [unpack(p) for p in ray.get(list(handles))]

    # -- cohorts -----------------------------------------------------------------------------------------------

    def run(self, tasks: Sequence[Task], down: State, own: Sequence[Sequence[Handle | None]]) -> list[Outcome]:
        down_ref = ray.put(pack(down))
        outcomes: dict[int, Outcome] = {}
        tries = [0] * len(tasks)
        waiting = self._shares([task.load for task in tasks])
        while waiting:
            here = len(self._present())
            wave, waiting = waiting[:here], waiting[here:]  # one call a worker, so that a deadly one harms no other
            calls = [self._arguments([tasks[k] for k in share], down_ref, [own[k] for k in share]) for share in wave]
            returns = [1 + sum(len(tasks[k].clients) for k in share) if self.keeps else 1 for share in wave]
            for share, answer in zip(wave, self._map("run", calls, returns, once=True), strict=True):
                if isinstance(answer, str):  # the worker died or hung: in a share of several it is not known over whom
                    for k in share:
                        tries[k] += len(share) == 1
                        outcomes[k] = Outcome(
                            tasks[k], [Report(c, np.nan, np.nan, 0, error=answer) for c in tasks[k].clients]
                        )
                else:
                    head, *kept = answer if self.keeps else [answer]
                    for k, (reports, up) in zip(share, head, strict=True):
                        mine, kept = kept[: len(tasks[k].clients)], kept[len(tasks[k].clients) :]
                        outcomes[k] = Outcome(tasks[k], reports, unpack(up), mine)
                        tries[k] += outcomes[k].failed
                waiting += [[k] for k in share if outcomes[k].failed and tries[k] < self.attempts]
        return [outcomes[k] for k in range(len(tasks))]

    def _shares(self, loads: Sequence[int]) -> list[list[int]]:
        """Tasks to workers, the largest first to whom has least; each worker's share in task order."""
        heap = [(0, w) for w in range(self.workers)]
        shares: list[list[int]] = [[] for _ in range(self.workers)]
        for k in sorted(range(len(loads)), key=lambda k: -loads[k]):
            total, w = heapq.heappop(heap)
            shares[w].append(k)
            heapq.heappush(heap, (total + max(loads[k], 1), w))
        return [sorted(share) for share in shares if share]

    def _arguments(self, tasks: Sequence[Task], down: Any, own: Sequence[Sequence[Handle | None]]) -> tuple:
        handles = [h for states in own for h in states]
        given = [h for h in handles if h is not None]
        known, at = [], 0
        for h in handles:
            known.append(at if h is not None else -1)
            at += h is not None
        return (list(tasks), down, self.keeps, known, *given)

    def run_ring(
        self, tasks: Sequence[Task], down: State, own: Sequence[Sequence[Handle | None]], arrives: Sequence[bool]
    ) -> tuple[list[Outcome], State]:
        """The whole chain is handed out at once: each upload goes to the next worker by reference."""
        outcomes: list[Outcome] = []
        last = start = ray.put(pack(down))
        attempt = 0
        while len(outcomes) < len(tasks):
            links, previous, here = [], last, self._present()
            for k in range(len(outcomes), len(tasks)):
                actor = self.actors[here[(k + attempt) % len(here)]]
                state = [h for h in own[k] if h is not None]
                known = 0 if state else -1
                refs = actor.run_link.options(num_returns=3).remote(
                    self.shared, tasks[k], previous, previous is start, self.keeps, known, *state
                )
                links.append((here[(k + attempt) % len(here)], *refs))
                previous = refs[1] if arrives[k] else previous
            for worker, reports_ref, up_ref, own_ref in links:
                k = len(outcomes)
                reports = self._ring_reports(worker, reports_ref, tasks[k])
                broken = any(r.error or not r.finite for r in reports)
                if any(r.error for r in reports) and attempt < self.attempts - 1:
                    attempt += 1
                    break  # the rest of the chain hangs on this one: hand it out again
                outcomes.append(Outcome(tasks[k], reports, {}, [own_ref] if self.keeps and not broken else []))
                attempt = 0
                if arrives[k] and not broken:
                    last = up_ref
                elif broken and arrives[k]:
                    break
        return outcomes, {} if last is start else unpack(ray.get(last))

    def _ring_reports(self, worker: int, ref: Any, task: Task) -> list[Report]:
        try:
            return ray.get(ref, timeout=self.timeout)
        except GetTimeoutError:
            reason = self._hanging(worker)
        except RayActorError as error:
            reason = self._lost(worker, error)
        return [Report(c, np.nan, np.nan, 0, error=reason) for c in task.clients]

    # -- measurements --------------------------------------------------------------------------------------------

    def evaluate(self, down: State, chunks: Sequence[tuple[str, Ints]]) -> list[dict[str, float]]:
        return self._spread("evaluate", down, chunks)

    def objective(self, down: State, groups: Sequence[Sequence[int]]) -> list[tuple[float, Tensor]]:
        return [(loss, as_tensor(g)) for loss, g in self._spread("objective", down, groups)]

    def _spread(self, method: str, down: State, items: Sequence[Any]) -> list[Any]:
        """Items dealt out to the workers in turn; the answers back in the order of the items."""
        down_ref = ray.put(pack(down))
        hands = [list(range(w, len(items), self.workers)) for w in range(min(self.workers, len(items)))]
        answers = self._map(method, [(down_ref, [items[k] for k in hand]) for hand in hands])
        out: list[Any] = [None] * len(items)
        for hand, answer in zip(hands, answers, strict=True):
            for k, value in zip(hand, answer, strict=True):
                out[k] = value
        return out

    def state_dict(self, x: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        return self._map("state_dict", [(x.numpy(), buffers.numpy())])[0]

    # -- calls ---------------------------------------------------------------------------------------------------

    def _map(
        self, method: str, calls: Sequence[tuple], returns: Sequence[int] | None = None, once: bool = False
    ) -> list[Any]:
        """One call a worker (call k to worker k modulo their number); answers in order of the calls.

        A call with several returns answers [first value, *references]. A worker that dies is asked again, after
        its restart or elsewhere; with `once` the reason stands in the answer's place, as a text.
        """
        answers: list[Any] = [None] * len(calls)
        todo = list(range(len(calls)))
        limit = self.timeout if once else None  # clients' work may hang; starting a process just takes its time
        for _ in range(1 if once else self.attempts + 1):
            here = self._present()
            sent: dict[Any, tuple[int, int, Any]] = {}
            for turn, k in enumerate(todo):
                worker = here[turn % len(here)]
                number = returns[k] if returns else 1
                refs = getattr(self.actors[worker], method).options(num_returns=number).remote(self.shared, *calls[k])
                sent[refs if number == 1 else refs[0]] = (k, worker, refs)
            todo = []
            waiting = list(sent)
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=limit)
                if not ready:  # nobody answered in time: these workers hang in somebody's code
                    for ref in waiting:
                        k, worker, _ = sent[ref]
                        answers[k] = self._hanging(worker)
                        todo.append(k)
                    waiting = []
                for ref in ready:
                    k, worker, refs = sent[ref]
                    try:
                        value = ray.get(ref)
                        answers[k] = [value, *refs[1:]] if returns and returns[k] > 1 else value
                    except RayActorError as error:
                        answers[k] = self._lost(worker, error)
                        todo.append(k)
            if not todo or once:
                return answers
        raise RaylflError(f"workers were lost {self.attempts + 1} times in a row: {answers[todo[0]]}")

    # -- workers that are lost ---------------------------------------------------------------------------------

    def _lost(self, worker: int, error: Exception) -> str:
        """A worker died; Ray starts it again, and until it answers its work goes elsewhere."""
        if worker not in self._absent:
            self.say(f"worker {worker} was lost ({_first_line(error)}): its work goes elsewhere")
            self._absent[worker] = self.actors[worker].ping.remote(self.shared)
        return f"the worker was lost: {_first_line(error)}"

    def _hanging(self, worker: int) -> str:
        reason = f"no answer within runtime.client_timeout={self.timeout:g} s"
        self.say(f"worker {worker}: {reason}; it is started again")
        ray.kill(self.actors[worker], no_restart=False)
        self._absent.setdefault(worker, self.actors[worker].ping.remote(self.shared))
        return reason

    def _present(self) -> list[int]:
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
                        raise RaylflError(f"worker {worker} could not be started: {_last_line(error)}") from error
                    self._absent[worker] = self.actors[worker].ping.remote(self.shared)
            here = [w for w in range(self.workers) if w not in self._absent]
            if here:
                return here
            if time.monotonic() > deadline:
                raise RaylflError(
                    f"no worker was there for {RESTART_SECONDS} s: lost, or no room for them on the cluster"
                )
            time.sleep(0.2)

    def describe(self) -> dict[str, Any]:
        return {"backend": "ray", "workers": self.workers, "cluster": ray.cluster_resources()}

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []


def _first_line(error: Exception) -> str:
    return _lines(error)[0]


def _last_line(error: Exception) -> str:
    return _lines(error)[-1]


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
