"""`python -m benchmarks.mutants [--count N] [--seed S] [--minutes M] [FILE ...]`: a mutation run, outside of CI.

It draws a sample of small errors (`mutations.py`) in core, algorithms, solvers, diagnostics, heterogeneity and runtime.
For each error, a fork of this process runs the quick tests that enter the changed block: first unit tests and tests of
milliseconds, for at most `--longest` seconds. Times are processor seconds, so that results do not depend on the
machine's load. A test that takes ten times its usual time has found the error.

A first pass over all quick tests (some minutes) records which tests enter which blocks. The record of a test file is
kept in `.mutants/` until the file changes, together with the results, so that an interrupted run can be continued. The
samples of a seed are nested. Survivors are written as diffs to `.mutants/survivors.diff`; errors in `equivalent.yaml`,
each with a reason, do not count. `--again` tries survivors again; `--write` puts the score into benchmarks/NOTES.md.
"""

import argparse
import gc
import hashlib
import json
import math
import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.mutants.child import (
    AT_IMPORT,
    BROKEN,
    IMPORTS,
    QUIET,
    Tests,
    ended,
    exchanged,
    forked,
    kept_calls,
    live_functions,
    look,
    run_in_order,
    started,
    without_shrinking,
)
from benchmarks.mutants.mutations import Mutant, mutants
from benchmarks.pages import ROOT, write_part

