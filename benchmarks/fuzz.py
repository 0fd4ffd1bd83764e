"""Fuzzing with random configs, command lines and damaged run directories: each must end in a correct run or a message.

    python -m benchmarks.fuzz [--count 20000] [--seed 0] [--minutes M] [--write]

Half of the cases compose a random config, a quarter parse a random command line, and one in twenty is a small run of a
random config. The others kill a run with SIGKILL in a random phase of a random round, change its files at random, and
resume it. A case fails if its exit code is not 0, 1 or 2, if it prints more than two lines on stderr or a message that
calls itself unexpected, or if its finished run differs from an undisturbed one. Failures are printed with the numbers
of their cases; `--only NUMBER` repeats a case. The exit code is 1 if a case failed. Counts of each call are kept in
`.fuzz/`, and `--write` puts their sum over all calls into benchmarks/NOTES.md.
"""

import argparse
import functools
import gc
import importlib.metadata
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.pages import ROOT, write_part
from raylfl.algorithms import ALGORITHMS
from raylfl.cli import main as command_line
from raylfl.config.components import keys_of
from raylfl.config.groups.top import TopConfig
from raylfl.config.schema import FIXED_GROUPS
from raylfl.heterogeneity.links import LINKS
from raylfl.heterogeneity.participation.base import PARTICIPATION
from raylfl.heterogeneity.partition.base import PARTITIONS
from raylfl.testing.runs import outcome

REGISTRIES: dict[str, Any] = {
    "partition": PARTITIONS,
    "participation": PARTICIPATION,
    "link": LINKS,
    "algorithm": ALGORITHMS,
}
WORLD: dict[str, Any] = {
    "name": "fuzz",
    "rounds": 8,
    "num_clients": 8,
    "dtype": "float64",
    "model": {"name": "quadratic"},
    "data": {"name": "quadratics", "init_args": {"num_clients": 8, "dim": 5}},
    "partition": {"name": "natural"},
    "participation": {"name": "uniform", "size": 4},
    "link": {"name": "bernoulli", "q": 0.2},
    "local": {"steps": 2, "batch_size": "full", "lr": 0.05},
    "checkpoint": {"every": 2, "keep": 2},
    "runtime": {"backend": "local"},
}
STRUCK = ("fedavg", "focus", "scaffold", "mifa", "fedadam", "feddyn")  # algorithms of the runs that are damaged
KINDS = ("config", "command line", "run", "directory")
ENDINGS = ("done", "ended", "refused")  # exit codes 0, 1 and 2
CALLS = ROOT / ".fuzz" / "calls.jsonl"
MEMORY = Path("/dev/shm")  # files outlive a killed process without a disk
PHASES = ("draw", "train", "collect", "aggregate", "commit", "log", "checkpoint")
UNTOUCHED = ("config.yaml", "log.txt", ".lock", ".writing")  # a damaged config may be another valid config
ODD: list[Any] = [None, True, "", "full", "???", "${seed}", "${nope}", "1e9", "[", "{a: 1}", "nan", [], {}, [1, "x"]]
ODD += [-1, 0, 1, 3, 2**31, -(2**70), 0.5, -0.1, 1e308, {"uniform": [1, 5]}, {"list": [1]}, {"phases": 3}, "é\x00"]


