"""Checks on whole runs of an algorithm: equal bits on any worker, after any kill, and from a saved config.

Each check takes the algorithm's settings as on a command line (`["algorithm.class_path=mine.FedCM"]`) and an empty
folder. The runs of a check are small and need no other process. A run has six clients; a round samples at most three of
the available clients, and some rounds are empty. Some uploads are lost, and the numbers of local steps K_i differ.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raylfl.components.registry import NAMING
from raylfl.config.components import keys_of
from raylfl.config.load import Config, load_config
from raylfl.core.algorithm import State
from raylfl.core.deferred import Deferred
from raylfl.core.torch_state import torch_defaults
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.experiment.parts import Experiment, WorkerSetup
from raylfl.runtime.check import check
from raylfl.runtime.faults import Fault
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.session import rows_in_process, write_records
from raylfl.runtime.workers.backend import BlockCall, LocalBackend
from raylfl.runtime.workers.task import Task, TaskResult
from raylfl.runtime.workers.worker import Worker
from raylfl.testing.bench import must

PHASES = ("draw", "train", "collect", "aggregate", "commit", "log", "checkpoint")
MACHINE = ("time/round", "traffic/")  # metrics that depend on where a run is carried out
SMALL: dict[str, Any] = {
    "name": "contract",
    "rounds": len(PHASES) + 1,
    "data": {"name": "logistic_regression_synthetic", "init_args": {"num_clients": 6, "rows_per_client": 10, "dim": 4}},
    "model": {"name": "mlp", "init_args": {"hidden": [3]}},
    "partition": {"name": "natural"},
    "participation": {"name": "uniform", "size": 3, "availability": {"name": "bernoulli", "p": 0.4}},
    "link": {"name": "bernoulli", "q": 0.3},
    "local": {"steps": {"uniform": [1, 3]}, "batch_size": 4, "lr": 0.02},
    "eval": {"every": 3},
    "checkpoint": {"every": 2, "keep": 1},
    "runtime": {"backend": "local"},
    "logging": {"report": False, "loggers": []},
}
Rows = Callable[[Experiment, RunDirectory, bool, Fault | None], Generator[Any, None, None]]


class Killed(BaseException):
    """The exception that ends a run in place of SIGKILL; no `except Exception` catches it."""


def strike(phase: str, r: int, with_: BaseException | None = None) -> Fault:
    """A fault function that raises `Killed`, or the given exception, when round r reaches the phase.

    phase: one of `PHASES`; the result is the argument `fault` of `carry_out`.
    """

    def fault(at: str, now: int) -> None:
        if (at, now) == (phase, r):
            raise with_ or Killed(f"{phase} of round {r}")

    return fault


def killed(call: Callable[[], object]) -> None:
    """Call a function that must end with the exception `Killed`; raises AssertionError if it returns."""
    try:
        call()
    except Killed:
        return
    raise AssertionError("the kill point was never reached")


@torch_defaults()
def carry_out(
    config: Mapping[str, Any] | Path,
    folder: Path,
    overrides: Sequence[str] = (),
    resume: bool = False,
    fault: Fault | None = None,
    rows: Rows = rows_in_process,
) -> None:
    """Run a config, or resume its run, with the given folder as run directory and in this process.

    config: a config's content or file. overrides: settings as on a command line. resume: whether to continue the run in
    the folder. fault: called with each phase and round number; may raise. rows: the function that runs the
    rounds.
    """
    experiment = check(assemble(load_config(config, overrides)))
    folder.joinpath("checkpoints").mkdir(parents=True, exist_ok=True)
    run_dir = RunDirectory(folder).open()
    try:
        if not resume:
            write_records(experiment, run_dir)
        with closing(rows(experiment, run_dir, resume, fault)) as stream:
            for _ in stream:
                pass
    finally:
        run_dir.close()


def outcome(folder: Path) -> dict[str, Any]:
    """The content of a finished run's folder that must be the same in equal runs: records, and parameters as bytes.

    Metrics of time and traffic are left out, since they depend on the machine.
    """
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    final = torch.load(folder / "final.pt", weights_only=True)
    return {
        "metrics": [{k: v for k, v in row.items() if not k.startswith(MACHINE)} for row in metrics],
        "participation": (folder / "participation.jsonl").read_text(),
        "params": final["params"].numpy().tobytes(),
        "nodes": final["nodes"].numpy().tobytes() if "nodes" in final else b"",
        "state_dict": {k: v.numpy().tobytes() for k, v in final["state_dict"].items()},
    }


class RandomWorkers(LocalBackend):
    """A backend that gives each task to a random one of seven workers, in random order.

    The results are in the order of the tasks, as in any backend.
    """

    count = 7
    shared_memory = False  # each call may be on another worker

    def __init__(self, setup: WorkerSetup):
        self.all, self.rng = [Worker(setup) for _ in range(self.count)], np.random.default_rng()
        super().__init__(setup)

    @property
    def worker(self) -> Worker:
        return self.all[self.rng.integers(self.count)]

    @worker.setter
    def worker(self, first: Worker) -> None:
        self.all[0] = first

    def run(self, tasks: Sequence[Task], broadcast: State) -> Deferred[list[TaskResult]]:
        some = super().run

        def results() -> list[TaskResult]:
            out = dict[int, TaskResult]()
            for share in np.array_split(self.rng.permutation(len(tasks)), 3):
                done = some([tasks[k] for k in share], broadcast).result()
                out |= dict(zip(share.tolist(), done, strict=True))
            return [out[k] for k in range(len(tasks))]

        return Deferred(results)

    def run_blocks(self, calls: Sequence[BlockCall]) -> Deferred[list[Any]]:
        some = super().run_blocks

        def answers() -> list[Any]:
            out = {int(k): some([calls[k]]).result()[0] for k in self.rng.permutation(len(calls))}
            return [out[k] for k in range(len(calls))]

        return Deferred(answers)

    def evaluate(self, broadcast: Any, chunks: Any) -> Any:
        one = super().evaluate
        return Deferred(lambda: [one(broadcast, [chunk]).result()[0] for chunk in chunks])

    def objective(self, broadcast: Any, groups: Any) -> Any:
        one = super().objective
        return Deferred(lambda: [one(broadcast, [group]).result()[0] for group in groups])


# -- checks ----------------------------------------------------------------------------------------------------------


def configured(settings: Sequence[str]) -> Config:
    """The config of the checks' runs with these settings; raises BadConfig for invalid settings.

    An algorithm that assumes full participation or equal steps gets a config that satisfies the assumption.
    """
    config = load_config(SMALL, settings)
    if config.algorithm.assumes_full:
        config = load_config(SMALL, [*settings, "participation=full", "link=perfect"])
    if config.algorithm.assumes_equal_steps:
        config = load_config(config.resolved, ["local.steps=2"])
    return config


def has_the_same_bits_on_any_worker(settings: Sequence[str], folder: Path) -> None:
    """Check that a run on one worker and a run with random workers and task order have the same bits."""
    config = configured(settings).resolved
    carry_out(config, folder / "one")
    carry_out(config, folder / "crowd", rows=partial(rows_in_process, make=RandomWorkers))
    _same_runs(folder / "one", folder / "crowd", "with seven workers the run differs")


def resumes_after_a_kill_in_every_phase(settings: Sequence[str], folder: Path) -> None:
    """Check that a run killed once in every phase and resumed each time has the bits of an undisturbed run."""
    config = configured(settings).resolved
    carry_out(config, folder / "clean", ["checkpoint.every=0"])
    for r, phase in enumerate(PHASES, 1):
        dying = partial(carry_out, config, folder / "killed", resume=r > 1, fault=strike(phase, r))
        killed(dying)
    carry_out(config, folder / "killed", resume=True)
    _same_runs(folder / "clean", folder / "killed", "killed in every phase and resumed, the run differs")
    uses_its_checkpoints(folder / "killed")


def uses_its_checkpoints(folder: Path) -> None:
    """Check that no checkpoint of a resumed run was set aside: the state must fit the one before round 0.

    A server state keeps its keys, dtypes and shapes, except in dimensions that are empty before round 0.
    """
    damaged = sorted(path.name for path in (folder / "checkpoints").glob("damaged_*"))
    must(not damaged, f"{', '.join(damaged)}: a state does not fit the one before round 0 (log.txt names it)")


def its_saved_config_repeats_the_run(settings: Sequence[str], folder: Path) -> None:
    """Check that a run of the `config.yaml` in a run directory has the bits of the original run."""
    carry_out(configured(settings).resolved, folder / "first")
    carry_out(folder / "first" / "config.yaml", folder / "again")
    _same_runs(folder / "first", folder / "again", "a run of its own config.yaml differs")


def refuses_what_is_no_option(settings: Sequence[str], folder: Path) -> None:
    """Check that unknown options and values of the wrong type raise BadConfig."""
    algorithm = type(configured(settings).algorithm)
    for option in ("no_such_option", *(key for key in keys_of(algorithm) if key not in NAMING)):
        try:
            load_config(SMALL, [*settings, f"algorithm.{option}={{not: [a, value]}}"])
        except BadConfig:
            continue
        must(False, f"algorithm.{option}={{not: [a, value]}} was accepted: declare its type, `{option}: float = 1.0`")


def _same_runs(one: Path, other: Path, otherwise: str) -> None:
    a, b = outcome(one), outcome(other)
    different = [what for what in a if a[what] != b[what]]
    if "metrics" in different:
        rounds = [x["round"] for x, y in zip(a["metrics"], b["metrics"], strict=False) if x != y]
        otherwise += f" from round {rounds[0]}" if rounds else ", in the number of rounds"
    must(not different, f"{otherwise}: {', '.join(different)} differ")


RUN_CHECKS: dict[str, Callable[[Sequence[str], Path], None]] = {
    check.__name__: check
    for check in (
        has_the_same_bits_on_any_worker,
        resumes_after_a_kill_in_every_phase,
        its_saved_config_repeats_the_run,
        refuses_what_is_no_option,
    )
}
"""Every check of whole runs by its name; each raises ContractBroken."""
