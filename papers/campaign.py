"""Campaigns: some minutes of the runs that the ledger lacks, on any machine (`raylfl reproduce --campaign`).

A campaign makes missing runs at scale `paper` until its time is up, then stops the runs at work with a checkpoint. Its
file has the runs that are not yet published, whole or interrupted: another machine takes it and goes on. Order:
interrupted runs; then the experiment with the least work left, half of it if it has an open claim in the ledger.

Also the expected duration of runs, from short runs of each kind (`raylfl reproduce --estimate`).
"""

import copy
import gzip
import io
import math
import os
import signal
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Event, Timer
from typing import Any

from torch import Tensor

from papers.base import EXPERIMENTS, PaperResult, find, place
from papers.grid import Grid
from papers.ledger import folders, read, verdicts
from papers.ledger_rows import Enough, Lacking
from papers.run_cache import LINE_SECONDS, check_data
from raylfl.config.groups.records import LoggingConfig
from raylfl.errors import BadConfig, BadValue, DataMissing, NonFinite, headline
from raylfl.execution import several
from raylfl.execution.executor import complete, room
from raylfl.execution.planned import PlannedRun, is_complete
from raylfl.python.console import say, shown
from raylfl.python.control import Callback
from raylfl.report.labels import canonical
from raylfl.report.runs import find_runs, is_run
from raylfl.runtime.records.files import is_locked
from raylfl.runtime.records.lines import read_rows
from raylfl.runtime.records.summary import cpu_model
from raylfl.runtime.session import Interrupted
from raylfl.runtime.stopping import sigterm_interrupts

MEBIBYTE = 2**20
LARGEST, UNPACKED = 16 * MEBIBYTE, 2**30  # bytes of a campaign's file
STOPPING = 15.0  # seconds before the end at which runs are stopped: their rounds and checkpoints take time
SHORTEST = 0.1  # seconds until a stop: none comes before the context has begun
LEFT_OUT = ("report", "loggers")  # folders of a run that are made again from its records
LONG = 24.0  # hours above which a line calls this machine too slow
SHORT = 10.0  # seconds after which a short run ends, but not before its second round


def campaign(
    names: Sequence[str] = (),
    minutes: float = 60.0,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    take: Path | None = None,
    save: Path | None = None,
    estimate: bool = False,
    results: Path = Path("results"),
) -> None:
    """Makes missing runs for some minutes, then writes the unpublished runs to a file.

    names: experiments; none: all. take: the file of another campaign, whose runs go on here. save: the file to write.
    estimate: only say what the minutes would bring. results: the ledger.
    """
    if not (math.isfinite(minutes) and minutes >= 0):
        raise BadConfig(f"--minutes {minutes:g}: it must be a number of minutes, 0 or more")
    if save is not None and (save.is_dir() or not os.access(save.parent, os.W_OK)):
        raise BadConfig(f"--save {save}: it must be a file in a folder that exists and can be written")
    root = LoggingConfig().folder / "reproduce"
    end = time.monotonic() + 60 * minutes
    grids = {name: grid for name in names or EXPERIMENTS.names() if isinstance(grid := find(name), Grid)}
    for name in names:
        if name not in grids:
            raise BadConfig(f"--campaign {name}: it has no runs to spread; `raylfl reproduce {name}` makes all of it")
    if take is not None:
        say(f"taken    {take_up(take, root)} runs of {take}")
    try:
        with sigterm_interrupts(), stop_after(end - time.monotonic() - (STOPPING if minutes > 1 else 0)):
            if estimate:
                return _estimate(lacking(grids, results, overrides), minutes, jobs)
            made = True
            while made:  # searches and further seeds follow
                made = False
                for name, cache in lacking(grids, results, overrides).items():
                    if runs := list(_plans(name, cache)):
                        say(f"next     {name} lacks {len(cache.missing)} runs")
                        complete(runs, jobs, seconds=LINE_SECONDS, shared=True)
                        made = True
    finally:
        if save is not None and not estimate:
            pack(save, root, results)
    return None


