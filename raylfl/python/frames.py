"""Saved runs as Python objects (`raylfl.load`), and tables of rounds, clients and runs as pandas DataFrames."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from raylfl.components.extras import require
from raylfl.config.load import Config
from raylfl.config.objects import Objects
from raylfl.config.urls import is_url
from raylfl.errors import BadConfig, UnusableConfig, require_lists
from raylfl.python.api import saved
from raylfl.python.result import Result, location, module_of, one_at_a_time, progress_line

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure


def _frame(rows: Sequence[Any], columns: Sequence[str] | None, what: str) -> pd.DataFrame:
    """A DataFrame of dicts, or of tuples with these columns. Raises MissingExtra if pandas is not installed."""
    require("pandas", what=what, instead="read the files themselves")
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)


FINAL, BEST = "final.pt", "best.pt"


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A saved run, finished or unfinished; its files are read on first use and then kept in memory.

    Tables, `plot`, `params` and `summary` need the files only. `config`, `module`, `predict` and `evaluate` also need
    the classes of the config, and the objects that it cannot name; without them they raise BadConfig.
    """

    path: Path
    _config: Config | UnusableConfig
    _file: str = FINAL

    def __repr__(self) -> str:
        return f"Run({progress_line(self.rows)}, path={str(self.path)!r})"

    @property
    def config(self) -> Config:
        """The config of the run, with the changes given to `load`. Raises BadConfig if it cannot be used here."""
        if isinstance(self._config, UnusableConfig):
            raise self._config
        return self._config

    def plot(self, metric: str | None = None, axis: str = "rounds") -> Figure:
        """The curve of one metric of this run as a matplotlib figure, see `raylfl.plot`."""
        from raylfl.report.figures import plot

        return plot(self.path, metric, axis)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one dict per round."""
        from raylfl.runtime.records.lines import read_rows

        return read_rows(self.path / "metrics.jsonl").rows

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A table of numeric metrics: one row per round (the index), one column per metric, nan for a missing value."""
        from raylfl.runtime.records.lines import numbers_of

        return _frame([numbers_of(row) for row in self.rows], None, "Run.metrics").set_index("round")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A table with one row per round, client and metric; columns: round, client, metric, value.

        If the data name their clients, a column `name` follows.

        Metrics of every sampled client: draws (how often it was drawn), received (1: the upload arrived, 0: lost) and
        steps (local steps). `eval.per_client` adds the client's training loss and the values logged in its local steps.
        In rounds with an evaluation, `eval.per_client` with `eval.clients` adds the metrics on the client's own data,
        and `eval.nodes` the metrics of every node's model.
        """
        from raylfl.report.runs import load_run

        out, record = [], load_run(self.path)
        for row in record.participation:
            for metric in ("draws", "received", "steps"):
                pairs = zip(row["cohort"], row[metric], strict=True)
                out += [(row["round"], client, metric, float(value)) for client, value in pairs]
        for row in self.rows:
            for metric, values in row.get("per_client", {}).items():
                out += [(row["round"], int(client), metric, value) for client, value in values.items()]
        table = _frame(out, ("round", "client", "metric", "value"), "Run.clients")
        if record.client_names is not None:
            table["name"] = [record.client_names[client] for client in table["client"]]
        return table

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of the run's summary.json; empty while the run is unfinished."""
        path = self.path / "summary.json"
        return json.loads(path.read_bytes()) if path.is_file() else {}

    @property
    def best(self) -> Run:
        """The same run with the parameters of its best round, from best.pt (`checkpoint.best`). Raises BadConfig."""
        if not (self.path / BEST).is_file():
            raise BadConfig(f"{self.path} has no {BEST}: a run with checkpoint.best=val/accuracy, say, writes it")
        return Run(self.path, self._config, BEST)

    @cached_property
    def _final(self) -> dict[str, Any]:
        import torch

        from raylfl.runtime.records.state_files import load

        if (self.path / self._file).is_file():
            final: dict[str, Any] = torch.load(self.path / self._file, weights_only=True)
            return final
        newest = sorted((self.path / "checkpoints").glob("round_*/server.pt"))
        if not newest:
            raise BadConfig(f"{self.path} has neither final.pt nor a checkpoint: no round of it is on disk")
        state = load(newest[-1])
        return {"params": state["server"]["x"], "buffers": state["buffers"]}

    @property
    def params(self) -> torch.Tensor:
        """The final parameters [d]; of an unfinished run, the parameters in its newest checkpoint. Raises BadConfig."""
        params: torch.Tensor = self._final["params"]
        return params

    @property
    def module(self) -> Any:
        """A new LightningModule in evaluation mode, with `params` and the buffers saved with them."""
        return module_of(self.config, self._final).eval()

    def predict(self) -> Any:
        """The predictions of `module` on the test set, by its `predict_step`, or else by `forward` of the inputs.

        Returns one tensor [samples, ...] if all predictions are tensors, else a list with one entry per batch. Raises
        BadConfig if there is no test set, or the module defines neither method.
        """
        import torch

        from raylfl.core.samples import BatchSource
        from raylfl.experiment.data_source import load_data
        from raylfl.runtime.workers.hooks import overrides_hook

        test, module = load_data(self.config).test, self.module
        if test is None:
            raise BadConfig(f"{self.path}: its data have no test set to predict on")
        own = overrides_hook(module, "predict_step")
        if not own and not overrides_hook(module, "forward"):
            raise BadConfig(
                f"{type(module).__name__} has neither forward nor predict_step: one of them is needed to predict"
            )
        source = BatchSource(test, torch.device("cpu"), self.params.dtype)
        size = self.config.eval.batch_size
        answers = []
        with torch.no_grad():
            for number, start in enumerate(range(0, len(test), size)):
                batch = source.batch(np.arange(start, min(start + size, len(test)))).content
                inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
                answers.append(module.predict_step(batch, number) if own else module(inputs))
        return torch.cat(answers) if all(isinstance(answer, torch.Tensor) for answer in answers) else answers

    def evaluate(self) -> dict[str, float]:
        """The metrics of `params` on the test set and the validation set, named as in metrics.jsonl."""
        import torch

        from raylfl.experiment.assemble import assemble
        from raylfl.experiment.parts import BUFFERS
        from raylfl.runtime.round.measure import by_name
        from raylfl.runtime.workers.backend import LocalBackend
        from raylfl.runtime.workers.task import Chunk

        with one_at_a_time():
            setup = assemble(self.config).setup
            found = {"test": setup.test, "val": setup.val}
            samples = {kind: data for kind, data in found.items() if data is not None}
            buffers = self._final.get("buffers", torch.empty(0))
            broadcast = {"x": self.params} | ({BUFFERS: buffers} if len(buffers) else {})
            chunks = [Chunk(kind, np.arange(len(data)), name=kind) for kind, data in samples.items()]
            with closing(LocalBackend(setup)) as backend:
                measured = by_name(chunks, backend.evaluate(broadcast, chunks).result())
            return {f"{kind}/{name}": value for kind in measured for name, value in measured[kind].items()}


