"""The actors of a run: a server and workers, which can be started before the run that uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import ray
import torch
from ray.exceptions import ObjectLostError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.experiment.parts import WorkerSetup
from raylfl.runtime.ray.actors import start_workers
from raylfl.runtime.ray.backend import RayBackend
from raylfl.runtime.ray.failures import StatesLost, loss_behind
from raylfl.runtime.ray.reservation import Bundle, Reservation
from raylfl.runtime.ray.resources import bundles_here, count_workers, names_of_nodes, nodes_of_cluster, workers_that_fit
from raylfl.runtime.ray.stored import StoredExperiment, StoredSamples
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.session import Session
from raylfl.startup import process


class ServerActor:
    """The server as a Ray actor: its process runs the round loop, for one run after another."""

    def __init__(self) -> None:
        process.set_up()
        torch.set_num_threads(1)
        self._session: Session | None = None
        self._stop_requested = False
        self._news: deque[str] = deque()  # lines about workers that were not yet passed on
        self._wanted: SimpleQueue[int] = SimpleQueue()  # workers whose clients' samples are needed
        self._dealt: SimpleQueue[StoredSamples] = SimpleQueue()
        self._answers: SimpleQueue[str | None] = SimpleQueue()  # lets the next round of a paced run start

    def rows(
        self, stored: StoredExperiment, workers: list[Any], folder: str, resume: bool, paced: bool
    ) -> Iterator[tuple[dict[str, Any], list[str], Any]]:
        """Executes a run; yields (metrics, messages, parameters) of each round.

        stored: the experiment; workers: the worker actors; folder: the run directory; resume: whether to start
        from the newest checkpoint. messages: lines for the user. paced: whether the run waits for a call of `proceed`
        after each round, and parameters [d] are yielded. Without `paced`, and for rounds before a resume, parameters
        are None. Raises StatesLost if states of clients or of graph nodes are lost: the run must be resumed.
        """
        run_dir = RunDirectory(Path(folder))  # the process that started the run keeps the lock

        def notify(text: str) -> None:
            run_dir.log(text)
            self._news.append(text)

        self._wanted, self._dealt = SimpleQueue(), SimpleQueue()  # a call for an earlier run may wait for the former
        backend: RayBackend | None = None
        try:
            experiment = ray.get(stored.experiment)
            backend = RayBackend(experiment, stored, workers, notify, self._deal)
            session = self._session = Session(experiment, backend, run_dir)
            if self._stop_requested:  # `stop` was called before the session existed
                session.stop()
            for metrics, messages, params in session.rows(resume, paced):
                yield metrics, self.news() + messages, None if params is None else params.numpy()
                if paced:
                    session.end(self._answers.get())
        except (RayTaskError, ObjectLostError) as error:
            loss_behind(error)
            raise StatesLost("objects of the run" if backend is None else backend.lost_objects()) from None
        finally:
            self._session, self._stop_requested = None, False  # `stop` was meant for this run
            run_dir.close()

    def _deal(self, worker: int) -> StoredSamples:
        """Requests the samples of a worker's clients from the process that has the data set, and waits for them."""
        self._wanted.put(worker)
        return self._dealt.get()

    def wanted(self) -> int | None:
        """The number of a worker whose clients' samples are needed; None if there is none for a second."""
        try:
            return self._wanted.get(timeout=1.0)
        except Empty:
            return None

    def take_samples(self, samples: StoredSamples) -> None:
        """Takes the samples for the newest number that `wanted` has returned."""
        self._dealt.put(samples)

    def proceed(self, reason: str | None) -> None:
        """Continues a paced run after a round; if `reason` is not None, the run ends there for this reason."""
        self._answers.put(reason)

    def news(self) -> list[str]:
        """New lines for the user about workers, each returned once; can be called during a round."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def stop(self) -> None:
        """Requests that the run ends after the current round, with a checkpoint."""
        self._stop_requested = True
        if self._session is not None:
            self._session.stop()


class ActorGroup:
    """The server actor and the worker actors of a run, and the reservation of the workers' resources."""

    def __init__(self, runtime: RuntimeConfig, workers: list[Any], reservation: Reservation | None):
        """A group with a new server actor. reservation: None in a placement group of the caller."""
        self.runtime, self.workers, self.reservation = runtime, workers, reservation
        self._bundles: list[Bundle] = []  # of the workers
        self.start_server()

    @staticmethod
    def start(runtime: RuntimeConfig, setup: WorkerSetup, notify: Callable[[str], None]) -> ActorGroup:
        """Starts the actors of a run, once there are resources for a worker; raises BadConfig without resources."""
        if (here := bundles_here()) is not None:
            count = count_workers(runtime, setup.population.count, here)
            return ActorGroup(runtime, start_workers(runtime, [None] * count), None)
        most = most_workers(runtime, setup)
        reservation = Reservation(runtime, most, names_of_nodes(setup, most))
        group = ActorGroup(runtime, [], reservation)
        try:
            reservation.wait(notify)
            group.regroup()
        except BaseException:
            group.dismiss()
            raise
        return group

    def start_server(self) -> None:
        """Starts a server actor on this node, where the run directory is.

        During a run its second thread waits in `wanted`, and its third one runs the other methods.
        """
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        remote = ray.remote(ServerActor).options(num_cpus=0, max_concurrency=3, scheduling_strategy=here)
        self.server: Any = remote.remote()

    def regroup(self) -> None:
        """Starts workers in the new bundles of the reservation, and ends the workers whose bundle was lost."""
        if self.reservation is None:
            return
        bundles, actors = list(self.reservation.bundles()), dict(zip(self._bundles, self.workers, strict=True))
        for lost in actors.keys() - bundles:
            ray.kill(actors[lost])
        new = [bundle for bundle in bundles if bundle not in actors]
        actors |= zip(new, start_workers(self.runtime, new), strict=True)
        self._bundles, self.workers = bundles, [actors[bundle] for bundle in bundles]

    def living(self) -> int:
        """The number of workers that have their resources, and are thus alive or being started."""
        return len(self.workers if self.reservation is None else self.reservation.bundles().keys() & self._bundles)

    def nodes(self) -> int:
        """The number of cluster nodes that have workers."""
        if self.reservation is not None:
            return len(set(self.reservation.bundles().values()))
        here = ray.util.placement_group_table(ray.util.get_current_placement_group())
        return len(set(here["bundles_to_node_id"].values()))

    def suit(self, runtime: RuntimeConfig, setup: WorkerSetup) -> bool:
        """Prepares the group for a run with these settings; returns False if the run needs other actors."""
        most, reservation = most_workers(runtime, setup), self.reservation
        share = attrgetter("cpus_per_worker", "gpus", "processes")
        if share(self.runtime) != share(runtime) or setup.nodes or not (runtime.workers or 1) <= len(self.workers):
            return False
        if reservation is None or reservation.names or len(self.workers) > most:
            return False
        reservation.runtime, reservation.most = runtime, most
        self.regroup()
        return len(self.workers) > 0

    def dismiss(self) -> None:
        """Ends the actors, and gives their resources back."""
        for actor in (self.server, *self.workers):
            ray.kill(actor)
        if self.reservation is not None:
            self.reservation.release()


def most_workers(runtime: RuntimeConfig, setup: WorkerSetup) -> int:
    """The largest number of workers of a run: `runtime.workers`, or if that is null, one per client.

    If clients' data are on certain nodes only, not more than fit on the cluster now, as these workers start together.
    """
    if runtime.workers is not None or not setup.nodes:
        return runtime.workers or setup.population.count
    fit = workers_that_fit(runtime, nodes_of_cluster())
    return min(setup.population.count, max(fit, len(set(setup.nodes))))
