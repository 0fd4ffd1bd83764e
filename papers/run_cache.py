"""The runs of an experiment: existing runs are reused, interrupted ones resumed, missing ones made, several at a time.

A run's folder is named after its setting and a digest of its config: a second call repeats nothing, and a changed
setting is a new run. If raylfl has gained options since a run was made, the run counts as made with their defaults; the
folder of a finished run then keeps its name, that of an interrupted run gets the new digest.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from papers.base import CellChoice
from raylfl.config.identity import flatten, identity
from raylfl.config.load import compose, load_config
from raylfl.config.urls import is_url, join, staging
from raylfl.errors import DataMissing, RaylflError
from raylfl.execution.planned import PlannedRun, is_complete
from raylfl.execution.store import words_of
from raylfl.models import MODELS
from raylfl.report.labels import canonical
from raylfl.report.runs import Group, RunRecord, load_run

MEASURES = ("test/accuracy", "test/loss", "train/loss", "global/distance", "global/distance_abs")
LINE_SECONDS = 2.0  # between progress lines
PLACES = ("data.init_args.path", "data.init_args.cache")  # the same images may be in another folder


@dataclass(frozen=True)
class CellConfig:
    """The config of a line or cell, without the seed, its unique label, and what identifies its runs in the ledger."""

    label: str
    config: Mapping[str, Any]
    cell: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, seed: int, digest: str) -> str:
        """The name of the folder of a run."""
        return f"{words_of(self.label)}-s{seed}-{digest}"


def set_keys(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the nested config with the values of dotted keys set, such as {"local.lr": 0.1}."""
    out = dict(config)
    for key, value in options.items():
        head, _, rest = key.partition(".")
        out[head] = set_keys(out.get(head, {}), {rest: value}) if rest else value
    return out


def url_of(folder: Path) -> str | None:
    """The URL to which a local staging folder is copied, at or below RAYLFL_RUNS, if it is."""
    runs = os.environ.get("RAYLFL_RUNS", "")
    if not is_url(runs) or not folder.is_relative_to(staging(runs)):
        return None
    return join(runs, *folder.relative_to(staging(runs)).parts)


class RunCache:
    """Finds the existing runs of one experiment and makes the missing ones, at most `jobs` at a time.

    folder: of the findings, and of the runs in its `runs/` or in that of the folder `runs`, which experiments share.
    """

    def __init__(
        self,
        folder: Path,
        scale: str = "smoke",
        overrides: Sequence[str] = (),
        jobs: int | None = None,
        only: CellChoice | None = None,
        runs: Path | None = None,
    ):
        self.folder, self.scale, self.jobs, self.only = folder, scale, jobs, only or CellChoice()
        self.runs, self.overrides = (runs or folder).resolve() / "runs", (*machine(scale), *overrides)

    def groups(self, settings: Sequence[CellConfig], seeds: Sequence[int] = (0,)) -> list[Group]:
        """One group per setting with one run per seed; the last values of a diverged run are inf."""
        seeds = [seed for seed in seeds if self.only.keeps(seed=seed)]
        records = iter(self.records([(setting, seed) for setting in settings for seed in seeds]))
        runs = [[record for _ in seeds if (record := next(records)) is not None] for _ in settings]
        return [Group(s.label, row[0].setting, row) for s, row in zip(settings, runs, strict=True) if row]

    def records(self, wanted: Sequence[tuple[CellConfig, int]]) -> list[RunRecord | None]:
        """The runs of settings on seeds; missing ones are made. None for a run that could not be made."""
        runs = [self.plan(*each) for each in wanted]
        distinct = list({run.path: run for run in runs}.values())
        for run in distinct:
            run.fetch()
        if missing := [run for run in distinct if not run.complete]:
            from raylfl.execution.executor import complete  # imports torch

            check_data(missing)
            complete(distinct, self.jobs, seconds=LINE_SECONDS, shared=True)
        return [load_record(run) if run.complete else None for run in runs]

    def config_of(self, setting: CellConfig, seed: int) -> dict[str, Any]:
        source = {**setting.config, "seed": seed}
        config = load_config(source, self.overrides).resolved
        if config["data"]["name"] == "image_folder" and (added := transforms(compose(source)["data"], self.overrides)):
            config = load_config(source, (*self.overrides, *added)).resolved
        return config

    def plan(self, setting: CellConfig, seed: int) -> PlannedRun:
        """The run of a setting on a seed, in the folder of an existing one."""
        config = self.config_of(setting, seed)
        digest = config_digest(config)
        path, older = self.runs / setting.folder(seed, digest), None
        url = url_of(self.runs)
        if url is None and not path.exists():
            older = next((run for run in self.runs.glob(f"{path.name[:-8]}*") if digest in _current_digests(run)), None)
            if older is not None and is_complete(older):
                path, older = older, None
        home = str(path.parent.parent) if url is None else url.rpartition("/")[0]
        logging = config["logging"] | {"dir": home, "id": path.name, "report": False}
        config |= {"name": path.parent.name, "logging": logging}
        return PlannedRun(setting.label, config, path, older, url and join(url, path.name))


