"""The actors of a run: a server and workers, which can be started before the run that uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.startup import collector, process

if TYPE_CHECKING:
    from raylfl.runtime.ray.stored import StoredExperiment
    from raylfl.runtime.session import Session

MOST_LOSSES = 4  # largest number of losses of client states without a finished round in between


class ServerActor:
    """The server as a Ray actor: its process runs the round loop, for one run after another."""

    def __init__(self) -> None:
        process.set_up()
        import torch

        import raylfl.runtime.ray.backend
        import raylfl.runtime.session  # noqa: F401 - loaded in advance

        torch.set_num_threads(1)
        collector.restore()
        self._session: Session | None = None
        self._stop_requested = False
        self._news: deque[str] = deque()  # lines about workers that were not yet passed on
        self._answers: SimpleQueue[str | None] = SimpleQueue()  # lets the next round of a paced run start

    def rows(
        self, stored: StoredExperiment, workers: list[Any], folder: str, resume: bool, paced: bool
    ) -> Iterator[tuple[dict[str, Any], list[str], Any]]:
        """Carries out a run; yields (metrics, messages, parameters) of each round.

        stored: the experiment; workers: handles of worker actors; folder: the run directory; resume: whether to start
        from the newest checkpoint. messages: lines for the user. paced: whether the run waits for a call of `proceed`
        after each round, and parameters [d] are yielded. Without `paced`, and for rounds before a resume, parameters
        are None.

        If client states are lost, the run continues from its newest checkpoint. Raises StatesLost after more than
        MOST_LOSSES losses without a finished round in between.
        """
        from raylfl.runtime.workers.state_store import StatesLost

        newest, losses = -1, 0  # round; losses of client states since that round
        while True:
            try:
                for item in self._rows(stored, workers, folder, resume, paced):
                    if item[0]["round"] > newest:
                        newest, losses = item[0]["round"], 0
                    yield item
                return
            except StatesLost:
                losses, resume = losses + 1, True
                if losses > MOST_LOSSES:
                    raise

    def _rows(
        self, stored: StoredExperiment, workers: list[Any], folder: str, resume: bool, paced: bool
    ) -> Iterator[tuple[dict[str, Any], list[str], Any]]:
        """Yields the items of `rows` up to the first loss of client states, which raises StatesLost."""
        import ray

        from raylfl.runtime.ray.backend import RayBackend
        from raylfl.runtime.records.run_dir import RunDirectory
        from raylfl.runtime.session import Session
        from raylfl.runtime.workers.state_store import StatesLost

        experiment = ray.get(stored.experiment)
        run_dir = RunDirectory(Path(folder))  # the process that started the run keeps the lock

        def notify(text: str) -> None:
            run_dir.log(text)
            self._news.append(text)

        backend: RayBackend | None = None
        try:
            backend = RayBackend(experiment, stored, workers, notify)
            session = self._session = Session(experiment, backend, run_dir)
            if self._stop_requested:  # `stop` was called before the session existed
                session.stop()
            for metrics in session.rows(resume):
                messages, session.messages = session.messages, []
                params = session.params.numpy() if paced and session.fresh else None
                yield metrics, self.news() + messages, params
                if paced:
                    session.end(self._answers.get())
        except StatesLost as error:
            notify(f"{error}: starting again from the newest checkpoint")
            raise
        finally:
            self._session = None
            if backend is not None:
                backend.drop_states()
            run_dir.close()

    def proceed(self, reason: str | None) -> None:
        """Continues a paced run after a round; if `reason` is not None, the run ends there for this reason."""
        self._answers.put(reason)

    def news(self) -> list[str]:
        """New lines for the user about workers, each returned once; can be called during a round."""
        lines = []
        while self._news:
            lines.append(self._news.popleft())
        return lines

    def stop(self) -> None:
        """Requests that the run ends after the current round, with a checkpoint."""
        self._stop_requested = True
        if self._session is not None:
            self._session.stop()


@dataclass(frozen=True)
class ActorGroup:
    """The server actor and the worker actors of a run, and the settings with which the workers were started."""

    server: Any
    workers: list[Any]
    share: tuple[float, float]  # CPUs and GPUs of a worker
    nodes: tuple[str | None, ...]  # for each worker, the custom resource of its node

    @staticmethod
    def start(runtime: RuntimeConfig, nodes: tuple[str | None, ...]) -> ActorGroup:
        """Requests the actors from Ray, one worker per entry of `nodes`; returns at once.

        nodes: for each worker, the custom Ray resource that its node must have, None for any node.
        """
        from raylfl.runtime.ray.actors import start_workers

        return ActorGroup(_start_server(), start_workers(runtime, nodes), _share(runtime), nodes)

    def fits(self, runtime: RuntimeConfig, nodes: tuple[str | None, ...]) -> bool:
        """Whether a run with these settings can use these actors."""
        return self.nodes == nodes and self.share == _share(runtime)

    def dismiss(self) -> None:
        """Ends the actors."""
        import ray

        for actor in (self.server, *self.workers):
            ray.kill(actor)


def _share(runtime: RuntimeConfig) -> tuple[float, float]:
    return runtime.cpus_per_worker, runtime.gpus


def _start_server() -> Any:
    """Starts the server actor on this node, where the run directory is.

    Its second thread runs `stop`, `news` and `proceed` during a run.
    """
    import ray

    remote = ray.remote(ServerActor).options(num_cpus=0, max_concurrency=2, scheduling_strategy=_this_node())
    return remote.remote()


def _this_node() -> Any:
    """The scheduling strategy with which Ray starts an actor on this node.

    In a placement group, the actor is placed in the group's bundle on this node.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    node, group = ray.get_runtime_context().get_node_id(), ray.util.get_current_placement_group()
    if group is None:
        return NodeAffinitySchedulingStrategy(node, soft=False)
    where = ray.util.placement_group_table(group)["bundles_to_node_id"]
    index = next((int(k) for k, holder in where.items() if holder == node), -1)
    return PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=index, placement_group_capture_child_tasks=True
    )
