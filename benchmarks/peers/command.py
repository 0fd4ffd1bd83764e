"""`python -m benchmarks peers`: times other platforms' workloads in raylfl, in a plain loop and in their releases.

    python -m benchmarks peers --setup --envs FOLDER      the newest release of each peer, in an environment of its own
    python -m benchmarks peers --envs FOLDER --write      all workloads and sides, and the page

Sides take turns, `--repetitions` times, so that all see the same machine. RAYLFL_DATA has the data sets.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console

from benchmarks.pages import ROOT, stamp, write_measurement
from benchmarks.peers.data import prepare
from benchmarks.peers.definitions import DEFINITIONS, PeerWorkload
from benchmarks.peers.limit import limits
from benchmarks.peers.page import name_of, page, rows_of
from benchmarks.tables import table_of

RELEASES = {  # side -> (what pip installs, the distribution with its version)
    "pfl": ("pfl[pytorch]", "pfl"),
    "flower": ("flwr[simulation]", "flwr"),
    "fedlab": ("fedlab", "fedlab"),
    "fluke": ("fluke-fl", "fluke-fl"),
}
SIDES = ("raylfl", "plain", *RELEASES)
ONLY = {"plain": 1, "fedlab": 1, "fluke": 1, "flower": 2}  # side -> workers: one thread, or as many clients at once
RESULTS = ROOT / "benchmarks" / "peers" / "results.json"
VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def set_up(envs: Path, sides: Sequence[str]) -> None:
    """Makes an environment for each peer, which sees this one's packages below its own, and has the same torch."""
    for side in sides:
        if side in RELEASES:
            folder = envs / side
            venv.create(folder, with_pip=True, clear=True)
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            shared = folder / "lib" / version / "site-packages" / "shared.pth"
            shared.write_text(sysconfig.get_path("purelib") + "\n")
            install = [folder / "bin" / "pip", "install", RELEASES[side][0], f"torch=={torch.__version__}"]
            done = subprocess.run(install, capture_output=True, text=True)
            (folder / "install.log").write_text(done.stdout + done.stderr)
            print(f"{side}: {version_of(side, envs) if done.returncode == 0 else last_line(folder / 'install.log')}")


def python_of(side: str, envs: Path) -> str:
    return str(envs / side / "bin" / "python") if side in RELEASES else sys.executable


def version_of(side: str, envs: Path) -> str:
    """The version of a peer's release; empty for raylfl and the plain loop."""
    if side not in RELEASES:
        return ""
    done = subprocess.run([python_of(side, envs), "-c", VERSION, RELEASES[side][1]], capture_output=True, text=True)
    return done.stdout.strip()


def last_line(log: Path) -> str:
    """What a program says last, in a form that fits into a table."""
    return (log.read_text().strip() or "no message").splitlines()[-1][:200].replace("|", "/")


def measure(side: str, workers: int, workload: PeerWorkload, rounds: int, data: Path, envs: Path, limit: float) -> Any:
    """Runs one side once; returns its row, or the reason why there is none.

    Seconds of a round are those from the end of the first to the end of the last one, evaluations included.
    """
    if not Path(python_of(side, envs)).exists():
        return "not installed: run `python -m benchmarks peers --setup` with the same --envs"
    with tempfile.TemporaryDirectory() as name:
        out, log = Path(name, "report.jsonl"), Path(name, "log")
        arguments = [workload.name, str(data), str(rounds), str(workers), str(out)]
        command = [python_of(side, envs), "-m", f"benchmarks.peers.sides.{side}", *arguments]
        common = {**os.environ, "PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": name}
        load, began = os.getloadavg()[0], time.time()
        with log.open("w") as file:
            processes = [
                psutil.Popen(command, env={**common, **extra}, cwd=ROOT, stdout=file, stderr=file)
                for extra in environments(side, workers)
            ]
            samples = wait(processes, began + limit)
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        if len(lines) < rounds or any(process.returncode for process in processes):
            codes = [process.returncode for process in processes]
            late = time.time() > began + limit
            return f"{len(lines)} of {rounds} rounds in {limit:.0f} s" if late else f"{codes}: {last_line(log)}"
        ends = np.array([lines[0]["time"], lines[-1]["time"]])
        return {
            "side": side,
            "workers": workers,
            "version": version_of(side, envs),
            "seconds": float(np.diff(ends)[0]) / (rounds - 1),
            "processor": float(np.diff(np.interp(ends, *zip(*samples, strict=True)))[0]) / (rounds - 1),
            "whole": samples[-1][0] - began,
            "accuracy": lines[-1]["accuracy"],
            "load": load,
        }