def load(
    path: str | Path | Result | Run, overrides: Sequence[str] = (), *, trust: bool = False, **objects: Unpack[Objects]
) -> Run:
    """Reads the run in this directory, at this URL, or of this Result or Run.

    Overrides and objects, such as `eval.batch_size=1000` or `data=Other()`, change later evaluations, not the saved
    run. `trust` has the same meaning as in `resume`. The classes of the config, and objects that it cannot name, are
    needed by those parts of the run only that compute with them. Raises BadConfig if there is no run.
    """
    from raylfl.runtime.records.mirror import local_view

    path = location(path)
    folder = local_view(path, complete=True).expanduser().resolve()
    try:
        return Run(folder, saved(folder, path if is_url(path) else folder, overrides, trust, objects)[1])
    except UnusableConfig as error:
        return Run(folder, error)


def evaluate(
    path: str | Path | Result | Run, overrides: Sequence[str] = (), *, trust: bool = False, **objects: Unpack[Objects]
) -> dict[str, float]:
    """Evaluates the final model of a run on its test and validation data, or on other data.

    It is the same as `load(path, ...).evaluate()`.
    """
    return load(path, overrides, trust=trust, **objects).evaluate()


def runs(path: str | Path = "runs", where: Sequence[str] = ()) -> pd.DataFrame:
    """A table of the runs in a directory or at a URL, subfolders included: one row per run.

    where: only runs that meet these conditions, such as `algorithm=focus` or `test/accuracy>0.8`
    (`raylfl.report.selection.condition`).

    Columns: path, finished, diverged, rounds_done, stopped_early, config keys (`local.lr`) and metrics
    (`final/test/accuracy`, `best/test/accuracy`). The final metrics of an unfinished or diverged run are its newest
    values. A run that cannot be read is left out with a warning in the log. Raises BadConfig if there is no readable
    run.
    """
    from raylfl.config.identity import flatten
    from raylfl.report.runs import read_runs
    from raylfl.report.selection import select
    from raylfl.runtime.records.mirror import address

    require_lists(where=where)
    records = read_runs(path)[0]
    selected = select(records, where)
    rows = [
        {
            "path": address(run.path),
            "finished": run.finished,
            "diverged": run.diverged,
            "rounds_done": len(run.rounds),
            "stopped_early": run.summary.get("stopped_early"),
            **{k: json.dumps(v) if isinstance(v, (list, dict)) else v for k, v in flatten(run.config).items()},
            **{f"final/{name}": value for name, value in run.summary.get("final", run.newest).items()},
            **{f"best/{name}": value for name, value in run.summary.get("best", {}).items()},
        }
        for run in selected or records
    ]
    return _frame(rows, None, "raylfl.runs")[: len(selected)]  # without a match, no rows, but the columns


def ledger(name: str | None = None, results: str | Path | None = None) -> pd.DataFrame:
    """A table of the ledger: one row per published run, of an experiment such as `sfl/table10`, or of all.

    Columns: experiment, the keys of the run's cell (`method`, `lr`; config keys for a comparison that was published by
    `raylfl publish --as`), seed, metric, value, published (the paper's number for this cell), rounds, diverged,
    seconds, the machine (cpu, cpus, memory_gib), versions, commit and its date, params_sha256, digest, command, and
    further numbers of the run (`measure/...`). What a row lacks is NaN. results: the folder of the ledger; None: that
    of the checkout from which raylfl is imported. Raises BadConfig without a checkout, and for a name without rows.
    """
    from raylfl.config.find import find_checkout

    root = find_checkout("raylfl.ledger")
    from papers.ledger_rows import rows_of

    return _frame(rows_of(Path(results or root / "results"), name), None, "raylfl.ledger")


def diff(*runs: str | Path | Result | Run) -> pd.DataFrame:
    """A table of the config keys, versions and commits in which runs differ: one row per key, one column per run.

    runs: run directories or URLs, directories that hold some, Results or Runs. Raises BadConfig if there is no readable
    run.
    """
    from raylfl.report.runs import read_runs
    from raylfl.report.selection import differing_keys
    from raylfl.runtime.records.mirror import address

    records = read_runs(map(location, runs))[0]
    rows = [(key, *values) for key, values in differing_keys(records).items()]
    return _frame(rows, ("key", *(address(run.path) for run in records)), "raylfl.diff").set_index("key")
