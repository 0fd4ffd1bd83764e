"""A run that a command needs: its config and folder; it is complete there, can be resumed, or has to be made."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raylfl.config.identity import RUNTIME_FREE
from raylfl.config.load import Config, load_config
from raylfl.config.objects import ObjectLayer
from raylfl.config.urls import staging
from raylfl.errors import NonFinite
from raylfl.execution.prepare import prepare
from raylfl.python import api
from raylfl.python.control import Callback, Progress
from raylfl.runtime.records.files import atomic_write
from raylfl.runtime.records.mirror import copy_again, exists, refresh
from raylfl.runtime.records.provenance import foreign

DIVERGED = "diverged.txt"  # marks the folder of a diverged run, which is not repeated; has the reason
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

    def make(self, watch: Callable[[Progress], None] | None = None, callbacks: Sequence[Callback] = ()) -> None:
        """Makes or resumes the run; can be called in another process. watch, callbacks: as in `raylfl.run`.

        A run that diverges is marked as such in its folder, and no error is raised.
        """
        path = self.path if self.url is None else staging(self.url)  # of this machine
        if self.older is not None:
            self.older.rename(path)
        try:
            if self.begun:
                free = [f"runtime.{key}={_as_override(self.config['runtime'][key])}" for key in RUNTIME_FREE]
                known = list(foreign(self.config))
                api.resume(self.url or path, free, watch, known=known, callbacks=callbacks)
            else:
                api.begin(prepare(self.load()), watch, callbacks, self.identity)
        except NonFinite as error:
            from raylfl.runtime.records.summary import environment

            (path / "metrics.jsonl").touch()  # does not exist if the run diverged in round 0
            atomic_write(path / ORIGIN, json.dumps(environment(), indent=2) + "\n")
            atomic_write(path / DIVERGED, f"{error}\n")  # last, as it marks the run as complete
            copy_again(path)


def is_complete(folder: Path) -> bool:
    """Whether the run in this folder has finished or diverged."""
    return (folder / "summary.json").is_file() or (folder / DIVERGED).is_file()


def _as_override(value: Any) -> str:
    return "null" if value is None else str(value)
