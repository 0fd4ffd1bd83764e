"""The driver of a run on Ray: receives the rounds from the server actor, and restarts lost actors."""

import math
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayTaskError

from raylfl.core.samples import as_tensor
from raylfl.errors import RaylflError
from raylfl.experiment.parts import Experiment
from raylfl.runtime.ray.actor_group import ActorGroup
from raylfl.runtime.ray.cluster import Cluster, RayLost, cluster_for
from raylfl.runtime.ray.failures import ACTOR_LOST, StatesLost, loss_behind, reason_of_loss
from raylfl.runtime.ray.resources import bundles_here, counted, nodes_of_cluster
from raylfl.runtime.ray.stored import StoredExperiment, put_samples
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.session import Interrupted
from raylfl.runtime.stopping import stop_on_signals

MOST_RESTARTS = 4  # largest number of restarts of the server actor or of Ray without a finished round in between
CHECK_SECONDS = 1.0  # seconds between two checks of Ray's own processes
SILENT_SECONDS = 10.0  # seconds without a round after which the server's news is requested
Item = tuple[dict[str, Any], list[str], Any]  # metrics of a round; messages since the previous round; parameters
Rows = Generator[Item, str | None, None]


def rows(experiment: Experiment, run_dir: RunDirectory, resume: bool, paced: bool = False) -> Rows:
    """Executes a run on Ray; yields (metrics, messages, parameters) of each round, as `Session.rows`.

    After the loss of the server, the run continues from the newest checkpoint with the same workers.
    """
    with cluster_for(experiment.config.runtime) as cluster:
        yield from RemoteRun(cluster, experiment, run_dir, resume, paced).rows()


