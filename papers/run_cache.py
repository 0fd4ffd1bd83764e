"""The runs of an experiment: existing runs are reused, interrupted ones resumed, missing ones made, several at a time.

A run's folder is named after its setting and a digest of its config. A second call therefore repeats nothing, and a
changed setting is a new run. If raylfl has gained options since a run was made, the run counts as made with their
defaults. The folder of a finished run then keeps its name; that of an interrupted run gets the new digest.

Runs with `runtime.backend: local` are distributed over processes, one per CPU. Runs on Ray are made one after the
other, on one connection. On an existing cluster of several nodes all runs are distributed over the nodes, and each run
has its own workers.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from papers.choice import CellChoice
from papers.setting import CellConfig
from raylfl.config.identity import RUNTIME_FREE, identity
from raylfl.config.load import compose, load_config
from raylfl.config.urls import join, staging, url_of
from raylfl.errors import BadConfig, DataMissing, NonFinite, RaylflError
from raylfl.models import MODELS
from raylfl.python.console import say
from raylfl.report.labels import canonical, flatten
from raylfl.report.runs import Group, RunRecord, load_run
from raylfl.runtime.records.files import atomic_write
from raylfl.runtime.records.mirror import copy_again, exists, refresh
from raylfl.startup import process

DIVERGED = "diverged.txt"  # marks the folder of a diverged run, which is not repeated
ORIGIN = "diverged.json"  # commit, versions and machine of a diverged run, which has no summary.json
MEASURES = ("test/accuracy", "test/loss", "train/loss", "global/distance", "global/distance_abs")
LINE_SECONDS = 2.0  # between progress lines
RowKey = TypeVar("RowKey")
ColumnKey = TypeVar("ColumnKey")


@dataclass(frozen=True)
class PaperRun:
    """A run that an experiment needs: its label, its resolved config and its folder.

    older: the folder in which the run began, if its name has changed since. url: the address to which the run is
    copied, if `RAYLFL_RUNS` is a URL.
    """

    label: str
    config: dict[str, Any]
    path: Path
    older: Path | None = None
    url: str | None = None

    @property
    def done(self) -> bool:
        return is_done(self.path)

    @property
    def diverged(self) -> bool:
        return (self.path / DIVERGED).is_file()

    def fetch(self) -> None:
        """Copy the run's records from its URL, if any, to its folder: another machine may have made the run."""
        if self.url is not None:
            refresh(self.path, self.url)


def folder_name(setting: CellConfig, seed: int, digest: str) -> str:
    """The name of a run's folder; digest: of its config."""
    return f"{words_of(setting.label)}-s{seed}-{digest}"


