"""A run on Ray, as seen from the process that started it: its rounds, and a new server actor where one is lost."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from raylfl.errors import RaylflError
from raylfl.parts import Experiment
from raylfl.runtime.ray.actor_group import ActorGroup
from raylfl.runtime.ray.cluster import Cluster, cluster_for
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.stopping import stop_on_signals

SERVER_LIVES = 5  # how often a lost server actor is started again without a finished round in between
Rows = Generator[tuple[dict[str, Any], list[str]], None, None]


def rows(experiment: Experiment, run_dir: RunDirectory, resume: bool) -> Rows:
    """(metrics, messages) of each round; a lost server actor is started again from its newest checkpoint."""
    with cluster_for(experiment.config.runtime) as cluster:
        yield from _rows(cluster, experiment, run_dir, resume)


def _rows(cluster: Cluster, experiment: Experiment, run_dir: RunDirectory, resume: bool) -> Rows:
    cluster.ready()  # while Ctrl-C still ends at once: there is no round yet to finish
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    shared: list[Any] = []
    seen, lives = -1, SERVER_LIVES
    unsaid: list[str] = []
    crew: ActorGroup | None = None
    asked = False

    def ask_to_stop() -> None:
        nonlocal asked
        if seen < 0:  # the server may still be starting: there is no round to finish
            raise KeyboardInterrupt
        asked = True
        if crew is not None:
            crew.server.stop.remote()

    with stop_on_signals(ask_to_stop):
        while True:
            whole = False
            crew = cluster.crew(experiment.config.runtime, experiment.world.count)
            try:
                shared = shared or [ray.put(experiment)]  # while their processes load what they need
                if asked:
                    crew.server.stop.remote()
                stream = crew.server.rows.options(num_returns="streaming")
                for reference in stream.remote(shared, crew.workers, str(run_dir.path), resume):
                    metrics, messages = ray.get(reference)
                    unsaid += messages
                    if metrics["round"] > seen:  # rounds repeated after a restart were seen already
                        seen, lives = metrics["round"], SERVER_LIVES
                        said, unsaid = unsaid, []
                        yield metrics, said
                whole = not asked
                return
            except (RayActorError, RayTaskError) as error:
                cause = _loss(error)
                lives -= 1
                if lives == 0:
                    raise RaylflError(
                        f"the server actor was lost {SERVER_LIVES} times without finishing a round ({cause})"
                    ) from error
                run_dir.log("the server actor, or what it kept, was lost: starting again from the newest checkpoint")
                resume = True
            finally:
                if whole:
                    cluster.give_back(crew)
                else:
                    crew.dismiss()


def _loss(error: Exception) -> Exception:
    """That an actor or an object was lost, where this is behind the error; any other error is raised as it was inside
    the actor, or inside one that the actor called.
    """
    from ray.exceptions import ObjectLostError, RayActorError

    cause = error
    while isinstance(inner := getattr(cause, "cause", None), Exception):
        cause = inner
    if not isinstance(cause, (RayActorError, ObjectLostError)):
        raise cause from None
    if getattr(cause, "actor_init_failed", False):
        raise RaylflError(f"the server actor could not start: {str(cause).strip().splitlines()[-1]}") from error
    return cause