class Fuzz:
    """The cases, each a function of the seed and its number."""

    def __init__(self, seed: int, folder: Path):
        self.seed, self.folder = seed, folder
        names = [
            f"{group}.{option}" for group, registry in REGISTRIES.items() for option in ("name", *options(registry))
        ]
        self.keys = [
            *keys_of(TopConfig),
            *(f"{group}.{key}" for group, cls in FIXED_GROUPS.items() for key in keys_of(cls)),
            *names,
        ]
        self.values = [*ODD, *(entry.name for registry in REGISTRIES.values() for entry in registry)]
        self.clean: dict[str, dict[str, Any]] = {}

    def case(self, number: int) -> tuple[str, str | None]:
        """Runs a case; returns (its kind and how it ended, what was wrong or None)."""
        rng = random.Random(f"{self.seed}/{number}")
        kind = rng.choices(KINDS, (50, 25, 5, 20))[0]
        code, wrong = dict(zip(KINDS, (self.config, self.command, self.run, self.directory), strict=True))[kind](rng)
        return f"{kind}: {ENDINGS[code] if code in (0, 1, 2) else code}", wrong

    def config(self, rng: random.Random) -> tuple[int, str | None]:
        """Loads a yaml file with random keys."""
        path = self.folder / "case.yaml"
        path.write_text(yaml.safe_dump(nested(self.settings(rng)), allow_unicode=True))
        return self.call("run", "--print-config", str(path))

    def command(self, rng: random.Random) -> tuple[int, str | None]:
        """Parses a command line of random overrides, sometimes torn or garbled."""
        items = [f"{key}={text(rng.choice(self.values))}" for key, _ in self.settings(rng).items()]
        if rng.random() < 0.3:
            items.append("".join(rng.choices("=.[]{}:,'\"$ a1é-", k=rng.randrange(1, 9))))
        return self.call("run", "--print-config", "digits", *(item for item in items if not item.startswith("-")))

    def run(self, rng: random.Random) -> tuple[int, str | None]:
        """Runs a few rounds with random keys."""
        config = nested({**flat(WORLD), **self.settings(rng)})
        runtime = config.get("runtime") if isinstance(config.get("runtime"), dict) else {}
        safe = {"backend": "local", "client_timeout": 20}
        config |= {"rounds": 2, "runtime": {**runtime, **safe}, "logging": self.place("run")}
        path = self.folder / "case.yaml"
        path.write_text(yaml.safe_dump(config))
        shutil.rmtree(self.folder / "fuzz", ignore_errors=True)
        return self.call("run", str(path))

    def directory(self, rng: random.Random) -> tuple[int, str | None]:
        """Resumes a run that was killed at a random moment and whose files were then changed at random."""
        algorithm = rng.choice(STRUCK)
        clean = self.undisturbed(algorithm)
        run = self.struck(algorithm, rng)
        for _ in range(rng.randrange(3)):
            damage(run, rng)
            if (run / "config.yaml").exists():
                self.killed(["resume", str(run)], blow(rng))
        damage(run, rng)
        if not (run / "config.yaml").exists():
            return self.call("resume", str(run))
        code, wrong = self.call("resume", str(run))
        if wrong is None and code == 0 and everything(run) != clean:
            wrong = f"{algorithm}: the resumed run differs from the undisturbed one, see {run}"
        return code, wrong or self.call("runs", str(run))[1]

    # -- parts ---------------------------------------------------------------------------------------------------

    def settings(self, rng: random.Random) -> dict[str, Any]:
        """Up to four random keys with random values."""
        return {rng.choice(self.keys): rng.choice(self.values) for _ in range(rng.randrange(5))}

    def place(self, run_id: str) -> dict[str, Any]:
        return {"dir": str(self.folder), "id": run_id, "report": False}

    def written(self, algorithm: str, run_id: str) -> Path:
        """The config file of the small test run with this algorithm."""
        path = self.folder / f"{algorithm}-{run_id}.yaml"
        path.write_text(yaml.safe_dump({**WORLD, "algorithm": {"name": algorithm}, "logging": self.place(run_id)}))
        return path

    def undisturbed(self, algorithm: str) -> dict[str, Any]:
        """The outcome of an undisturbed small test run with this algorithm."""
        if algorithm not in self.clean:
            assert self.call("run", str(self.written(algorithm, f"clean-{algorithm}"))) == (0, None)
            self.clean[algorithm] = everything(self.folder / "fuzz" / f"clean-{algorithm}")
        return self.clean[algorithm]

    def struck(self, algorithm: str, rng: random.Random) -> Path:
        """A run directory as SIGKILL left it in a random phase of a random round.

        Later cases with the same phase and round get a copy of the first.
        """
        run, at = self.folder / "fuzz" / "struck", blow(rng)
        kept = self.folder / "kept" / f"{algorithm}-{at.replace(':', '-')}"
        shutil.rmtree(run, ignore_errors=True)
        if kept.exists():
            shutil.copytree(kept, run)
        else:
            self.killed(["run", str(self.written(algorithm, "struck"))], at)
            shutil.copytree(run, kept)
        return run

    def killed(self, arguments: list[str], at: str) -> None:
        """Runs the command in a separate process, which SIGKILL ends at "phase:round"."""
        child = os.fork()
        if child == 0:
            faults = self.folder / "kills"
            shutil.rmtree(faults, ignore_errors=True)
            faults.mkdir()
            (faults / at).touch()
            os.environ["RAYLFL_FAULT"] = str(faults)
            with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
                code = command_line(arguments)
            os._exit(code)
        os.waitpid(child, 0)

    def call(self, *arguments: str) -> tuple[int, str | None]:
        """(exit code, a description of a wrong end of the command; None if there is none)."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code: Any = command_line(arguments)
            except SystemExit as end:  # argparse
                code = end.code
        said = err.getvalue()
        shown = " ".join(arguments)
        if code not in (0, 1, 2):
            return code, f"exit code {code}: {shown}"
        if "this is unexpected" in said or "Traceback" in said or len(said.splitlines()) > 2:
            return code, f"{said.strip()[:400]} <- {shown}"
        return code, None if (code == 0) or said.strip() else f"exit code {code} without a word: {shown}"


def options(registry: Any) -> list[str]:
    """The options of all components of a kind."""
    return sorted({option.name for entry in registry for option in fields(entry.cls)})


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}; a key inside a value that is not a group is dropped."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        node = out
        for part in path:
            inner = node.setdefault(part, {})
            node = inner if isinstance(inner, dict) else {}
        node[last] = value
    return out


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}, one level deep."""
    pairs = [(f"{k}.{i}", w) for k, v in config.items() if isinstance(v, dict) for i, w in v.items()]
    return {**{k: v for k, v in config.items() if not isinstance(v, dict)}, **dict(pairs)}