def lacking(grids: dict[str, Grid], results: Path, overrides: Sequence[str]) -> dict[str, Lacking]:
    """The experiments that lack runs, in the order in which a campaign makes these."""
    caches, order = dict[str, Lacking](), dict[str, tuple[bool, float]]()
    for name, grid in grids.items():
        scale, runs = "paper" if grid.scales else "smoke", place(grid.shares or name, grid, "paper")
        cache = Lacking(grid, read(results / name), results / name, scale, overrides, runs=runs)
        try:
            with suppress(Enough):
                grid.run(cache)
        except DataMissing as error:
            say(f"left out {name}: {headline(error)}")
            continue
        if cache.missing:
            ends = [cache.config_of(*cache.missing[k]) for k in (0, -1)]
            steps = len(cache.missing) * sum(config["rounds"] * work(config) for config in ends) / 2
            is_open = any(claim.holds is None for claim in verdicts(results / name)[0])
            order[name] = not any(cache.begun(*run) for run in cache.missing), steps / (2 if is_open else 1)
            caches[name] = cache
    return {name: caches[name] for name in sorted(caches, key=order.__getitem__)}


def _plans(name: str, cache: Lacking) -> Iterator[PlannedRun]:
    """The experiment's missing runs whose data are here."""
    here: dict[str, bool] = {}
    for run in cache.plans():
        data = canonical(run.config["data"])
        if data not in here:
            here[data] = True
            try:
                check_data([run])
            except DataMissing as error:
                say(f"left out {name}: {headline(error)}")
                here[data] = False
        if here[data]:
            yield run


def _estimate(caches: Mapping[str, Lacking], minutes: float, jobs: int | None) -> None:
    left = minutes / 60
    for name, cache in caches.items():
        if not (runs := list(_plans(name, cache))):
            continue
        _, processes = room(runs[0].load().runtime, len(runs), jobs)
        for each, line in hours([run.config for run in runs]):
            left -= each / len(processes)
            say(f"{name}  {line}")
            if left < 0:
                return say(f"         more than {minutes:g} minutes, {len(processes)} at a time")
    return say(f"         {60 * left:.0f} of {minutes:g} minutes would be left")


@contextmanager
def stop_after(seconds: float) -> Iterator[None]:
    """A context that SIGTERM ends after so many seconds, as an interruption that is not raised further."""
    ended = Event()

    def stop() -> None:
        ended.set()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = Timer(max(seconds, SHORTEST), stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        if not ended.is_set():
            raise
        say("time     is up; runs at work have a checkpoint")
    finally:
        timer.cancel()


def pack(path: Path, root: Path, results: Path) -> None:
    """Writes the runs below `root` that the ledger lacks to a tar file of at most LARGEST bytes, whole ones first."""
    published = {f"-s{row.seed}-{row.digest}" for folder in folders(results).values() for row in read(folder)}
    runs = {run: list(_files(run)) for run in _runs_below(root)}
    new = [run for run in runs if not (is_complete(run) and run.name[run.name.rfind("-s") :] in published)]
    size = {run: sum(file.stat().st_size for file in runs[run]) for run in new}
    left_out, temporary = [], path.with_name(f".{path.name}.part")
    with tarfile.open(temporary, "w:gz") as tar:
        for run in sorted(new, key=lambda run: (not is_complete(run), size[run])):
            if temporary.stat().st_size + size[run] > LARGEST:
                left_out.append(run)
                continue
            for file in runs[run]:
                tar.add(file, file.relative_to(root), recursive=False)
    temporary.replace(path)
    say(f"written  {shown(path)}: {len(new) - len(left_out)} runs, {path.stat().st_size / MEBIBYTE:.1f} MiB")
    for run in left_out:
        say(f"left out {shown(run)}: {size[run] / MEBIBYTE:.1f} MiB would exceed {LARGEST // MEBIBYTE} MiB")


def _files(run: Path) -> Iterator[Path]:
    """The files of a run that another machine needs: of a whole run its records, otherwise all that resumes it."""
    whole = is_complete(run)
    for file in sorted(run.rglob("*")):
        first, *_ = file.relative_to(run).parts
        state = first == "checkpoints" or file.suffix in (".pt", ".safetensors")
        if file.is_file() and not file.is_symlink() and first not in LEFT_OUT and not (whole and state):
            yield file


def take_up(path: Path, root: Path) -> int:
    """Moves the runs of a campaign's file below `root`; returns their number.

    A run that is here as well stays unless the file's is whole, or has more rounds. Raises BadConfig for other files.
    """
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".take-") as folder:
        try:
            _unpack(path, folder)
        except Exception as error:  # gzip and tarfile raise many kinds for damaged bytes
            raise BadConfig(f"--take {path}: not the file of a campaign ({headline(error)})") from error
        moved = 0
        for run in _runs_below(Path(folder)):
            target = root / run.relative_to(folder)
            if _progress(run) <= _progress(target):
                continue
            if is_locked(target / ".lock"):
                say(f"left out {shown(target)}: another process is making it")
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                target.rename(Path(folder) / f"replaced-{target.name}")
            run.rename(target)
            moved += 1
    return moved


