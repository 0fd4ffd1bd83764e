"""The Python interface: `run`, `compare`, `resume` and their results.

Modules that need torch or Ray are imported inside the functions, after the config has been checked, so that mistakes
are reported at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylfl.config.changes import refuse_changes
from raylfl.config.load import Config, load_config, load_configs
from raylfl.core.torch_state import torch_defaults
from raylfl.errors import BadConfig
from raylfl.extras import LOGGERS, require
from raylfl.runtime.stopping import sigterm_interrupts

if TYPE_CHECKING:
    import torch

    from raylfl.parts import Experiment
    from raylfl.runtime.records.run_dir import RunDirectory

Watch = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """The progress after each round, for a watcher: metrics, and lines for the user since the previous round."""

    experiment: Experiment
    run_dir: Path
    metrics: dict[str, Any] | None
    messages: list[str]


@dataclass(frozen=True)
class Result:
    """The result of a finished run; metrics: one dict per round; params [d]: on the CPU, in the config's dtype."""

    metrics: list[dict[str, Any]]
    params: torch.Tensor
    run_dir: Path
    config: Config

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json says of the run."""
        found: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return found

    @property
    @torch_defaults()
    def module(self) -> Any:
        """The LightningModule with the final parameters and buffers."""
        import torch

        from raylfl.runtime.workers.module import make_module

        module = make_module(self.config.model, self.config.top.seed).to(self.params.dtype)
        module.load_state_dict(torch.load(self.run_dir / "final.pt", weights_only=True)["state_dict"])
        return module


def run(
    source: str | Path | Mapping[str, Any] | Any, overrides: Sequence[str] = (), watch: Watch | None = None
) -> Result:
    """Carries out one run of a config (a path, a bare name, a dict or a DictConfig) with `key=value` overrides.

    watch: called after each round. Raises BadConfig for mistakes, before anything is started.
    """
    config = load_config(source, overrides)
    return _begin(checked(config), watch)


def compare(
    source: str | Path | Mapping[str, Any] | Any,
    overrides: Sequence[str],
    algorithms: Sequence[str],
    watch: Watch | None = None,
) -> list[Result]:
    """Runs one config with several algorithms, one after the other on one Ray session.

    With equal seeds all runs have the same partition, initial weights, participation, links and batch order. A
    `logging.id` becomes `<id>-<algorithm>`. Raises BadConfig if such a run exists already.
    """
    configs = load_configs(source, [[*overrides, f"algorithm.name={name}"] for name in algorithms])
    _tell_apart(configs)
    from raylfl.runtime.ray.cluster import cluster_for

    experiments = [checked(config) for config in configs]
    with cluster_for(configs[0].runtime):
        return [_begin(experiment, watch) for experiment in experiments]


def _tell_apart(configs: Sequence[Config]) -> None:
    """Gives each run of a comparison its own `logging.id`, if the config sets one."""
    names = [config.resolved["algorithm"]["name"] for config in configs]
    if len(set(names)) < len(names):
        raise BadConfig(f"algorithms={','.join(names)}: each can be compared only once")
    for config, name in zip(configs, names, strict=True):
        if config.logging.id is not None:
            config.logging.id = config.resolved["logging"]["id"] = f"{config.logging.id}-{name}"
            folder = config.logging.folder / config.top.name / config.logging.id
            if folder.exists():
                from raylfl.runtime.records.run_dir import existing

                raise existing(folder)


def resume(path: str | Path, overrides: Sequence[str] = (), watch: Watch | None = None) -> Result:
    """Resumes the run in this directory from its newest intact checkpoint; `rounds` may be raised.

    Raises BadConfig if the overrides change a key that defines the run.
    """
    folder = Path(path).expanduser().resolve()
    if not (folder / "config.yaml").is_file():
        raise BadConfig(f"{path} is not a run directory: it has no config.yaml")
    before = load_config(folder / "config.yaml").resolved
    config = load_config(before, overrides)
    refuse_changes(before, config.resolved)
    from raylfl.runtime.records.run_dir import RunDirectory

    run_dir = RunDirectory(folder).open()
    try:
        experiment = checked(config)
        run_dir.write_config(config.resolved)
        return _carry_out(experiment, run_dir, True, watch)
    finally:
        run_dir.close()


@torch_defaults()
def checked(config: Config) -> Experiment:
    """The experiment of a config, tried on a first batch. Raises BadConfig if anything cannot work."""
    if config.runtime.backend == "ray":
        require("ray", what="runtime.backend=ray", instead="runtime.backend=local")
    for logger in set(config.logging.loggers) & set(LOGGERS):
        require(LOGGERS[logger], what=f"logging.loggers={logger}")
    from raylfl.experiment import assemble
    from raylfl.runtime.check import check

    experiment = assemble(config)
    check(experiment)
    return experiment


def _begin(experiment: Experiment, watch: Watch | None) -> Result:
    from raylfl.runtime.records.run_dir import RunDirectory
    from raylfl.runtime.session import write_records

    config = experiment.config
    run_dir = RunDirectory.create(config.logging.folder, config.top.name, config.logging.id, config.top.seed)
    try:
        write_records(experiment, run_dir)
        return _carry_out(experiment, run_dir, False, watch)
    finally:
        run_dir.close()


def _rows_of(backend: str) -> Any:
    """The function that carries out a run on this backend; Ray is imported for the Ray backend only."""
    if backend == "local":
        from raylfl.runtime import inprocess

        return inprocess.rows
    from raylfl.runtime.ray import remote

    return remote.rows


@torch_defaults()
def _carry_out(experiment: Experiment, run_dir: RunDirectory, again: bool, watch: Watch | None) -> Result:
    import torch

    from raylfl.runtime.records.record_file import Displaced
    from raylfl.runtime.session import Interrupted

    config = experiment.config
    carry_out = _rows_of(config.runtime.backend)
    try:
        with sigterm_interrupts(), closing(carry_out(experiment, run_dir, again)) as stream:
            for metrics, messages in stream:
                if watch is not None:
                    watch(Progress(experiment, run_dir.path, metrics, messages))
    except (Interrupted, Displaced):
        raise
    except (Exception, KeyboardInterrupt) as error:
        error.add_note(f"raylfl resume {run_dir.path} continues it")
        raise
    final = torch.load(run_dir.path / "final.pt", weights_only=True)
    return Result(run_dir.metrics(), final["params"], run_dir.path, config)