def config_digest(config: Mapping[str, Any]) -> str:
    """A digest, eight hex digits, of the keys of a resolved config that influence results, without the seed."""
    text = canonical(flatten(identity(config, of="digest")))
    text = text.replace("papers.probes.", "raylfl.reproduce.probes.")  # their place when the first runs were published
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def digests(config: Mapping[str, Any]) -> tuple[str, str]:
    """The digests of a run's saved config with and without the model arguments that are inferred from the data."""
    return config_digest(config), config_digest(_drop_inferred(config))


def _drop_inferred(config: Mapping[str, Any]) -> dict[str, Any]:
    model = dict(config["model"])
    inferred = getattr(MODELS.get(model["name"]).cls, "from_data", ()) if model.get("name") else ()
    model["init_args"] = {key: value for key, value in model.get("init_args", {}).items() if key not in inferred}
    return {**config, "model": model}


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config that identify a run in the ledger: not the place of data; of `runtime` the precision."""
    keys = flatten(identity(_drop_inferred(config), of="digest")).items()
    return {k: v for k, v in keys if k not in PLACES and (k == "runtime.precision" or not k.startswith("runtime."))}


def _current_digests(run: Path) -> Sequence[str]:
    """The `digests` of a run's config with the defaults of newer options, if it can be read."""
    try:
        return digests(load_config(load_run(run).config).resolved)
    except RaylflError:
        return ()


def machine(scale: str) -> list[str]:
    """The config overrides for this machine: at scale `paper` without a GPU, one process per run."""
    if scale != "paper":
        return []
    import torch

    return [] if torch.cuda.is_available() else ["runtime.backend=local", "runtime.gpus_per_worker=0"]


def transforms(data: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Overrides, besides the given ones, by which images have the augmentation and normalisation of `data`."""
    given, own = {word.partition("=")[0] for word in overrides}, data.get("init_args") or {}
    values = {f"data.init_args.{key}": own[key] for key in ("augment", "mean", "std") if key in own}
    return [f"{key}={'null' if value is None else value}" for key, value in values.items() if key not in given]


def check_data(runs: Sequence[PlannedRun]) -> None:
    """Raise DataMissing unless the data of all runs can be loaded."""
    from raylfl.experiment.data_source import load_data

    for run in {canonical(run.config["data"]): run for run in runs}.values():
        try:
            load_data(run.load())
        except DataMissing as error:
            raise DataMissing(f"{error}\nor leave its cells out with --only (`raylfl reproduce --help`)") from None


def load_record(run: PlannedRun) -> RunRecord:
    """The record of a complete run; the last values of a diverged one are inf."""
    record = load_run(run.path)
    if run.diverged and not len(record.rounds):
        record.rounds, record.metrics = np.zeros(1, dtype=np.int64), {name: np.zeros(1) for name in MEASURES}
    for name in record.metrics.keys() & MEASURES if run.diverged else ():
        record.metrics[name][-1] = np.inf
    return record
