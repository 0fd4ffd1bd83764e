"""`make soak`: runs on Ray under random kills, resumed until they finish with the bits of an undisturbed run.

    python -m benchmarks.soak [--minutes 60] [--seed 0] [--rounds 1500]

Runs follow each other until the time is up. Every few rounds a fault is injected: a worker, the server actor, the
driver or everything is killed, a signal is sent, or the newest checkpoint is damaged. After the loss of the driver,
`raylfl resume` continues the run with a random number of workers. A finished run must equal a run of its config in
process. Finally, the memory of a long undisturbed run must not grow. The program prints a table; its exit code is 1 if
a run differed or hung, and such runs stay on disk.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

import raylfl

CONFIG: dict[str, Any] = {
    "name": "soak",
    "num_clients": 12,
    "data": {"name": "digits"},
    "model": {"name": "mlp"},
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "participation": {"name": "uniform", "size": 5},
    "link": {"name": "bernoulli", "q": 0.3},
    "local": {"steps": 3, "batch_size": 16, "lr": 0.05},
    "eval": {"every": 5},
    "checkpoint": {"every": 10, "keep": 2},
    "runtime": {"workers": 3, "cpus_per_worker": 0.5},
    "logging": {"report": False},
}
ALGORITHMS = ("focus", "fedvarp", "sfl", "scaffold", "fedaware")
WORKERS = (1, 2, 3)  # possible numbers of workers of a resumed run
PATIENCE = 300  # a run hangs after so many seconds without a new round, a fault or a new driver


class Soak:
    """One run with injected faults: the process of its driver, and its possible targets."""

    def __init__(self, config: dict[str, Any], folder: Path, rng: random.Random, struck: Counter[str]):
        self.folder, self.rng, self.struck = folder, rng, struck
        self.config = folder.parent / f"{folder.name}.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.seen: set[psutil.Process] = set()  # processes of the run at the time of a fault
        self.driver = self._start("run", str(self.config))

    def _start(self, *args: str) -> subprocess.Popen[bytes]:
        log = open(self.config.with_suffix(".out"), "ab")  # noqa: SIM115 - the child's
        return subprocess.Popen([sys.executable, "-m", "raylfl", *args], stdout=log, stderr=log, start_new_session=True)

    def carry_through(self, until: float) -> None:
        """Injects faults until the run is finished (none from `until` on). Raises TimeoutError if it hangs."""
        last, waited, next_blow = -1, 0.0, self._aim()
        while not (self.folder / "summary.json").exists() or self.driver.poll() is None:
            if self.driver.poll() is not None:
                self.driver, waited = self._resume() if self._begun() else self._again(), 0.0
            done = rounds_done(self.folder)
            if done != last:
                last, waited = done, 0.0
            elif waited > PATIENCE:
                raise TimeoutError(f"{self.folder}: no new round for {PATIENCE} s")
            pause = self.rng.uniform(0.0, 0.2)
            time.sleep(pause)
            waited += pause  # not the clock's time: a pause of this process may have paused the others, too
            if next_blow() and time.monotonic() < until and self.driver.poll() is None:
                self.strike()
                next_blow, waited = self._aim(), 0.0

    def _aim(self) -> Callable[[], bool]:
        """A condition for the next fault: some more rounds or (one in five) some seconds have passed."""
        if self.rng.random() < 0.2:
            moment = time.monotonic() + self.rng.uniform(0.5, 20.0)
            return lambda: time.monotonic() > moment
        target = rounds_done(self.folder) + self.rng.randint(1, 150)
        return lambda: rounds_done(self.folder) >= target

    def _begun(self) -> bool:
        return (self.folder / "config.yaml").exists()

    def _resume(self) -> subprocess.Popen[bytes]:
        return self._start("resume", str(self.folder), f"runtime.workers={self.rng.choice(WORKERS)}")

    def _again(self) -> subprocess.Popen[bytes]:
        """Starts a new run in place of one that ended before it had a config, and cannot be resumed."""
        if self.folder.exists():
            self.folder.rename(self.folder.with_name(f"{self.folder.name}-stillborn-{time.monotonic_ns()}"))
        return self._start("run", str(self.config))

    def strike(self) -> None:
        """Injects one fault, chosen at random among the faults that have a target."""
        blows: dict[str, Callable[[], bool]] = {
            "worker killed": lambda: self._kill("ray::WorkerActor"),
            "server actor killed": lambda: self._kill("ray::ServerActor"),
            "raylet killed": lambda: self._kill("raylet"),
            "driver killed": lambda: self._signal(signal.SIGKILL),
            "SIGTERM": lambda: self._signal(signal.SIGTERM),
            "Ctrl-C": lambda: self._signal(signal.SIGINT),
            "everything killed": self.kill_all,
            "driver killed, newest checkpoint damaged": self._damage,
        }
        weights = [8, 4, 1, 2, 1, 1, 1, 1]
        name = self.rng.choices(list(blows), weights)[0]
        self.seen.update(self._family())
        if blows[name]():
            self.struck[name] += 1

    def left(self) -> list[str]:
        """Names of processes that still live after the run has ended; Ray's own processes end within a minute."""
        _, alive = psutil.wait_procs(self.seen, timeout=120)
        return [p.name() for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.driver.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _kill(self, name: str) -> bool:
        victims = [p for p in self._family() if name in " ".join(command_of(p))]
        if victims:
            kill(self.rng.choice(victims))
        return bool(victims)

    def _signal(self, number: int) -> bool:
        self.driver.send_signal(number)
        return True

    def kill_all(self) -> bool:
        family = self._family()
        self.driver.kill()
        for process in family:
            kill(process)
        return True

    def _damage(self) -> bool:
        """Kills the driver and flips a bit of the newest checkpoint."""
        self.kill_all()
        self.driver.wait()
        newest = sorted((self.folder / "checkpoints").glob("round_*"))[-1:]
        for path in newest:
            file = path / "server.pt"
            if file.exists():
                data = bytearray(file.read_bytes())
                data[self.rng.randrange(len(data))] ^= 1
                file.write_bytes(data)
        return bool(newest)


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def rounds_done(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def differences(folder: Path, clean: raylfl.Result) -> list[str]:
    """The differences between a finished run and the undisturbed one."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    pairs = {
        "metrics": ([timeless(r) for r in rows], [timeless(r) for r in clean.metrics]),
        "participation": tuple((f / "participation.jsonl").read_bytes() for f in (folder, clean.run_dir)),
        "parameters": tuple(
            torch.load(f / "final.pt", weights_only=True)["params"].numpy().tobytes() for f in (folder, clean.run_dir)
        ),
    }
    return [name for name, (ours, theirs) in pairs.items() if ours != theirs]


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.startswith(("time/round", "traffic/"))}


def flat(folder: Path, rounds: int) -> list[str]:
    """Lines on memory, open files and objects of every process of an undisturbed run on Ray, early and late."""
    config = {**CONFIG, "rounds": rounds, "algorithm": {"name": "focus"}}
    config["logging"] = {**CONFIG["logging"], "dir": str(folder), "id": "flat"}
    seen: dict[int, dict[str, tuple[float, int]]] = {}
    times: list[float] = []
    stores: list[str] = []

    def watch(progress: Any) -> None:
        times.append(progress.metrics["time/round"])
        if progress.metrics["round"] in (rounds // 5, rounds - 2):
            seen[progress.metrics["round"]] = weights_of(psutil.Process())
            stores.append(object_store())

    raylfl.run(config, watch=watch)
    early, late = (seen[r] for r in sorted(seen))
    lines = [
        f"{name}: {early[name][0]:.1f} -> {late[name][0]:.1f} MiB, {early[name][1]} -> {late[name][1]} files"
        for name in sorted(early.keys() & late.keys())
    ]
    first, second = (sorted(part)[len(part) // 2] for part in (times[rounds // 5 : rounds // 2], times[rounds // 2 :]))
    lines.append(f"object store: {stores[0]} -> {stores[1]}")
    return [*lines, f"median round: {1e3 * first:.2f} -> {1e3 * second:.2f} ms"]


def weights_of(process: psutil.Process) -> dict[str, tuple[float, int]]:
    """(MiB, open files) of this process, of the server and worker actors, and of the raylet with its object store."""
    out: dict[str, tuple[float, int]] = {}
    for p in [process, *process.children(recursive=True)]:
        text = " ".join(command_of(p))
        name = next((n for n in ("ray::ServerActor", "ray::WorkerActor", "raylet/raylet") if n in text), None)
        if p == process or name:
            out[f"{name or 'driver'} {p.pid}"] = (p.memory_info().rss / 2**20, p.num_fds())
    return out


def object_store() -> str:
    """`Plasma memory usage 0 MiB, 14 objects, ...`"""
    import ray
    from ray._private.internal_api import memory_summary

    summary = memory_summary(ray.get_runtime_context().gcs_address, stats_only=True)
    return next((line for line in summary.splitlines() if line.startswith("Plasma")), "unknown")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the schedule")
    parser.add_argument("--rounds", type=int, default=1500)
    args = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    rng, struck = random.Random(args.seed), Counter[str]()
    until, wrong, runs = time.monotonic() + 60 * args.minutes, [], 0
    base = Path(tempfile.mkdtemp(prefix="raylfl-soak-"))
    while time.monotonic() < until or not runs:
        algorithm = ALGORITHMS[runs % len(ALGORITHMS)]
        config = {**CONFIG, "seed": runs, "rounds": args.rounds, "algorithm": {"name": algorithm}}
        config["logging"] = {**CONFIG["logging"], "dir": str(base), "id": f"struck-{runs}"}
        folder = base / "soak" / f"struck-{runs}"
        folder.parent.mkdir(exist_ok=True)
        soak = Soak(config, folder, rng, struck)
        try:
            soak.carry_through(until)
        finally:
            soak.kill_all()
        clean = raylfl.run(config, ["runtime.backend=local", f"logging.id=clean-{runs}"])
        found = differences(folder, clean)
        wrong += [f"{algorithm}: {name} differ, see {folder}" for name in found]
        wrong += [f"{algorithm}: {name} was left behind" for name in soak.left()]
        log = (folder / "log.txt").read_text()
        print(
            f"{algorithm}: {args.rounds} rounds, {log.count('resumed at')} times resumed, "
            f"{'DIFFERS: ' + ', '.join(found) if found else 'the same bits'}",
            flush=True,
        )
        runs += 1
    for name, count in struck.most_common():
        print(f"{count:5d}  {name}")
    print("\n".join(flat(base, args.rounds)))
    print("\n".join(wrong) or f"{runs} runs, {sum(struck.values())} blows, no difference")
    if not wrong:
        shutil.rmtree(base)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
