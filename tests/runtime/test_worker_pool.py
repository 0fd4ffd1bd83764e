"""The worker pool's waits for workers that start, with stand-ins for Ray and its actors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError

from raylfl.errors import RaylflError
from raylfl.runtime.ray import worker_pool
from raylfl.runtime.ray.stored import StoredExperiment
from raylfl.runtime.ray.traffic import TrafficCounter
from raylfl.runtime.ray.worker_pool import CallInFlight, WorkerCall, WorkerPool

RESTARTING = "The actor is temporarily unavailable: IOError: The actor is restarting."
DIED = "The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14"  # both are Ray's words
KILLED = "Worker unexpectedly exits. Some common causes include: (1) the process was killed by the OOM killer due to"


class Handle:
    """An actor whose pings have these answers, in order: an error's text, or None for an actor that is there."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.ping = SimpleNamespace(remote=lambda shared: self.answers.pop(0))


def raised(answer):
    if answer is not None:
        raise ActorUnavailableError(answer, None)


@pytest.fixture
def pool(monkeypatch):
    """`pool(*handles)` makes a pool of them, on a Ray that answers at once."""
    monkeypatch.setattr(worker_pool, "UNAVAILABLE_SECONDS", 0.0)
    ray = SimpleNamespace(wait=lambda references, **options: (references, []), get=raised)
    monkeypatch.setattr(worker_pool, "ray", ray)
    return lambda *handles: WorkerPool(handles, StoredExperiment(None), lambda text: None, TrafficCounter())


def test_a_worker_that_ray_restarts_slowly_is_waited_for(pool):
    assert pool(Handle(*[RESTARTING] * 100, None)).available() == [0]


def test_deaths_between_answers_that_ray_restarts_the_worker_are_counted(pool):
    with pytest.raises(RaylflError, match=r"worker 0 died 9 times as it started: .*Socket closed"):
        pool(Handle(*[RESTARTING, DIED] * 9, None)).available()


def test_a_slow_worker_delays_no_other(pool, monkeypatch):
    monkeypatch.setattr(worker_pool, "UNAVAILABLE_SECONDS", 3600.0)
    assert pool(Handle(RESTARTING), Handle(None)).available() == [1]


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
