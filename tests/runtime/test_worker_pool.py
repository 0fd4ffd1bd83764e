"""The worker pool's waits for workers that start, with stand-ins for Ray and its actors."""

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


class Actor:
    """An actor whose pings answer `A`, and whose calls end as `outcomes` says, in order: an exception or a value.

    Before that, pings end as `pings` says. restarts: how often Ray has started it again.
    """

    def __init__(self, *outcomes, pings=()):
        self.outcomes, self.pings, self.restarts = list(outcomes), list(pings), 0
        ping = SimpleNamespace(remote=lambda shared: self.pings.pop(0) if self.pings else "A")
        self.ping = SimpleNamespace(options=lambda max_task_retries: ping)
        method = SimpleNamespace(remote=lambda shared, *arguments: self.outcomes.pop(0))
        self.run = self.measure = SimpleNamespace(options=lambda num_returns: method)


def get(value):
    """The value of a reference that is its value; an exception is raised."""
    if isinstance(value, Exception):
        raise value
    return value


@pytest.fixture
def fake(monkeypatch):
    """`fake(**parts)`: replaces Ray, by default with one that answers at once; parts of it may differ."""

    def replace(**parts):
        usual = {"wait": lambda references, **options: (references, []), "get": get, "nodes": list}
        monkeypatch.setattr(worker_pool, "ray", SimpleNamespace(**usual | parts))
        monkeypatch.setattr(worker_pool, "restarts_of", lambda actor: actor.restarts)

    return replace


def pool_of(*actors, say=lambda text: None, stored=StoredExperiment(None), deal=None):  # noqa: B008
    return WorkerPool(list(actors), stored, say, TrafficCounter(), deal)


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
def test_a_lost_call_gives_the_reason_and_the_node_of_several(fake, error, reason, count):
    nodes = [
        {"NodeID": node, "NodeManagerHostname": f"gpu{node}", "NodeManagerAddress": "10.0.0.1"} for node in "AB"[:count]
    ]
    fake(nodes=lambda: nodes)
    said: list[str] = []
    (lost,) = pool_of(Actor(), say=said.append).results([CallInFlight(WorkerCall("run", ()), 0, 0, [error])])
    where = " on node gpuA (10.0.0.1)" if count > 1 else ""
    assert lost.reason.startswith(f"the worker{where} was lost: {reason}")
    assert [line.startswith(f"worker 0{where} was lost ({reason}") for line in said] == [True]


def test_a_call_behind_others_that_kill_its_worker_is_repeated_without_end(fake):
    """Clients' work that kills a worker is submitted first, three times; the measurement behind it is harmless."""
    fake()
    pool = pool_of(Actor(*[ActorDiedError() for _ in range(7)], "measured"))
    pool.submit(0, WorkerCall("run", ()))
    sent = pool.submit(0, WorkerCall("measure", ()))
    behind = []

    def send(lost):
        if len(behind) < 2:
            behind.append(pool.submit(0, WorkerCall("run", ())))
        return [pool.submit(0, WorkerCall("measure", ()))]

    assert pool.with_retries([sent], 1, send) == ["measured"]


def test_a_call_that_kills_its_worker_by_itself_is_repeated_as_often_as_allowed(fake):
    fake()
    pool = pool_of(Actor("worked", *[ActorDiedError() for _ in range(5)]))
    work, measure = pool.submit(0, WorkerCall("run", ())), pool.submit(0, WorkerCall("measure", ()))
    assert pool.results([work]) == ["worked"]
    with pytest.raises(RaylflError, match="workers were lost 3 times in a row"):
        pool.with_retries([measure], 2)
    assert len(pool.actors[0].outcomes) == 2


WAITING = ActorUnavailableError("The actor is temporarily unavailable: IOError: The actor is restarting.", None)


def test_a_lost_worker_without_a_node_is_called_again_and_again(fake):
    """Ray gives up a call of an actor that waits for a node; that is no death, of which only some are allowed."""
    fake()
    pool = pool_of(lost := Actor(ActorDiedError(), "worked", pings=["A", *[WAITING] * 20]), Actor())
    pool.results([pool.submit(0, WorkerCall("run", ()))])
    lost.restarts += 1
    for _ in range(20):
        assert pool.ready() == [1]
    assert pool.ready() == [0, 1]
    assert pool.results([pool.submit(0, WorkerCall("run", ()))]) == ["worked"]


def test_a_worker_that_dies_as_it_starts_or_was_ended_ends_the_run(fake):
    fake()
    dying, ended = Actor(pings=[WAITING] * 20), Actor(pings=[ActorDiedError()])

    def restart(references, **options):
        dying.restarts += 1
        return references, []

    fake(wait=restart)
    with pytest.raises(RaylflError, match=r"^worker 0 died (9|10) times as it started: "):
        pool_of(dying)
    with pytest.raises(RaylflError, match=r"^worker 0 was ended: "):
        pool_of(ended)


@pytest.mark.parametrize("workers", [3, 200])
def test_results_of_a_round_are_waited_for_together(fake, workers):
    """Waiting for one result at a time would pass the other references again and again: 20,100 for 200 workers."""
    waits: list[int] = []

    def wait(references, num_returns=1, timeout=None):
        waits.append(len(references))
        return references[:num_returns], references[num_returns:]

    fake(wait=wait)
    pool = pool_of(*[Actor(f"result {w}") for w in range(workers)])
    assert sum(waits) <= 2 * workers
    waits.clear()
    sent = pool.send([WorkerCall("run", ())] * workers)
    assert pool.results(sent) == [f"result {w}" for w in range(workers)]
    assert waits == [workers]


def test_results_that_have_arrived_are_read_while_a_slow_one_is_waited_for(fake):
    answers = [["A"], ["b"], [], ["a", "c"]]  # of a ping, and to three waits of READ_SECONDS

    def wait(references, **options):
        assert options["timeout"] <= worker_pool.READ_SECONDS
        return answers.pop(0), []

    fake(wait=wait)
    sent = [CallInFlight(WorkerCall("run", (), timeout=60.0), 0, 0, [reference]) for reference in "abc"]
    assert pool_of(Actor()).results(sent) == ["a", "b", "c"]


# -- samples of pinned clients -----------------------------------------------------------------------------------------


class Holder:
    """An actor that has the samples of the assigned workers in `has`, and raises for a call without others."""

    restarts = 0

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
def holders(fake):
    """(a pool of two actors with samples, the actors, the workers whose samples were dealt)."""
    fake()
    actors, dealt = [Holder(), Holder()], []
    stored = StoredExperiment(None, Placement(np.arange(2), (None, None)))
    return (
        pool_of(*actors, stored=stored, deal=lambda worker: dealt.append(worker) or f"samples of {worker}"),
        actors,
        dealt,
    )


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