class RemoteRun:
    """Executes a run whose server is an actor; continues it after the loss of the actor, or of the run's own Ray."""

    def __init__(self, cluster: Cluster, experiment: Experiment, run_dir: RunDirectory, resume: bool, paced: bool):
        self.cluster, self.experiment, self.run_dir, self.resume = cluster, experiment, run_dir, resume
        self.paced = paced
        self._end: tuple[float, str | None] = (math.inf, None)  # the round after which the caller ends the run; why
        self._stored: StoredExperiment | None = None  # the experiment in Ray's object store
        self._wanted: Any = None  # a reference to the number of the worker whose samples the server needs, if any does
        self._group: ActorGroup | None = None
        self._stop_requested = False
        self._seen, self._restarts = -1, 0  # the newest round; restarts since that round
        self._unsaid: list[str] = []  # lines for the user, which are yielded with the next round
        self._granted = False  # whether there are bundles for further workers
        self._regrouping = False  # whether the server's call was ended so that workers are added
        self._advanced = False  # whether the current attempt has finished a round
        self._news: Any = None  # a reference to lines requested from the server

    def rows(self) -> Rows:
        self.cluster.ready()  # before signals are handled: Ctrl-C still ends the run at once
        self.experiment = self.experiment.on(sum(node.get("GPU", 0.0) for node in bundles_here() or nodes_of_cluster()))
        for note in self.cluster.notes:
            self._say(note)
        self.cluster.notes.clear()
        reusable = False
        try:
            with stop_on_signals(self._stop):
                while not (yield from self._attempt()):
                    self.resume = True
            reusable = not self._stop_requested
        finally:
            group, self._group = self._group, None
            if group is not None and reusable:
                self.cluster.give_back(group)
            elif group is not None and self.cluster.lost() is None and not self.cluster.silent:
                group.dismiss()  # if Ray is lost, its actors are, too

    def _attempt(self) -> Generator[Item, str | None, bool]:
        """Yields rounds until the end of the run, and returns True.

        Returns False if the run must continue from its newest checkpoint: after the loss of the server or of the run's
        own Ray, which are then started again, after the loss of states, and with other workers.
        """
        try:
            yield from self._rounds()
            return True
        except RayLost as error:
            self._count_restart("Ray", str(error))
            self._say(f"{error}: starting a new Ray; the run continues from its newest checkpoint")
            self._stored = self._group = None
            self.cluster.start_again()
        except (*ACTOR_LOST, RayTaskError) as error:
            assert self._group is not None
            if self._regrouping and not self._stop_requested and isinstance(error, (Interrupted, *ACTOR_LOST)):
                before = self._group.living()
                self._group.regroup()
                self._say(f"the run continues on {counted(len(self._group.workers), 'worker')} instead of {before}")
            elif isinstance(error, StatesLost):
                lost = str(getattr(error, "cause", error))  # Ray's own text has its traceback
                self._count_restart(lost, "with their nodes")
                self._granted = self._granted or self._regrouping  # workers could not be added yet
                self._say(f"{lost} were lost: starting again from the newest checkpoint")
            else:
                reason = reason_of_loss(loss_behind(error))
                self._count_restart("the server actor", reason)
                self._say(f"the server actor was lost ({reason}): continuing from the newest checkpoint")
            if isinstance(error, ACTOR_LOST):
                self._group.start_server()
        return False

    def _rounds(self) -> Rows:
        """Yields the rounds that one server actor carries out, until the end of the run or the loss of the actor."""
        if self._group is None:
            runtime, setup = self.experiment.config.runtime, self.experiment.setup
            self._group = self.cluster.take_actors(runtime, setup, self._print)
        group, self._regrouping, self._advanced, self._news = self._group, False, False, None
        workers, wanted = len(group.workers), self.experiment.config.runtime.workers or 0
        if group.reservation is not None and workers < wanted:
            lack = group.reservation.lack()
            self._say(f"{counted(workers, 'worker')}: {lack}; others are added when there is room")
        try:
            experiment = self.experiment.placed(workers, group.nodes())
            if self._stored is None or len(self._stored.placement.nodes) != workers * experiment.setup.assigned:
                self._stored = StoredExperiment.put(experiment, workers)  # actors import their modules meanwhile
            if self._stop_requested:
                group.server.stop.remote()
            call = group.server.rows.options(num_returns="streaming")
            stream = call.remote(self._stored, group.workers, str(self.run_dir.path), self.resume, self.paced)
            self._wanted = group.server.wanted.remote() if self._stored.assigned else None
            for metrics, messages, params in self._items(stream):
                self._unsaid += messages
                if metrics["round"] > self._seen:  # rounds repeated after a restart have been yielded before
                    self._seen, self._restarts, self._advanced = metrics["round"], 0, True
                    said, self._unsaid = self._unsaid, []
                    try:
                        reason = yield metrics, said, None if params is None else as_tensor(params)
                    except GeneratorExit:
                        self._save(stream)
                        raise
                    if reason is not None:
                        self._end = metrics["round"], reason
                if self.paced:
                    last, why = self._end
                    group.server.proceed.remote(why if metrics["round"] >= last else None)
        except Exception:
            self.cluster.await_answer()  # raises an error if Ray itself caused this one
            raise

    def _save(self, stream: Any) -> None:
        """Ends the server's call of a paced run, which waits after a round, with a checkpoint."""
        if self.paced and self._group is not None:
            self._group.server.stop.remote()
            self._group.server.proceed.remote(None)
            with suppress(Exception):  # Interrupted, unless that was the last round
                for _ in self._items(stream):
                    pass

    def _regroup_if_possible(self) -> None:
        """Ends the server's call if workers can be added, with a checkpoint if a worker can finish the round."""
        group = self._group
        if group is None or group.reservation is None:
            return
        self._granted = group.reservation.update() or self._granted
        living = group.living()
        if self._granted and not self._regrouping and (self._advanced or not living):
            self._regrouping, self._granted = True, False
            if living:
                group.server.stop.remote()
            else:
                ray.kill(group.server)

    def _items(self, stream: Any) -> Iterator[Item]:
        """Yields the values of a stream as they arrive; checks Ray's own processes between them."""
        checked = last_round_at = time.monotonic()
        while True:
            requests = [] if self._wanted is None else [self._wanted]
            ready, _ = ray.wait([stream, *requests], timeout=CHECK_SECONDS)
            self._print_news()
            now = time.monotonic()
            if self._wanted in ready:
                self._deal_samples()
                ready = []
            if now - checked > CHECK_SECONDS:
                checked = now
                self.cluster.check()
                self._regroup_if_possible()
            if ready:
                try:
                    reference = next(stream)
                except StopIteration:
                    self._print_news(CHECK_SECONDS)
                    return
                last_round_at = now
                yield ray.get(reference)
            elif now - last_round_at > SILENT_SECONDS and self._group is not None and self._news is None:
                self._news = self._group.server.news.remote()

    def _deal_samples(self) -> None:
        """Puts the samples that the server needs into the object store; keeps no reference to them."""
        stored, group = self._stored, self._group
        assert stored is not None
        assert group is not None
        if (worker := ray.get(self._wanted)) is not None:
            group.server.take_samples.remote(put_samples(self.experiment.setup, stored.placement, worker))
        self._wanted = group.server.wanted.remote()

    def _print_news(self, seconds: float = 0) -> None:
        """Prints the requested lines about workers if they arrive within `seconds`."""
        if self._news is not None and ray.wait([self._news], timeout=seconds)[0]:
            lines, self._news = ray.get(self._news), None
            for line in lines:
                print(f"raylfl: {line}", file=sys.stderr)

    def _print(self, line: str) -> None:
        """Prints a line for the user before the first round, and logs it."""
        self.run_dir.log(line)
        print(f"raylfl: {line}", file=sys.stderr)

    def _count_restart(self, what: str, reason: str) -> None:
        """Counts a restart after the loss of `what`; raises RaylflError after too many without a finished round."""
        if self._restarts == MOST_RESTARTS:
            raise RaylflError(f"lost {MOST_RESTARTS + 1} times without finishing a round: {what} ({reason})")
        self._restarts += 1

    def _stop(self) -> None:
        """Requests that the run ends after the current round; raises KeyboardInterrupt before the first round."""
        if self._seen < 0:  # the server may still be starting
            raise KeyboardInterrupt
        self._stop_requested = True
        if self._group is not None:
            self._group.server.stop.remote()

    def _say(self, text: str) -> None:
        self.run_dir.log(text)
        self._unsaid.append(text)
