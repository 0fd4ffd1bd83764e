"""A run in the calling process, without Ray."""

from collections.abc import Callable, Generator

import torch
from torch import Tensor

from raylfl.experiment.parts import Experiment, WorkerSetup
from raylfl.runtime.faults import Fault
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.round.state import Metrics
from raylfl.runtime.session import Session
from raylfl.runtime.stopping import stop_on_signals
from raylfl.runtime.workers.backend import LocalBackend


def rows(
    experiment: Experiment,
    run_dir: RunDirectory,
    resume: bool,
    fault: Fault | None = None,
    paced: bool = False,
    make: Callable[[WorkerSetup], LocalBackend] = LocalBackend,
) -> Generator[tuple[Metrics, list[str], Tensor | None], str | None, None]:
    """Executes a run; yields (metrics, messages, parameters) of each round.

    A reason (text) sent to the generator ends the run after the yielded round. resume: whether to start from the newest
    checkpoint. messages: lines for the user. paced: whether parameters [d] are yielded, and a checkpoint is saved if
    the generator is closed early; without `paced`, and for rounds before a resume, parameters are None. fault: as in
    `Session`. make: creates the backend.
    """
    experiment = experiment.on(torch.cuda.device_count())
    backend = make(experiment.setup)
    try:
        session = Session(experiment, backend, run_dir, fault)
        with stop_on_signals(session.stop):
            for metrics in session.rows(resume):
                messages, session.messages = session.messages, []
                try:
                    session.end((yield metrics, messages, session.params if paced and session.fresh else None))
                except GeneratorExit:
                    if paced:
                        session.save()
                    raise
    finally:
        backend.close()
