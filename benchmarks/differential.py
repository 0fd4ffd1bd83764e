"""Comparisons of runs of random configs that must have the same bits, with odd modules and data.

    python -m benchmarks.differential [--count 2000] [--seed 0] [--minutes M] [--write]

A case draws a method, its graph, availability, links, partition, local work, measurements, runtime and a module of
`odd_modules.py`. Its run is compared with others of the same config: on seven workers in random order; killed in a
random phase and resumed from checkpoints of which the newest one is damaged; from its saved config.yaml; with its
recorded participation and graph; and a run by recorded steps with one by autograd. A case is wrong if bits differ, or
if a run ends otherwise than by a message. Cases are numbered; those of earlier calls, in `.fuzz/differential.jsonl`,
are not repeated, except by `--only NUMBER`. `--write` puts the counts into benchmarks/NOTES.md.
"""

import json
import logging
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.fuzz import MEMORY, case_arguments
from benchmarks.odd_modules import MODULES
from benchmarks.pages import ROOT, write_part
from raylfl.algorithms import ALGORITHMS
from raylfl.errors import BadConfig, RaylflError
from raylfl.runtime.session import rows_in_process
from raylfl.testing.runs import PHASES, Killed, RandomWorkers, carry_out, outcome, strike

CASES = ROOT / ".fuzz" / "differential.jsonl"
ROUNDS = 5
KINDS = ("seven workers", "killed, damaged and resumed", "its config.yaml", "its recorded rounds", "recorded steps")
LINKS = [{"name": "perfect"}, {"name": "bernoulli", "q": 0.3}, {"name": "bernoulli", "q": {"uniform": [0.0, 0.8]}}]
LINKS += [{"name": "bernoulli", "q": {"uniform": [0.0, 0.8]}, "dynamic": True}]
PARTITIONS: list[dict[str, Any]] = [
    *({"name": name} for name in ("iid", "natural", "natural", "quantity")),
    {"name": "dirichlet", "alpha": 0.3, "min_size": 0},
    {"name": "shards", "shards_per_client": 2},
    {"name": "classes", "classes": 2},
]
PARTICIPATION: list[dict[str, Any]] = [
    *({"name": name} for name in ("full", "full", "sinusoid", "staircase")),
    {"name": "markov", "p_on": 0.5, "p_off": 0.3},
    {"name": "cyclic", "size": 2},
    {"name": "bernoulli", "p": 0.5},
    {"name": "uniform", "size": 3},
    {"name": "uniform", "size": 4, "replace": True},
    {"name": "uniform", "size": 2, "availability": {"name": "bernoulli", "p": 0.6}},
    {"name": "weighted", "size": 3, "replace": True},
    {"name": "permutation", "size": 2},
]
TOPOLOGIES = ["complete", "directed_ring", "erdos_renyi", "exponential", "grid", "hyper_cuboid", "one_peer_exponential"]
TOPOLOGIES += ["ring", "small_world", "star", "torus", "auto", "auto", "auto"]
LOCAL: dict[str, list[Any]] = {
    "batch_size": [1, 2, 3, 5, "full", {"uniform": [2, None]}, {"uniform": [1, 4]}],
    "accumulate": [1, 1, 1, 2, 3],
    "dynamic": [False, True],
    "lr": [0.01, 0.05],
    "lr_schedule": ["constant", {"name": "exponential", "decay": 0.9}, {"name": "step_sqrt", "period": 2}],
    "momentum": [0.0, 0.0, 0.9],
    "weight_decay": [0.0, 0.0, 0.01],
    "clip_norm": [None, None, 0.5],
    "sampling": ["reshuffle", "reshuffle", "with_replacement"],
    "optimizer": ["sgd", "sgd", "sgd", "adamw", "module"],
    "optimizer_state": ["fresh", "fresh", "fresh", "kept", "averaged"],
    "buffers": ["average", "average", "local"],
}
EVAL: dict[str, list[Any]] = {
    "every": [1, 2, 3],
    "batch_size": [7, 500],
    **{
        key: [False, False, True]
        for key in ("global", "clients", "nodes", "participants", "per_client", "diversity", "drift")
    },
    "random_clients": [0, 0, 2],
    "average": [None, None, 0.9],
}
RUNTIME: dict[str, list[Any]] = {
    "vectorize": ["auto", "auto", "always", "never"],
    "micro_cohort": [None, None, 1, 2, 4],
    "layout": ["auto", "contiguous"],
    "on_nonfinite": ["fail", "drop"],
}