def words_of(label: str) -> str:
    """The label of a setting as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower()


class RunCache:
    """Finds the existing runs of one experiment and makes the missing ones.

    folder: the folder of the findings, and of the runs in its `runs/`. scale: `smoke` or `paper`. overrides:
    `key=value` for every run, from the command line. processes: the largest number of processes at a time; None: one
    per CPU. only: the selected cells. runs: a folder whose `runs/` is used instead, if other experiments share the
    runs.
    """

    def __init__(
        self,
        folder: Path,
        scale: str = "smoke",
        overrides: Sequence[str] = (),
        processes: int | None = None,
        only: CellChoice | None = None,
        runs: Path | None = None,
    ):
        from raylfl.core.threads import cores  # imports torch

        self.folder, self.scale = folder, scale
        self.runs = (runs or folder).resolve() / "runs"
        self.overrides = (*machine(scale), *overrides)
        self.processes = processes or cores()
        self.only = only or CellChoice()

    def pick(self, smoke: Any, paper: Any) -> Any:
        """The value for the scale of this cache."""
        return smoke if self.scale == "smoke" else paper

    def groups(self, settings: Sequence[CellConfig], seeds: Sequence[int] = (0,)) -> list[Group]:
        """One group per setting, in order, with one run per seed; equal settings share their runs.

        The last values of a diverged run are inf. Raises BadConfig if no setting or seed is left and some key of
        `--only` has patterns that match no value.
        """
        seeds = [seed for seed in seeds if self.only.keeps(seed=seed)]
        if not settings or not seeds:
            self.only.check_matches()
        jobs = [[self._job(setting, seed) for seed in seeds] for setting in settings]
        self._carry_out({job.path: job for row in jobs for job in row})
        return [
            Group(setting.label, records[0].setting, records)
            for setting, row in zip(settings, jobs, strict=True)
            if (records := [_record(job) for job in row if job.done])
        ]

    def table(
        self, settings: Mapping[RowKey, Mapping[ColumnKey, CellConfig]], seeds: Sequence[int] = (0,)
    ) -> dict[RowKey, dict[ColumnKey, Group]]:
        """The result of `groups` for settings in rows and columns: row -> column -> group.

        settings: row -> column -> setting, with labels that are unique in the table. Settings without runs are left
        out.
        """
        groups = {g.label: g for g in self.groups([cell for row in settings.values() for cell in row.values()], seeds)}
        return {
            key: {column: groups[cell.label] for column, cell in row.items() if cell.label in groups}
            for key, row in settings.items()
        }

    def config_of(self, setting: CellConfig, seed: int) -> dict[str, Any]:
        """The resolved config of a run of this setting on this seed, with the cache's overrides."""
        source = {**setting.config, "seed": seed}
        config = load_config(source, self.overrides).resolved
        if config["data"]["name"] == "image_folder" and (added := transforms(compose(source)["data"], self.overrides)):
            config = load_config(source, (*self.overrides, *added)).resolved
        return config

    def _job(self, setting: CellConfig, seed: int) -> PaperRun:
        config = self.config_of(setting, seed)
        digest = config_digest(config)
        path, older = self.runs / folder_name(setting, seed, digest), None
        url = url_of(self.runs)
        if url is None and not path.exists():
            older = next((run for run in self.runs.glob(f"{path.name[:-8]}*") if digest in _current_digests(run)), None)
            if older is not None and is_done(older):
                path, older = older, None
        home = str(path.parent.parent) if url is None else url.rpartition("/")[0]
        logging = config["logging"] | {"dir": home, "id": path.name, "report": False}
        config |= {"name": path.parent.name, "logging": logging}
        return PaperRun(setting.label, config, path, older, url and join(url, path.name))

    def _carry_out(self, jobs: Mapping[Path, PaperRun]) -> None:
        for job in jobs.values():
            job.fetch()
        waiting = [job for job in jobs.values() if not job.done]
        if not waiting:
            return
        _check_data(waiting)
        say(f"runs     {len(waiting)} to do, {len(jobs) - len(waiting)} found in {self.runs}")
        started = last = time.monotonic()
        for count, job in enumerate(self._run_jobs(waiting), 1):
            now = time.monotonic()
            if count == len(waiting) or now - last >= LINE_SECONDS:
                last = now
                label = f"{job.label} diverged" if job.diverged else job.label
                say(f"         {count}/{len(waiting)} done after {now - started:.0f} s: {label}")

    def _run_jobs(self, jobs: Sequence[PaperRun]) -> Iterator[PaperRun]:
        """Carry out the jobs and yield each when it ends."""
        processes = min(self.processes, len(jobs))
        runtime = load_config(jobs[0].config).runtime
        if runtime.address or os.environ.get("RAY_ADDRESS"):
            from raylfl.runtime.ray.cluster import cluster_for
            from raylfl.tune.spread import several_nodes, spread

            with cluster_for(runtime) as cluster:
                cluster.ready()
                if several_nodes():
                    yield from _fetch_each(spread(make_run, [(job, load_config(job.config).runtime) for job in jobs]))
                    return
        if jobs[0].config["runtime"]["backend"] == "ray" or processes == 1:
            yield from _one_by_one(jobs)
            return
        context = multiprocessing.get_context("spawn")  # a fork would lose torch's threads
        with ProcessPoolExecutor(processes, mp_context=context, initializer=process.set_up_child) as pool:
            futures = {pool.submit(make_run, job): job for job in jobs}
            try:
                for future in as_completed(futures):
                    future.result()
                    yield futures[future]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


class Estimated(RunCache):
    """A cache for estimates, which makes no runs.

    If runs are missing, a call stores their jobs in `waiting` and raises Enough.
    """

    waiting: Sequence[PaperRun] = ()

    def _carry_out(self, jobs: Mapping[Path, PaperRun]) -> None:
        self.waiting = [job for job in jobs.values() if not job.done]
        if self.waiting:
            raise Enough


class Enough(Exception):
    """The exception that ends an experiment as soon as its next missing runs are known."""


def config_digest(config: Mapping[str, Any]) -> str:
    """A digest, eight hex digits, of the keys of a resolved config that influence results; the seed is left out."""
    text = canonical(flatten(identity(config, of="digest")))
    text = text.replace("papers.probes.", "raylfl.reproduce.probes.")  # their place when the first runs were published
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def digests(config: Mapping[str, Any]) -> tuple[str, str]:
    """Two digests of a run's saved config: with and without the model arguments that are inferred from the data."""
    return config_digest(config), config_digest(drop_inferred(config))


