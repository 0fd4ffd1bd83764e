"""The result of a finished run, and its module."""

from __future__ import annotations

import json
import threading
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raylfl.config.load import Config
from raylfl.core.torch_state import torch_defaults
from raylfl.runtime.records.lines import numbers_of

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from raylfl.runtime.records.run_dir import RunDirectory


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a finished run.

    metrics: the rows of metrics.jsonl, one dict per round; params: the final parameters as one vector [d], on the CPU,
    in the config's dtype.
    """

    metrics: list[dict[str, Any]]
    params: torch.Tensor
    run_dir: Path
    config: Config

    def __repr__(self) -> str:
        name = self.config.resolved["algorithm"]["name"]
        return f"Result({name}, {progress_line(self.metrics)}, run_dir={str(self.run_dir)!r})"

    def plot(self, metric: str | None = None, axis: str = "rounds") -> Figure:
        """The curve of one metric of this run as a matplotlib figure, see `raylfl.plot`."""
        from raylfl.report.figures import plot

        return plot(self.run_dir, metric, axis)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of the run's summary.json."""
        content: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return content

    @property
    def url(self) -> str | None:
        """The URL to which `run_dir` is copied; None if `logging.dir` is a folder."""
        from raylfl.runtime.records.mirror import mirror_of

        mirror = mirror_of(self.run_dir)
        return None if mirror is None else mirror.url

    @property
    def stopped_early(self) -> str | None:
        """The reason why the run ended before its last configured round; None if all rounds were run."""
        reason: str | None = self.summary.get("stopped_early")
        return reason

    @property
    def module(self) -> Any:
        """A new LightningModule with the final parameters and buffers of the run."""
        import torch

        return module_of(self.config, torch.load(self.run_dir / "final.pt", weights_only=True))


class SavedRun(Protocol):
    """What has the directory of a run, such as a `raylfl.Run`."""

    @property
    def path(self) -> Path: ...


def location(run: str | Path | Result | SavedRun) -> str | Path:
    """The directory or URL of a run: itself, or that of a Result or a Run."""
    from raylfl.report.runs import paths_of

    (path,) = paths_of([run])
    return path if isinstance(path, str) else Path(path)


def progress_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """The number of rounds and the newest metrics, from the rows of metrics.jsonl: `4 rounds: train 0.8136`."""
    from raylfl.python.console import status_line

    latest = ChainMap(*(dict(numbers_of(row)) for row in reversed(rows)))  # evaluations are not in every row
    return ": ".join(part for part in (f"{len(rows)} rounds", status_line(latest)) if part)


def module_of(config: Config, final: Mapping[str, Any]) -> Any:
    """The LightningModule of a config with the content of final.pt, or parameters and buffers of a checkpoint."""
    import torch

    from raylfl.core.buffers import travelling
    from raylfl.core.flat import FlatModule, convert_module
    from raylfl.runtime.workers.module import make_module

    with one_at_a_time(), torch.no_grad():
        made = make_module(config.model, config.top.seed)
        module: Any = convert_module(made, final["params"].dtype, torch.device("cpu"))
        if "state_dict" in final:
            module.load_state_dict(final["state_dict"])
            return module
        all_buffers = config.local.buffers == "local" or config.algorithm.pattern.merged
        travels = travelling(module, config.model.buffers, all_buffers)
        flat = FlatModule(module, final["params"].dtype, torch.device("cpu"), travels=travels)
        flat.load(final["params"])
        flat.write_buffers(final["buffers"])
        return module


_computing = threading.RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """A context with torch's default settings (`torch_defaults`) and a lock, for one thread of the process at a time.

    All threads share torch's generators, default dtype, default device and number of threads.
    """
    with _computing, torch_defaults():
        yield


def result_of(config: Config, run_dir: RunDirectory) -> Result:
    """The result of a finished run, read from the run directory."""
    import torch

    with one_at_a_time():
        final = torch.load(run_dir.path / "final.pt", weights_only=True)
    return Result(run_dir.metrics(), final["params"], run_dir.path, config)