def pick(rng: random.Random, options: dict[str, list[Any]]) -> dict[str, Any]:
    """A random value for each key."""
    return {key: rng.choice(values) for key, values in options.items()}


def config_of(rng: random.Random) -> dict[str, Any]:
    """A random config. Some of its parts do not go together, which raylfl must refuse."""
    algorithm = rng.choice(list(ALGORITHMS))
    on_graph = algorithm.cls.pattern.peers
    config = {
        "name": "case",
        "rounds": ROUNDS,
        "seed": rng.randrange(1000),
        "num_clients": None,
        "dtype": rng.choice(["float32", "float32", "float64"]),
        "weights": rng.choice(["uniform", "data_size"]),
        "algorithm": {"name": algorithm.name, **({"cut": "first"} if algorithm.name in ("ssl", "splitfed") else {})},
        "model": {"class_path": f"benchmarks.odd_modules.{rng.choice(MODULES)}"},
        "data": {
            "class_path": "benchmarks.odd_modules.Points",
            "init_args": {"form": rng.choice(["tensors", "tensors", "tensors", "items", "dicts", "moved"])},
        },
        "partition": rng.choice(PARTITIONS),
        "participation": rng.choice(PARTICIPATION),
        "link": rng.choice(LINKS),
        "local": pick(rng, LOCAL),
        "eval": pick(rng, EVAL),
        "checkpoint": {"every": rng.choice([1, 2]), "keep": 2},
        "runtime": {"backend": "local", **pick(rng, RUNTIME)},
        "logging": {"report": False, "loggers": []},
    }
    config["num_clients"] = None if config["partition"]["name"] == "natural" else 6
    config["local"][rng.choice(["steps", "epochs"])] = rng.choice([1, 2, 3, {"uniform": [1, 4]}])
    if on_graph:  # such methods keep rows of their own, and have no server that averages
        config["topology"] = {"name": rng.choice(TOPOLOGIES)}
        config["local"] |= {"buffers": "average", "optimizer_state": "fresh"}
    if config["local"]["optimizer"] == "module":
        config["local"]["weight_decay"] = 0.0
    if config["local"]["optimizer"] != "sgd":
        config["local"]["momentum"] = 0.0
    elif not config["local"]["momentum"]:
        config["local"]["optimizer_state"] = "fresh"
    return config


class Case:
    """The runs of a random config in a folder, and their comparisons."""

    def __init__(self, rng: random.Random, folder: Path):
        self.rng, self.folder, self.config = rng, folder, config_of(rng)
        self.wrong: list[str] = []
        self.compared = 0

    def carry_out(self) -> str:
        """How the run ended: refused or ended with a message, or compared; `wrong` then has the differences."""
        try:
            carry_out(self.config, self.folder / "one")
        except BadConfig as error:
            return self._message("refused", error)
        except RaylflError as error:
            return self._message("ended", error)
        comparisons = (self.crowd, self.killed, self.saved, self.replayed, self.recorded)
        for kind, comparison in zip(KINDS, comparisons, strict=True):
            try:
                different = comparison()
            except Exception as error:
                different = [f"{type(error).__name__}: {str(error)[:300]}"]
            if different is not None:
                self.compared += 1
                self.wrong += [f"{kind}: {', '.join(different)}"] if different else []
        return "compared"

    def _message(self, ending: str, error: Exception) -> str:
        if not str(error).strip() or len(str(error).splitlines()) > 3:
            self.wrong.append(f"{ending} with the message {str(error)[:300]!r}")
        return ending

    def crowd(self) -> list[str]:
        carry_out(self.config, self.folder / "crowd", rows=partial(rows_in_process, make=RandomWorkers))
        return different(self.folder / "one", self.folder / "crowd")

    def killed(self) -> list[str]:
        phase, r = self.rng.choice(PHASES), self.rng.randrange(1, ROUNDS)
        fault = None if phase == "checkpoint" and self.config["checkpoint"]["every"] == 2 else strike(phase, r)
        run = self.folder / "killed"
        try:
            carry_out(self.config, run, fault=fault)
        except Killed:
            checkpoints = sorted((run / "checkpoints").glob("round_*"))
            files = [p for p in sorted(checkpoints[-1].rglob("*")) if p.stat().st_size] if checkpoints else []
            if files:
                path = self.rng.choice([p for p in files if p.is_file()])
                data = bytearray(path.read_bytes())
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
                path.write_bytes(data)
            carry_out(self.config, run, resume=True)
        return different(self.folder / "one", run)

    def saved(self) -> list[str]:
        carry_out(self.folder / "one" / "config.yaml", self.folder / "saved")
        return different(self.folder / "one", self.folder / "saved")

    def replayed(self) -> list[str] | None:
        one = self.folder / "one"
        recorded = {"participation": {"name": "trace", "path": str(one / "participation.jsonl")}}
        if (one / "topology.jsonl").exists():
            weights = self.config.get("topology", {}).get("weights", "auto")
            recorded["topology"] = {"name": "recorded", "path": str(one / "topology.jsonl"), "weights": weights}
        try:
            carry_out({**self.config, **recorded}, self.folder / "replayed")
        except BadConfig:
            return None  # a method that samples by what it computes
        return different(one, self.folder / "replayed", ("participation", "params", "nodes", "state_dict"))

    def recorded(self) -> list[str] | None:
        runtime = {"vectorize": "never", "layout": "contiguous"}
        for step in ("auto", "autograd"):
            carry_out(
                self.config, self.folder / step, [f"runtime.{k}={v}" for k, v in {**runtime, "step": step}.items()]
            )
        return different(self.folder / "auto", self.folder / "autograd")