def _unpack(path: Path, folder: str) -> None:
    with gzip.open(path) as packed:
        content = packed.read(UNPACKED + 1)  # to the end, where the checksum is
    if len(content) > UNPACKED:
        raise ValueError(f"more than {UNPACKED // MEBIBYTE} MiB unpacked")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        if not all(member.isreg() and not member.issparse() for member in tar):
            raise ValueError("other entries than the files of runs")
        tar.extractall(folder, filter="data")


def _runs_below(root: Path) -> list[Path]:
    try:
        return [run for run in find_runs(root) if run.parent.name == "runs"]
    except BadValue:  # no runs
        return []


def _progress(run: Path) -> tuple[bool, int]:
    return is_complete(run), len(read_rows(run / "metrics.jsonl").rows) if is_run(run) else -1


def estimate_missing(experiment: PaperResult, options: Sequence[Any]) -> None:
    """Say how long the runs take that an experiment lacks and that come first; options: of the cache."""
    cache = Lacking(experiment, (), *options)
    with suppress(Enough):
        experiment.run(cache)
    if not (runs := list(cache.plans())):
        say("nothing to do: all runs are done")
        return
    say(f"estimate of the {len(runs)} runs that come first (searches and further seeds follow them)")
    _, processes = room(runs[0].load().runtime, len(runs), cache.jobs)
    together = 0.0
    for expected, line in hours([each.config for each in runs]):
        together += expected / len(processes)
        say(line)
    say(f"{together:8.2f} h  in all, {len(processes)} at a time on {cpu_model()}")
    if together > LONG:
        say("this machine is too slow for all of it: --only chooses cells, a GPU helps (runtime.backend=ray)")


def hours(configs: Sequence[dict[str, Any]]) -> Iterator[tuple[float, str]]:
    """Yield the expected hours of each kind of run, and a line with them, as soon as they are measured.

    Of each kind, the run with the least local work and the smallest learning rate is measured for a few rounds (no time
    if it diverges); the time of the others is assumed to be proportional to their local steps or epochs.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    for config in configs:
        kind = {key: config[key] for key in ("data", "model", "algorithm", "num_clients", "participation", "runtime")}
        local = {key: config["local"][key] for key in ("epochs", "steps")}  # a number, or a specification by client
        kind["local"] = {key: isinstance(amount, (int, float)) or amount for key, amount in local.items()}
        kinds.setdefault(canonical(kind), []).append(config)
    for of_kind in kinds.values():
        least = min(of_kind, key=lambda config: (work(config), config["local"]["lr"]))
        try:
            each, note = _per_round(least), ""
        except NonFinite as error:
            each, note = 0.0, f" (diverges: {error})"
        expected = sum(each * config["rounds"] * work(config) / work(least) for config in of_kind) / 3600
        names = [least[group].get("name") or least[group]["class_path"] for group in ("data", "model", "algorithm")]
        yield expected, f"{expected:8.2f} h  {len(of_kind)} runs: {', '.join(names)}{note}"


class _Clock(Callback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_round_end(self, round: int, metrics: dict[str, Any], params: Tensor) -> bool:
        self.seconds.append(float(metrics["time/round"]))
        return round > 0 and sum(self.seconds) > SHORT


def work(config: dict[str, Any]) -> float:
    """The number of local steps or epochs; 1 if it is specified by client."""
    amount = config["local"]["epochs"] or config["local"]["steps"]
    return float(amount) if isinstance(amount, (int, float)) else 1.0


def _per_round(config: dict[str, Any]) -> float:
    """Seconds per round of a short run that evaluates every second round."""
    short, clock = copy.deepcopy(config), _Clock()
    every = max(int(config["eval"]["every"]), 1)
    short["rounds"], short["checkpoint"]["every"], short["eval"]["every"] = max(2, min(every, 24)), 0, 2
    with tempfile.TemporaryDirectory() as folder:
        short["logging"] |= {"dir": folder, "id": "short"}
        several.run(short, callbacks=[clock])
    plain, evaluated = median(clock.seconds[2::2] or clock.seconds[:1]), median(clock.seconds[1::2])
    return plain + max(evaluated - plain, 0.0) / every
