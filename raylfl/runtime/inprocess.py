"""A run in the calling process: the same session, without Ray."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from raylfl.parts import Experiment
from raylfl.runtime.faults import Fault
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.session import Session
from raylfl.runtime.stopping import stop_on_signals
from raylfl.runtime.workers.backend import LocalBackend


def rows(
    experiment: Experiment, run_dir: RunDirectory, resume: bool, fault: Fault | None = None
) -> Generator[tuple[dict[str, Any] | None, list[str]], None, None]:
    """Runs the experiment in this process; yields (metrics, messages) of each round."""
    backend = LocalBackend(experiment.setup)
    try:
        session = Session(experiment, backend, run_dir, fault)
        with stop_on_signals(session.stop):
            for metrics in session.rows(resume):
                messages, session.messages = session.messages, []
                yield metrics, messages
    finally:
        backend.close()
