"""The worker pool's waits for workers that start, with stand-ins for Ray and its actors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

from raylfl.core.placement import Placement
from raylfl.errors import RaylflError
from raylfl.runtime.ray import worker_pool
from raylfl.runtime.ray.stored import SamplesMissing, StoredExperiment
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.ray.worker_pool import CallInFlight, WorkerCall, WorkerLost, WorkerPool

DIED = "The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14"  # both are Ray's words
KILLED = "Worker unexpectedly exits. Some common causes include: (1) the process was killed by the OOM killer due to"


class Handle:
    """An actor whose pings have these answers, in order."""

    def __init__(self, *answers):
        self.answers = list(answers)
        ping = SimpleNamespace(remote=lambda shared: self.answers.pop(0))
        self.ping = SimpleNamespace(options=lambda max_task_retries: ping)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ActorDiedError(), "its process ended"),
        (ActorUnavailableError(DIED, None), "its process ended or cannot be reached"),
        (ActorUnavailableError(KILLED, None), "its process ended or cannot be reached; is its node's memory used up?"),
        (OutOfMemoryError("ID: 7e11"), "Ray ended its process, as its node's memory was almost full; a lower runtime."),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_lost_call_gives_the_reason_and_the_node_of_several(monkeypatch, error, reason, count):
    def answer(value):
        if isinstance(value, Exception):
            raise value
        return value

    nodes = [
        {"NodeID": node, "NodeManagerHostname": f"gpu{node}", "NodeManagerAddress": "10.0.0.1"} for node in "AB"[:count]
    ]
    ray = SimpleNamespace(wait=lambda references, **options: (references, []), get=answer, nodes=lambda: nodes)
    monkeypatch.setattr(worker_pool, "ray", ray)
    said: list[str] = []
    pool = WorkerPool([Handle("A", "A")], StoredExperiment(None), said.append, TrafficCounter())
    (lost,) = pool.results([CallInFlight(WorkerCall("run", ()), 0, 0, [error])])
    where = " on node gpuA (10.0.0.1)" if count > 1 else ""
    assert lost.reason.startswith(f"the worker{where} was lost: {reason}")
    assert [line.startswith(f"worker 0{where} was lost ({reason}") for line in said] == [True]


class Actor(Handle):
    """An actor whose calls end as `outcomes` says, in order: an exception or a value."""

    def __init__(self, *outcomes):
        super().__init__(*["A"] * 20)
        self.outcomes = list(outcomes)
        method = SimpleNamespace(remote=lambda shared, *arguments: self.outcomes.pop(0))
        self.run = self.measure = SimpleNamespace(options=lambda num_returns: method)


@pytest.fixture
def deadly(monkeypatch):
    """`deadly(*outcomes)`: a pool of one actor with these outcomes of its calls, on a Ray that answers at once."""

    def get(value):
        if isinstance(value, Exception):
            raise value
        return value

    ray = SimpleNamespace(wait=lambda references, **options: (references, []), get=get, nodes=list)
    monkeypatch.setattr(worker_pool, "ray", ray)
    return lambda *outcomes: WorkerPool([Actor(*outcomes)], StoredExperiment(None), lambda text: None, TrafficCounter())


def test_a_call_behind_others_that_kill_its_worker_is_repeated_without_end(deadly):
    """Clients' work that kills a worker is submitted first, three times; the measurement behind it is harmless."""
    pool = deadly(*[ActorDiedError() for _ in range(7)], "measured")
    pool.submit(0, WorkerCall("run", ()))
    sent = pool.submit(0, WorkerCall("measure", ()))
    behind = []

    def send(lost):
        if len(behind) < 2:
            behind.append(pool.submit(0, WorkerCall("run", ())))
        return [pool.submit(0, WorkerCall("measure", ()))]

    assert pool.repeated([sent], 1, send) == ["measured"]


def test_a_call_that_kills_its_worker_by_itself_is_repeated_as_often_as_allowed(deadly):
    pool = deadly("worked", *[ActorDiedError() for _ in range(5)])
    work, measure = pool.submit(0, WorkerCall("run", ())), pool.submit(0, WorkerCall("measure", ()))
    assert pool.results([work]) == ["worked"]
    with pytest.raises(RaylflError, match="workers were lost 3 times in a row"):
        pool.with_retries([measure], 2)
    assert len(pool.actors[0].outcomes) == 2