PLACE = ROOT / ".mutants"
PARTS = ("core", "algorithms", "solvers", "diagnostics", "heterogeneity", "runtime")
OUTSIDE = ("raylfl/runtime/ray/", "raylfl/runtime/profile.py")  # only tests that start processes call these
UNIT = 8  # largest number of blocks that a unit test enters
QUICK = 0.05  # longest time in seconds of a test that is tried as early as unit tests
PLACES = [
    f"tests/{part}"
    for part in (
        *PARTS,
        "api",
        "oracles",
        "models",
        "data",
        "theory",
        "docs/test_site.py",
        "docs/test_docs.py",
        "test_options.py",
    )
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("files", nargs="*", help="only errors in these files (all)")
    parser.add_argument("--count", type=int, default=300, help="errors in the sample (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--longest", type=float, default=30.0, help="seconds of tests for one error (30)")
    parser.add_argument("--jobs", type=int, default=1, help="errors tried in parallel (1)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="no new error is tried after M minutes (60); 0: only report"
    )
    parser.add_argument("--again", action="store_true", help="also try errors that survived before")
    parser.add_argument("--write", action="store_true", help="put the score into benchmarks/NOTES.md")
    args = parser.parse_args()
    PLACE.mkdir(exist_ok=True)
    paths = [p for p in targets() if not args.files or any(Path(f).resolve() == ROOT / p for f in args.files)]
    everything = [mutant for path in paths for mutant in mutants(ROOT, path)]
    drawn = sorted(everything, key=lambda mutant: hashlib.sha256(f"{args.seed}:{mutant.id}".encode()).digest())
    sample = [mutant for mutant in drawn[: args.count] if mutant.compiles]
    known, listed, end = read_results(), Equivalent(), time.monotonic() + 60 * args.minutes
    harmless = {mutant.id: {"state": "equivalent"} for mutant in sample if mutant in listed}
    results = {**harmless, **known}
    todo = [
        mutant
        for mutant in sample
        if mutant.id not in results or (args.again and results[mutant.id]["state"] in ("survived", "uncovered"))
    ]
    if todo and args.minutes > 0:
        loop = Loop(todo, known, looking(args.jobs), args, end)
        pytest.main([*QUIET, f"--basetemp={PLACE}/tmp", *PLACES], plugins=[loop])
    results = {**harmless, **read_results()}
    done = [(mutant, results[mutant.id]) for mutant in sample if mutant.id in results]
    report(done, len(everything), args)


class Loop:
    """A pytest plugin that tries one error after the other, once all tests are collected."""

    def __init__(
        self,
        todo: list[Mutant],
        results: dict[str, dict[str, Any]],
        looking: list[int],
        args: argparse.Namespace,
        end: float,
    ):
        self.todo, self.results, self.looking, self.args, self.end = todo, results, looking, args, end
        self.place = PLACE
        self.sound: dict[str, bool] = {}  # test that found an error -> whether it passes without the error

    @staticmethod
    def pytest_collection() -> None:
        without_shrinking()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        self.functions = live_functions(ROOT / "raylfl")
        for child in self.looking:
            ended(child, idle=600.0)
        self.tests = calls()
        self.imported = self.tests.get(AT_IMPORT, (0.0, frozenset[str]()))[1]
        gc.freeze()  # garbage collection in a fork then copies no memory
        with session.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
            jobs = [PLACE / f"job{k}" for k in range(self.args.jobs)]
            for child in [started(lambda k=k: self.some(k), place.with_suffix(".log")) for k, place in enumerate(jobs)]:
                os.waitpid(child, 0)
        return True

    def some(self, job: int) -> None:
        """Tries every --jobs-th error, starting with number `job`, until the time is over."""
        self.place = PLACE / f"job{job}"
        self.place.mkdir(exist_ok=True)
        for mutant in self.todo[job :: self.args.jobs]:
            if time.monotonic() > self.end:
                break
            row = self.results[mutant.id] = self.tried(mutant)
            with (PLACE / "results.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{row['state']:9} {mutant.path}:{mutant.line}", flush=True)

    def tried(self, mutant: Mutant) -> dict[str, Any]:
        """Tries an error: killed, survived, or uncovered (no quick test enters the function)."""
        here = [
            row["by"].partition("[")[0] for row in self.results.values() if row["path"] == mutant.path and row["by"]
        ]
        order = order_for(mutant, self.tests, Counter(here), self.args.longest)
        order = [node for node in order if node in self.items and self.sound.get(node, True)]
        row: dict[str, Any] = {"id": mutant.id, "path": mutant.path, "line": mutant.line, "changed": mutant.changed}
        if not order:
            return {**row, "state": "uncovered", "by": None}
        began = sum(os.times()[:4])
        by = self.found(mutant, order)
        took = round(sum(os.times()[:4]) - began, 1)
        return {**row, "state": "killed" if by else "survived", "by": by, "seconds": took, "tests": len(order)}

    def found(self, mutant: Mutant, order: list[str]) -> str | None:
        """The test that fails only with the error; or "time" or "a dead process", if seen twice; else None."""
        by = self.struck(mutant, order)
        if by is None and f"{mutant.path}:{mutant.block}" in self.imported:
            by = self.struck(mutant, order, afresh=True)
        if by == "a dead process":
            by = self.struck(mutant, order)
        if by in self.items and not self.sound.setdefault(by, self.struck(None, [by]) is None):
            print(f"{by} fails without any error, too", flush=True)
            return self.found(mutant, [node for node in order if node != by])
        return by

    def struck(self, mutant: Mutant | None, order: list[str], afresh: bool = False) -> str | None:
        """The test that finds the error in a fork, if any; mutant None: no error; afresh: in a new process."""
        out = self.place / "strike.json"
        out.unlink(missing_ok=True)
        seconds = {node: self.tests[node][0] for node in order}

        def work() -> None:
            self.session.config.get_terminal_writer()._file = sys.stdout
            path = str(ROOT / mutant.path) if mutant else ""
            here = not afresh and (
                mutant is None or exchanged(self.functions.get(path, []), path, mutant.source, mutant.mutated)
            )
            if mutant and not here:
                (self.place / "order.json").write_text(json.dumps(seconds))
                (self.place / "source.py").write_bytes(mutant.mutated)
                files = [str(self.place / "source.py"), str(self.place / "order.json"), str(out)]
                own = [sys.executable, "-m", "benchmarks.mutants.child", str(ROOT), mutant.path, *files]
                os.chdir(ROOT)
                os.execv(own[0], own)
            by = run_in_order(self.session, [self.items[node] for node in order], list(seconds.values()))
            out.write_text(json.dumps({"by": by}))

        code = forked(work, self.place / "strike.log")
        if out.exists():
            return json.loads(out.read_text())["by"]  # type: ignore[no-any-return]
        if code == BROKEN:
            raise RuntimeError(f"the mutation run itself failed: see {self.place / 'strike.log'}")
        return "time" if code in (None, -signal.SIGPROF) else "a dead process"


def targets() -> list[str]:
    """The files that get errors, relative to the root."""
    found = [p.relative_to(ROOT).as_posix() for part in PARTS for p in sorted((ROOT / "raylfl" / part).rglob("*.py"))]
    return [path for path in found if not path.startswith(OUTSIDE) and not path.endswith("__init__.py")]


def read_results() -> dict[str, dict[str, Any]]:
    path = PLACE / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["id"]: row for row in map(json.loads, lines)}


def test_files() -> list[Path]:
    places = [ROOT / name for name in PLACES]
    return [path for at in places for path in ([at] if at.is_file() else sorted(at.rglob("test_*.py")))]


def looking(jobs: int) -> list[int]:
    """Starts forks that record which blocks the tests enter, for new and changed test files."""
    place = PLACE / "calls"
    place.mkdir(parents=True, exist_ok=True)
    new = [str(path.relative_to(ROOT)) for path in test_files() if kept_calls(place, path) is None]
    if new:
        print(f"recording what the tests of {len(new)} files enter ...", flush=True)
    parts = enumerate(part for part in (new[k::jobs] for k in range(jobs)) if part)
    return [started(lambda part=part: look(ROOT, targets(), part, place), PLACE / f"calls{k}.log") for k, part in parts]


def calls() -> Tests:
    """The recorded blocks of each test."""
    files = (IMPORTS, *test_files())
    return {node: row for path in files for node, row in (kept_calls(PLACE / "calls", path) or {}).items()}


def enters(entered: frozenset[str], key: str) -> bool:
    return any(name.startswith(key) for name in entered) if key.endswith(":") else key in entered


