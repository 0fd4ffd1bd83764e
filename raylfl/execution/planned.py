"""A run that a command needs: its config and folder; it is complete there, can be resumed, or has to be made."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylfl.config.identity import RUNTIME_FREE, refuse_changes
from raylfl.config.load import Config, load_config
from raylfl.config.objects import ObjectLayer
from raylfl.config.urls import staging
from raylfl.errors import NonFinite, exits_as_errors
from raylfl.python import api
from raylfl.python.control import Callback, Progress
from raylfl.python.result import one_at_a_time
from raylfl.runtime.records.files import atomic_write
from raylfl.runtime.records.mirror import copy_again, exists, local_folder, refresh
from raylfl.runtime.records.provenance import foreign
from raylfl.runtime.records.run_dir import DIVERGED, RunDirectory

if TYPE_CHECKING:
    from raylfl.experiment.parts import Experiment

ORIGIN = "diverged.json"  # commit, versions and machine of a diverged run, which has no summary.json


@dataclass(frozen=True)
class PlannedRun:
    """A run that a command needs: its label, its resolved config and its folder.

    older: the folder in which the run began, if its name has changed since. url: the address to which the run is
    copied. identity: the content of identity.txt in a new folder; None: there is no such file. objects: class path ->
    object, for classes and objects of this process that other processes cannot import.
    """

    label: str
    config: dict[str, Any]
    path: Path
    older: Path | None = None
    url: str | None = None
    identity: str | None = None
    objects: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return is_complete(self.path)

    @property
    def diverged(self) -> bool:
        return (self.path / DIVERGED).is_file()

    @property
    def begun(self) -> bool:
        """Whether the run exists, complete or interrupted."""
        return (self.path / "config.yaml").is_file() if self.url is None else exists(self.url)

    def fetch(self) -> None:
        """Copies the run's records from its URL, if any, to its folder: another machine may have made the run."""
        if self.url is not None:
            refresh(self.path, self.url)

    def load(self) -> Config:
        return load_config(self.config, (), ObjectLayer({}, self.objects))

    def on_this_node(self) -> PlannedRun:
        """The run with its folder on this node of a cluster, with the newest records of its URL, if any."""
        run = replace(self, path=self._path)
        run.fetch()
        return run

    def make(self, watch: Callable[[Progress], None] | None = None, callbacks: Sequence[Callback] = ()) -> None:
        """Makes or resumes the run; can be called in another process. watch, callbacks: as in `raylfl.run`.

        A run that diverges is marked as such in its folder, and no error is raised.
        """
        if self.complete:  # another process has made it since
            return
        try:
            with self._open(quiet=watch is not None) as (experiment, run_dir, again):
                api.carry_out(experiment, run_dir, again, watch, callbacks)
        except NonFinite as error:
            self._mark_diverged(error)

    def rounds(self) -> Generator[dict[str, Any], None, None]:
        """Makes or resumes the run like `make`; yields the metrics of each round, also of those made before.

        If the generator is closed early, a checkpoint is saved. A run at a URL is taken from the process that owns it.
        """
        if self.complete:
            yield from RunDirectory(self.path).metrics()
            return
        try:
            with (
                self._open(quiet=True, take_over=self.url is not None) as (experiment, run_dir, again),
                closing(api.rounds_of(experiment, run_dir, again, True)) as stream,
            ):
                for progress in stream:
                    yield progress.metrics
        except NonFinite as error:
            self._mark_diverged(error)

    @contextmanager
    def _open(self, quiet: bool, take_over: bool = False) -> Iterator[tuple[Experiment, RunDirectory, bool]]:
        """A context with the experiment, the locked run directory, and whether the run continues from a checkpoint."""
        path = self._path
        if self.older is not None:
            self.older.rename(path)
        experiment = None if self.begun else prepare(self.load())
        if experiment is not None and not self.begun:  # another process may have begun it since
            with api.new_run_directory(experiment, quiet) as run_dir:
                if self.identity is not None:
                    run_dir.write(api.IDENTITY, self.identity)
                yield experiment, run_dir, False
            return
        values = {key: self.config["runtime"][key] for key in RUNTIME_FREE}
        free = [f"runtime.{key}={'null' if value is None else value}" for key, value in values.items()]
        folder = local_folder(self.url or path, take_over)
        before, config = api.saved(folder, self.url or path, free, False, {}, list(foreign(self.config)))
        refuse_changes(before.resolved, config.resolved)
        experiment = api.checked(config)
        with api.reopened(folder, before, experiment) as run_dir:
            yield experiment, run_dir, True

    @property
    def _path(self) -> Path:
        return self.path if self.url is None else staging(self.url)  # of this machine

    def _mark_diverged(self, error: NonFinite) -> None:
        from raylfl.runtime.records import sources
        from raylfl.runtime.records.summary import environment

        origin = environment(one["file"] for one in sources.read(self._path).values())
        (self._path / "metrics.jsonl").touch()  # does not exist if the run diverged in round 0
        atomic_write(self._path / ORIGIN, json.dumps(origin, indent=2) + "\n")
        atomic_write(self._path / DIVERGED, f"{error}\n")  # last, as it marks the run as complete
        copy_again(self._path)


def is_complete(folder: Path) -> bool:
    """Whether the run in this folder has finished or diverged."""
    return (folder / "summary.json").is_file() or (folder / DIVERGED).is_file()


def prepare(config: Config) -> Experiment:
    """The checked experiment of a config; `local.lr={theory: PAPER}` is replaced by a number, in place.

    Weights of clients without effect are added to its warnings. Raises BadConfig for mistakes, and if no theorem of the
    paper gives a step size.
    """
    notes: list[str] = []
    if config.local.lr_by_theory is not None:
        from raylfl.theory.summary import resolve_rate

        with one_at_a_time(), exits_as_errors():
            notes = resolve_rate(config)
    experiment = api.checked(config)
    experiment.warnings.extend(notes)
    if config.top.weights != "uniform":
        from raylfl.theory.importance import unused_weights

        with one_at_a_time():
            experiment.warnings.extend(unused_weights(experiment))
    return experiment