@pytest.mark.parametrize("workers", [3, 200])
def test_results_of_a_round_are_waited_for_together(monkeypatch, workers):
    """Waiting for one result at a time would pass the other references again and again: 20,100 for 200 workers."""
    waits: list[int] = []

    def wait(references, num_returns=1, timeout=None):
        waits.append(len(references))
        return references[:num_returns], references[num_returns:]

    monkeypatch.setattr(worker_pool, "ray", SimpleNamespace(wait=wait, get=lambda value: value))
    actors = [Actor(f"result {w}") for w in range(workers)]
    pool = WorkerPool(actors, StoredExperiment(None), lambda text: None, TrafficCounter())
    assert sum(waits) <= 2 * workers
    waits.clear()
    sent = pool.send([WorkerCall("run", ())] * workers)
    assert pool.results(sent) == [f"result {w}" for w in range(workers)]
    assert waits == [workers]


def test_results_that_have_arrived_are_read_while_a_slow_one_is_waited_for(monkeypatch):
    answers = [["A"], ["b"], [], ["a", "c"]]  # of a ping, and to three waits of READ_SECONDS

    def wait(references, **options):
        assert options["timeout"] <= worker_pool.READ_SECONDS
        return answers.pop(0), []

    monkeypatch.setattr(worker_pool, "ray", SimpleNamespace(wait=wait, get=lambda value: value))
    pool = WorkerPool([Handle("A")], StoredExperiment(None), lambda text: None, TrafficCounter())
    sent = [CallInFlight(WorkerCall("run", (), timeout=60.0), 0, 0, [reference]) for reference in "abc"]
    assert pool.results(sent) == ["a", "b", "c"]


# -- samples of pinned clients -----------------------------------------------------------------------------------------


class Holder:
    """An actor that has the samples of the assigned workers in `has`, and raises for a call without others."""

    def __init__(self):
        self.has = []
        self.ping = self.run = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.call))

    def call(self, shared):
        _, assigned, samples = shared
        if assigned not in self.has:
            if samples is None:
                return RayTaskError("run", "", SamplesMissing()).as_instanceof_cause()
            assert samples == f"samples of {assigned}"
            self.has = [*self.has[:1], assigned]
        return "A"


@pytest.fixture
def holders(monkeypatch):
    """(a pool of two actors with samples, the actors, the workers whose samples were dealt)."""

    def get(value):
        if isinstance(value, Exception):
            raise value
        return value

    ray = SimpleNamespace(wait=lambda references, **options: (references, []), get=get, nodes=list)
    monkeypatch.setattr(worker_pool, "ray", ray)
    actors, dealt = [Holder(), Holder()], []
    stored = StoredExperiment(None, Placement(np.arange(2), (None, None)))
    deal = lambda worker: dealt.append(worker) or f"samples of {worker}"  # noqa: E731
    return WorkerPool(actors, stored, lambda text: None, TrafficCounter(), deal), actors, dealt


def lose(pool, actors, worker):
    actors[worker].has = []
    pool._note_loss(CallInFlight(WorkerCall("run", ()), worker, pool.restarts[worker], []), "lost")


def work(pool, worker, assigned):
    (result,) = pool.results([pool.submit(worker, WorkerCall("run", (), assigned=assigned))])
    return result


def test_each_worker_gets_its_samples_once_and_again_after_a_loss(holders):
    pool, actors, dealt = holders
    assert (pool.available(), dealt) == ([0, 1], [0, 1])
    assert [work(pool, w, w) for w in (0, 1, 0)] == ["A"] * 3
    lose(pool, actors, 0)
    assert pool.place(0, -1) == 1
    assert [work(pool, 1, w) for w in (0, 1, 0)] == ["A"] * 3
    assert dealt == [0, 1, 0, 0]  # for the restarted worker, and for the one that replaces it meanwhile
    assert (pool.available(), len(dealt)) == ([0, 1], 4)


def test_a_new_server_deals_no_samples_that_workers_have(holders):
    pool, actors, dealt = holders
    again = WorkerPool(actors, pool.stored, lambda text: None, TrafficCounter(), pool._deal)
    assert (again.available(), dealt) == ([0, 1], [0, 1])


def test_a_worker_that_ray_has_restarted_between_two_calls_counts_as_lost(holders):
    pool, actors, dealt = holders
    actors[1].has = []
    assert isinstance(work(pool, 1, 1), WorkerLost)
    assert pool.place(1, -1) == 0
    assert work(pool, 0, 1) == "A"
    assert dealt == [0, 1, 1, 1]