def different(one: Path, other: Path, parts: tuple[str, ...] | None = None) -> list[str]:
    """The parts of two runs' outcomes that differ."""
    a, b = outcome(one), outcome(other)
    return [part for part in parts or tuple(a) if a[part] != b[part]]


def case(seed: int, number: int, folder: Path) -> dict[str, Any]:
    """Carries out a case; returns its line of the record."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    it, started = Case(random.Random(f"{seed}/{number}"), folder), time.perf_counter()
    try:
        ended = it.carry_out()
    except Exception as error:
        ended = "escaped"
        it.wrong.append(f"{type(error).__name__}: {str(error)[:300]}")
    of = {"algorithm": it.config["algorithm"]["name"], "module": it.config["model"]["class_path"].rpartition(".")[2]}
    seconds = round(time.perf_counter() - started, 2)
    line = {"seed": seed, "number": number, "ended": ended, "compared": it.compared, "seconds": seconds}
    return {**line, "wrong": it.wrong, **of}


def text(lines: list[dict[str, Any]]) -> str:
    """The counts of all cases, as text for the page."""
    ended, run = Counter(line["ended"] for line in lines), [line for line in lines if line["ended"] == "compared"]
    wrong = sum(len(line["wrong"]) for line in lines)
    methods, modules = (len({line[kind] for line in run}) for kind in ("algorithm", "module"))
    return (
        f"{len(lines):,} random configs: {ended['refused']:,} refused and {ended['ended']:,} ended with a message, "
        f"{len(run):,} compared with other runs of the same config. {sum(line['compared'] for line in lines):,} "
        f"comparisons of {methods} methods and {modules} modules; {wrong} wrong."
    )


def main() -> int:
    args = case_arguments("benchmarks.differential", __doc__, 2000)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    CASES.parent.mkdir(exist_ok=True)
    lines = [json.loads(line) for line in CASES.read_text().splitlines()] if CASES.exists() else []
    done = {line["number"] for line in lines if line["seed"] == args.seed}
    numbers = [n for n in range(args.count) if n not in done] if args.only is None else [args.only]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="raylfl-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for number in numbers:
            if time.perf_counter() - started > 60 * args.minutes:
                break
            line = case(args.seed, number, Path(folder) / "case")
            for fault in line["wrong"]:
                print(f"case {number} ({line['algorithm']}, {line['module']}): {fault}", flush=True)
            if args.only is None:
                lines.append(line)
                with CASES.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    print(text(lines) if args.only is None else line)
    if args.write:
        write_part("differential", text(lines))
    return any(line["wrong"] for line in lines)


if __name__ == "__main__":
    sys.exit(main())