def text(value: Any) -> str:
    return value.replace("\x00", "") if isinstance(value, str) else json.dumps(value)


def blow(rng: random.Random) -> str:
    """A random phase of a random round."""
    return f"{rng.choice(PHASES)}:{rng.randrange(WORLD['rounds'])}"


def damage(run: Path, rng: random.Random) -> None:
    """Changes, truncates, swaps or removes a random file or folder of a run."""
    found = [p for p in sorted(run.rglob("*")) if p.name not in UNTOUCHED]
    if not found:
        return
    path = rng.choice(found)
    files = [p for p in found if p.is_file()]
    if path.is_dir():
        if rng.random() < 0.5:
            shutil.rmtree(path)
            return
        moved = path.with_name(f"{path.name}x")
        while moved.exists():
            moved = moved.with_name(f"{moved.name}x")
        path.rename(moved)
        return
    data = bytearray(path.read_bytes())
    kind = rng.choice(("flip", "cut", "garbage", "remove", "swap", "lines"))
    if kind == "remove" or not data:
        path.unlink()
    elif kind == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif kind == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif kind == "garbage":
        at = rng.randrange(len(data))
        data[at : at + 9] = rng.randbytes(9)
        path.write_bytes(data)
    elif kind == "swap":
        path.write_bytes(rng.choice(files).read_bytes())
    else:
        lines = bytes(data).splitlines(keepends=True)
        rng.shuffle(lines)
        path.write_bytes(b"".join(lines))


def everything(run: Path) -> dict[str, Any]:
    """The parts of a finished run that must be equal, the number of rounds in its summary included."""
    return outcome(run) | {"rounds": json.loads((run / "summary.json").read_text())["rounds"]}


def case_arguments(module: str, about: str | None, count: int) -> argparse.Namespace:
    """The arguments of a command that tries numbered random cases.

    module: `python -m MODULE` runs it. about: the docstring of the module. count: the default number of cases.
    """
    description = (about or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no case after M minutes")
    parser.add_argument("--only", type=int, help="the number of one case, to repeat it")
    parser.add_argument("--write", action="store_true", help="put the sum of all calls into benchmarks/NOTES.md")
    return parser.parse_args()


def main() -> int:
    args = case_arguments("benchmarks.fuzz", __doc__, 20_000)
    torch.set_num_threads(1)
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # Lightning calls it every run
    ended, wrong, started = Counter[str](), 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="raylfl-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        fuzz = Fuzz(args.seed, Path(folder))
        gc.freeze()  # garbage collection in a fork then copies no memory
        for number in [args.only] if args.only is not None else range(args.count):
            if time.perf_counter() - started > 60 * args.minutes:
                break
            try:
                kind, fault = fuzz.case(number)
            except Exception as error:  # an error of the case, or one that the command line did not catch
                kind, fault = "escaped", f"{type(error).__name__}: {error}"
            ended[kind] += 1
            if fault is not None:
                wrong += 1
                print(f"case {number}: {fault}", flush=True)
    for kind, count in sorted(ended.items()):
        print(f"{count:7d}  {kind}")
    print(f"{sum(ended.values())} cases in {time.perf_counter() - started:.0f} s, {wrong} wrong")
    if args.only is None and ended:
        CALLS.parent.mkdir(exist_ok=True)
        with CALLS.open("a") as file:
            file.write(json.dumps({"seed": args.seed, "ended": ended, "wrong": wrong}) + "\n")
    if args.write:
        write_part("fuzz", table([json.loads(line) for line in CALLS.read_text().splitlines()]))
    return bool(wrong)


def table(calls: list[dict[str, Any]]) -> str:
    """A table of cases by kind and ending; of each seed the longest call counts."""
    longest: dict[int, dict[str, Any]] = {}
    for call in sorted(calls, key=lambda call: sum(call["ended"].values())):
        longest[call["seed"]] = call
    ended = sum((Counter(call["ended"]) for call in longest.values()), Counter[str]())
    other = sum(n for name, n in ended.items() if name.partition(": ")[2] not in ENDINGS)
    seeds = ", ".join(f"{seed} ({sum(call['ended'].values()):,})" for seed, call in sorted(longest.items()))
    wrong = sum(call["wrong"] for call in longest.values())
    rows = [[kind, *(f"{ended[f'{kind}: {ending}']:,}" for ending in ENDINGS)] for kind in KINDS]
    head = ["kind", "exit code 0", "1, ended with a message", "2, refused with a message"]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    counts = f"{sum(ended.values()):,} cases, {wrong} wrong, {other} with an exit code other than 0, 1 and 2"
    about = f"{counts}; seeds (cases): {seeds}."
    return "\n".join([about, "", *lines])


if __name__ == "__main__":
    sys.exit(main())
