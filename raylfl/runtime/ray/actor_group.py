"""The actors of a run: a server and its workers, which can be started before the run that needs them is ready."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylfl.config.schema import RuntimeConfig
from raylfl.startup import process

if TYPE_CHECKING:
    from raylfl.runtime.session import Session


class ServerActor:
    """The round loop with an address; it owns every client's state. One run after another."""

    def __init__(self) -> None:
        process.set_up()
        import torch

        import raylfl.runtime.ray.backend
        import raylfl.runtime.session  # noqa: F401 - loaded before they are needed

        torch.set_num_threads(1)
        self._session: Session | None = None
        self._asked_to_stop = False

    def rows(
        self, shared: list[Any], workers: list[Any], folder: str, resume: bool
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """(metrics, messages) of each round of the experiment that `shared` refers to."""
        import ray

        from raylfl.runtime.ray.backend import RayBackend
        from raylfl.runtime.records.run_dir import RunDirectory
        from raylfl.runtime.session import Session

        experiment = ray.get(shared[0])
        run_dir = RunDirectory(Path(folder))  # the lock stays with the process that started the run
        session: Session | None = None

        def say(text: str) -> None:  # news of the workers; before there is a session, for log.txt alone
            (session.say if session is not None else run_dir.log)(text)

        try:
            session = self._session = Session(experiment, RayBackend(experiment, shared[0], workers, say), run_dir)
            if self._asked_to_stop:  # before there was anything to stop
                session.stop()
            for metrics in session.rows(resume):
                messages, session.messages = session.messages, []
                yield metrics, messages
        finally:
            self._session = None
            run_dir.close()

    def stop(self) -> None:
        self._asked_to_stop = True
        if self._session is not None:
            self._session.stop()


@dataclass(frozen=True)
class ActorGroup:
    """Handles of a server actor and of worker actors, and what the latter were started with."""

    server: Any
    workers: list[Any]
    share: tuple[float, float]  # CPUs and GPUs of a worker

    @staticmethod
    def start(runtime: RuntimeConfig, count: int) -> ActorGroup:
        """Actors that load their modules as soon as Ray has processes for them; returns at once."""
        from raylfl.runtime.ray.actors import start_workers

        return ActorGroup(_start_server(), start_workers(runtime, count), _share(runtime))

    def fits(self, runtime: RuntimeConfig, count: int) -> bool:
        return len(self.workers) == count and self.share == _share(runtime)

    def dismiss(self) -> None:
        import ray

        for actor in (self.server, *self.workers):
            ray.kill(actor)


def _share(runtime: RuntimeConfig) -> tuple[float, float]:
    return runtime.cpus_per_worker, runtime.gpus_per_worker


def _start_server() -> Any:
    """On this node, where the run directory is; two threads, so that it can be asked to stop while it works."""
    import ray

    remote = ray.remote(ServerActor).options(num_cpus=0, max_concurrency=2, scheduling_strategy=_this_node())
    return remote.remote()


def _this_node() -> Any:
    """This node, within the placement group that this process is in, if any: the workers then are there, too."""
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