def order_for(mutant: Mutant, tests: Tests, finders: Counter[str], longest: float) -> list[str]:
    """The tests that enter the block (if none does: the function, or else anything in the file), in the order of trial.

    Errors outside of functions are also tried by tests that enter none, and by tests of the pages, which hold defaults.

    First come quick tests, unit tests, and tests in a file of its name; among these, tests that found other errors of
    the file and tests that enter few blocks. Of other tests, one of each parametrisation and file comes before a second
    one of any.
    """
    keys = [f"{mutant.path}:{mutant.block}", f"{mutant.path}:{mutant.function}#0"] if mutant.block else []
    keys.append(f"{mutant.path}:")
    found: list[str] = []
    for key in keys:
        found = found or [node for node, (_, entered) in tests.items() if node != AT_IMPORT and enters(entered, key)]
    if not mutant.block:
        pages = {node for node, (_, entered) in tests.items() if not entered or node.startswith("tests/docs/test_docs")}
        found += sorted(pages - {AT_IMPORT, *found})
    name, before = f"_{Path(mutant.path).stem}.py::", Counter[object]()

    def rank(node: str) -> tuple[int, bool, int]:
        return -finders[node.partition("[")[0]], name not in node, len(tests[node][1])

    turns: dict[str, tuple[int, int]] = {}
    for node in sorted(found, key=rank):
        function, file = node.partition("[")[0], node.partition("::")[0]
        alike = min(before[function], 2)
        at_once = name in node or len(tests[node][1]) <= UNIT or tests[node][0] <= QUICK
        turns[node] = (0, 0) if at_once else (alike, before[file, alike])
        before.update([function, (file, alike)])
    order, total = [], 0.0
    for node in sorted(found, key=lambda node: (turns[node], *rank(node))):
        total += tests[node][0]
        if total > longest:
            break
        order.append(node)
    return order


class Equivalent:
    """The errors in equivalent.yaml: single errors, or all other values of a constant."""

    def __init__(self) -> None:
        listed = yaml.safe_load((Path(__file__).parent / "equivalent.yaml").read_text()) or []
        self.keys = {f"{entry['path']}\n{entry['changed'].strip()}" for entry in listed if "changed" in entry}
        self.constants = [
            (e["path"], re.compile(rf"(\w+, )*{e['constant']}(, \w+)* = ")) for e in listed if "constant" in e
        ]

    def __contains__(self, mutant: Mutant) -> bool:
        if mutant.key in self.keys:
            return True
        line = mutant.sides[0][0] if mutant.sides[0] else ""
        return not mutant.block and any(path == mutant.path and name.match(line) for path, name in self.constants)


def report(done: list[tuple[Mutant, dict[str, Any]]], existing: int, args: argparse.Namespace) -> None:
    """Prints the score by folder, writes survivors as diffs to a file, and both into the docs with `--write`."""
    listed, counts, left = Equivalent(), Counter[tuple[str, str]](), []
    for mutant, row in done:
        state = row["state"]
        if state != "killed" and mutant in listed:
            state = "equivalent"
        part = mutant.path.split("/")[1]
        counts[part, state] += 1
        if state in ("survived", "uncovered"):
            left.append((mutant, state))
    diffs = [f"# {state}: {m.path}:{m.line} {m.function}\n{m.changed}\n" for m, state in left]
    (PLACE / "survivors.diff").write_text("\n".join(diffs))
    lines = ["| folder | errors | killed | equivalent | survived | killed of the others |", "|---|---|---|---|---|---|"]
    for part in [*dict.fromkeys(part for part, _ in sorted(counts)), "all"]:
        here = Counter({s: sum(n for (p, q), n in counts.items() if q == s and part in (p, "all")) for _, s in counts})
        survived = here["survived"] + here["uncovered"]
        share, low, high = interval(here["killed"], here["killed"] + survived)
        row = f"{part} | {here.total()} | {here['killed']} | {here['equivalent']} | {survived} | {share:.1%}"
        lines.append(f"| {row} |")
    text = "\n".join(lines)
    print(text)
    print(f"survivors: {PLACE / 'survivors.diff'}")
    if args.write:
        about = f"{len(done)} of {existing:,} possible errors, drawn at random (`--seed {args.seed}`; of `ray/` none)."
        bounds = f"Of all that are not equivalent the tests notice {low:.1%} to {high:.1%} (95 % confidence)."
        named = [f"- `{m.path}`, `{m.function or 'module'}`: `{m.lines}`" for m, _ in left]
        survivors = ["", "Not noticed:", "", *named] if named else []
        write_part("mutants", "\n".join([f"{about} {bounds}", "", text, *survivors]))


def interval(successes: int, trials: int) -> tuple[float, float, float]:
    """The share of successes, with its 95 % interval by Wilson's score."""
    n, z = max(trials, 1), 1.96
    share = successes / n
    middle, half = share + z**2 / (2 * n), z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return share, (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)


if __name__ == "__main__":
    main()