def environments(side: str, workers: int) -> list[dict[str, str]]:
    """The environment variables of each process that is started; pfl-research starts one per worker."""
    if side != "pfl" or workers == 1:
        return [{}]
    ports = []
    for _ in range(workers):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    addresses = ",".join(f"localhost:{port}" for port in ports)
    return [{"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)} for rank in range(workers)]


def wait(processes: Sequence[psutil.Popen], deadline: float) -> list[tuple[float, float]]:
    """Waits for the processes, and ends them at the deadline.

    Returns pairs (time, processor seconds so far), descendants included.
    """
    spent, samples = dict[psutil.Process, float](), [(time.time(), 0.0)]
    try:
        while None in [process.poll() for process in processes] and time.time() < deadline:
            for parent in processes:
                with suppress(psutil.NoSuchProcess):
                    for process in (psutil.Process(parent.pid), *parent.children(recursive=True)):
                        with suppress(psutil.NoSuchProcess):
                            spent[process] = sum(process.cpu_times()[:2])
            samples.append((time.time(), sum(spent.values())))
            time.sleep(0.1)
    finally:  # Ray's own processes may outlive their driver
        for process in spent:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in processes:
            process.wait()
    return samples


def cases(sides: Iterable[str], workers: Sequence[int]) -> list[tuple[str, int]]:
    """The pairs (side, workers) to measure."""
    return [(side, count) for side in sides for count in ([ONLY[side]] if side in ONLY else workers)]


def compare(workload: PeerWorkload, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The results of one workload after each run: all sides in turn, several times."""
    data = args.envs / "data" / workload.name
    title, rounds = prepare(workload, data), args.rounds or workload.rounds
    runs, unmeasured = list[dict[str, Any]](), dict.fromkeys(map(name_of, cases(SIDES, (1, 2))), "not run")
    result = {
        "data": title,
        "rounds": rounds,
        "stamp": stamp(),
        "limit": limits(workload, os.cpu_count() or 1),
        "unmeasured": unmeasured,
        "runs": runs,
    }
    for repetition in range(args.repetitions):
        for case in cases(args.side, args.workers):
            name = name_of(case)
            row = measure(*case, workload, rounds, data, args.envs, args.limit)
            print(f"{workload.name}, {name}: {row}", flush=True)
            if not isinstance(row, str):
                runs.append({"repetition": repetition, **row})
                unmeasured.pop(name, None)
            elif name in unmeasured:
                unmeasured[name] = row
            yield result


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", nargs="+", choices=DEFINITIONS, default=list(DEFINITIONS))
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], help="1 and 2 by default")
    parser.add_argument("--rounds", type=int, help="at least 2; by default the workload's own number")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1200, help="seconds after which a side is stopped")
    parser.add_argument("--envs", type=Path, default=Path("~/.cache/raylfl/peers").expanduser())
    parser.add_argument("--setup", action="store_true", help="install the peers instead of measuring")
    parser.add_argument("-o", "--out", type=Path, default=RESULTS, help="results of other workloads in it are kept")
    parser.add_argument("--write", action="store_true", help="put the results in FILE into docs/measurements.md")
    parser.add_argument("--page", action="store_true", help="the same, without measuring")
    args = parser.parse_args(arguments)
    if args.rounds is not None and args.rounds < 2:
        parser.error(f"--rounds={args.rounds}, but must be at least 2: the first round is not counted")
    if args.setup:
        set_up(args.envs, args.side)
        return
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    if not args.page:
        for name in args.workload:
            for result in compare(DEFINITIONS[name], args):
                results[name] = result
                args.out.write_text(json.dumps(results, indent=1) + "\n")
    Console(width=160).print(table_of(rows_of(results), "peers"))
    if args.write or args.page:
        write_measurement("peers", page(results))