def drop_inferred(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config without the model arguments that a run infers from the data, such as the image size."""
    model = dict(config["model"])
    inferred = getattr(MODELS.get(model["name"]).cls, "from_data", ()) if model.get("name") else ()
    model["init_args"] = {key: value for key, value in model.get("init_args", {}).items() if key not in inferred}
    return {**config, "model": model}


def _current_digests(run: Path) -> Sequence[str]:
    """The `digests` of a run's config after options that are newer than the run are set to their defaults.

    Empty if the config cannot be read.
    """
    try:
        return digests(load_config(load_run(run).config).resolved)
    except RaylflError:
        return ()


def machine(scale: str) -> list[str]:
    """The config overrides for this machine: at scale `paper` without a GPU, one process per run; otherwise none."""
    if scale != "paper":
        return []
    import torch

    return [] if torch.cuda.is_available() else ["runtime.backend=local", "runtime.gpus_per_worker=0"]


def transforms(data: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Overrides that give a folder of images the augmentation and normalisation of the data set that it replaces.

    data: the config of the experiment's own data set. overrides: options of the command line, which take precedence.
    """
    overridden, init_args = {word.partition("=")[0] for word in overrides}, data.get("init_args") or {}
    keys = [key for key in ("augment", "mean", "std") if key in init_args]
    return [
        f"data.init_args.{key}={_as_override(init_args[key])}"
        for key in keys
        if f"data.init_args.{key}" not in overridden
    ]


def _check_data(jobs: Sequence[PaperRun]) -> None:
    """Check that the data of all jobs can be loaded; raises DataMissing."""
    from raylfl.experiment.data_source import load_data

    for job in {canonical(job.config["data"]): job for job in jobs}.values():
        try:
            load_data(load_config(job.config))
        except DataMissing as error:
            raise DataMissing(f"{error}\nor leave its cells out with --only (`raylfl reproduce --help`)") from None


def _fetch_each(ended: Generator[PaperRun, None, None]) -> Iterator[PaperRun]:
    """Yield each run that has ended on some node, after its records are copied to this machine.

    Raises BadConfig if the run cannot be found here. `ended` is closed at the end, which cancels the other runs.
    """
    with closing(ended):
        for job in ended:
            job.fetch()
            if not job.done:
                raise BadConfig(
                    f"{job.path} was carried out on another node, and is not here: RAYLFL_RUNS must be a folder that "
                    "all nodes share, or a URL"
                )
            yield job


def _one_by_one(jobs: Sequence[PaperRun]) -> Iterator[PaperRun]:
    from raylfl.python.console import Watcher
    from raylfl.runtime.ray.cluster import cluster_for

    first = load_config(jobs[0].config)
    on_ray = first.runtime.backend == "ray"
    with cluster_for(first.runtime):
        for job in jobs:
            with Watcher() if on_ray else nullcontext() as watch:
                make_run(job, watch)
            yield job


def is_done(run: Path) -> bool:
    """Whether the run in this folder has finished or diverged."""
    return (run / "summary.json").is_file() or (run / DIVERGED).is_file()


def make_run(job: PaperRun, watch: Any = None) -> None:
    """Make or resume the run of a job; can be called in another process.

    A run that diverges is marked as such in its folder, and no error is raised. watch: a callback for the run's
    progress.
    """
    from raylfl.python import api
    from raylfl.runtime.records.provenance import class_paths
    from raylfl.runtime.records.summary import environment

    config, path = job.config, staging(job.url) if job.url is not None else job.path
    if job.older is not None:
        job.older.rename(path)
    try:
        if (path / "config.yaml").is_file() if job.url is None else exists(job.url):
            free = [f"runtime.{key}={_as_override(config['runtime'][key])}" for key in RUNTIME_FREE]
            api.resume(job.url or path, free, watch, known=list(class_paths(config)))
        else:
            api.run(config, (), watch)
    except NonFinite as error:
        (path / "metrics.jsonl").touch()  # does not exist if the run diverged in round 0
        atomic_write(path / ORIGIN, json.dumps(environment(), indent=2) + "\n")
        atomic_write(path / DIVERGED, f"{error}\n")  # last, as it marks the run as complete
        copy_again(path)


def _as_override(value: Any) -> str:
    return "null" if value is None else str(value)


def _record(job: PaperRun) -> RunRecord:
    record = load_run(job.path)
    if job.diverged:
        if not len(record.rounds):
            record.rounds = np.zeros(1, dtype=np.int64)
            record.metrics = {name: np.zeros(1) for name in MEASURES}
        for name in MEASURES:
            if name in record.metrics:
                record.metrics[name][-1] = np.inf
    return record
