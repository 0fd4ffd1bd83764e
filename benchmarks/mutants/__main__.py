"""`python -m benchmarks.mutants [--count N] [--seed S] [--minutes M] [FILE ...]`: a mutation run, outside of CI.

A sample of small errors (`mutations.py`) in core, algorithms, solvers, diagnostics, heterogeneity and runtime, one at a
time in a fork of this process, against the quick tests that call the changed function, unit tests first. A first look
at all quick tests, some minutes, says which call what; it is kept in `.mutants/` with the results, so that an
interrupted run goes on. Survivors are printed as diffs to `.mutants/survivors.diff`; those in `equivalent.yaml`, each
with its reason, do not count. `--write` puts the score into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.mutants.child import QUIET, Tests, exchanged, forked, look, run_in_order
from benchmarks.mutants.mutations import Mutant, mutants
from benchmarks.pages import ROOT, write_part

PLACE = ROOT / ".mutants"
PARTS = ("core", "algorithms", "solvers", "diagnostics", "heterogeneity", "runtime")
OUTSIDE = ("raylfl/runtime/ray/", "raylfl/runtime/profile.py")  # only tests that start processes call these
FOLDERS = [f"tests/{part}" for part in (*PARTS, "oracles", "models")]
LONGEST = 40.0  # seconds of tests for one error, by their time in the first look


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("files", nargs="*", help="only errors in these files; all where none is named")
    parser.add_argument("--count", type=int, default=300, help="errors in the sample (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--minutes", type=float, default=60.0, help="no new error is tried after so long (60)")
    parser.add_argument("--again", action="store_true", help="also those that were tried before")
    parser.add_argument("--write", action="store_true", help="put the score into docs/reliability.md")
    args = parser.parse_args()
    PLACE.mkdir(exist_ok=True)
    paths = [p for p in targets() if not args.files or any(Path(f).resolve() == ROOT / p for f in args.files)]
    everything = [mutant for path in paths for mutant in mutants(ROOT, path)]
    sample = random.Random(args.seed).sample(everything, min(args.count, len(everything)))
    results, end = read_results(), time.monotonic() + 60 * args.minutes
    todo = [mutant for mutant in sample if args.again or mutant.id not in results]
    if todo:
        loop = Loop(todo, results, calls(), end)
        pytest.main([*QUIET, f"--basetemp={PLACE}/tmp", *FOLDERS], plugins=[loop])
    done = [(mutant, results[mutant.id]) for mutant in sample if mutant.id in results]
    report(done, len(everything), args)


class Loop:
    """A pytest plugin: once all tests are collected, one error after the other instead of the tests."""

    def __init__(self, todo: list[Mutant], results: dict[str, dict[str, Any]], tests: Tests, end: float):
        self.todo, self.results, self.tests, self.end = todo, results, tests, end

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        with session.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
            for k, mutant in enumerate(self.todo, 1):
                if time.monotonic() > self.end:
                    break
                row = self.results[mutant.id] = self.tried(mutant)
                with (PLACE / "results.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{k}/{len(self.todo)} {row['state']:9} {mutant.path}:{mutant.line}", flush=True)
        return True

    def tried(self, mutant: Mutant) -> dict[str, Any]:
        """killed, survived, or uncovered: no quick test calls the function."""
        order = [node for node in order_for(mutant, self.tests) if node in self.items]
        row: dict[str, Any] = {"id": mutant.id, "path": mutant.path, "line": mutant.line, "changed": mutant.changed}
        if not order:
            return {**row, "state": "uncovered"}
        out = PLACE / "strike.json"
        out.unlink(missing_ok=True)
        began, limit = time.monotonic(), 60.0 + 10 * sum(self.tests[node][0] for node in order)

        def work() -> None:
            self.session.config.get_terminal_writer()._file = sys.stdout
            if exchanged(str(ROOT / mutant.path), mutant.source, mutant.mutated):
                by = run_in_order(self.session, [self.items[node] for node in order])
                out.write_text(json.dumps({"by": by}))
                return
            (PLACE / "order.json").write_text(json.dumps(order))
            arguments = [str(ROOT), mutant.path, str(PLACE / "order.json"), str(out)]
            afresh = [sys.executable, "-m", "benchmarks.mutants.child", *arguments]
            subprocess.run(afresh, input=mutant.mutated, cwd=ROOT, check=False)

        in_time = forked(work, limit, PLACE / "strike.log")
        by = "time" if not in_time else json.loads(out.read_text())["by"] if out.exists() else "a dead process"
        took = round(time.monotonic() - began, 1)
        return {**row, "state": "killed" if by else "survived", "by": by, "seconds": took}


def targets() -> list[str]:
    """The files that get errors, relative to the root."""
    found = [p.relative_to(ROOT).as_posix() for part in PARTS for p in sorted((ROOT / "raylfl" / part).rglob("*.py"))]
    return [path for path in found if not path.startswith(OUTSIDE) and not path.endswith("__init__.py")]


def read_results() -> dict[str, dict[str, Any]]:
    path = PLACE / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["id"]: row for row in map(json.loads, lines)}


def calls() -> Tests:
    """Which test calls which functions, kept until a source or a test changes."""
    digest = hashlib.sha256()
    for folder in ("raylfl", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    kept = PLACE / f"calls-{digest.hexdigest()[:12]}.json"
    if not kept.exists():
        print("looking which test calls what ...", flush=True)
        out = PLACE / "calls.json"
        out.unlink(missing_ok=True)
        forked(lambda: look(ROOT, targets(), FOLDERS, out), 3600.0, PLACE / "calls.log")
        out.rename(kept)
    found: Tests = json.loads(kept.read_text())
    return found


def order_for(mutant: Mutant, tests: Tests) -> list[str]:
    """The tests that call the function (for other lines: anything of the file): those that name the file first, and
    tests that call few functions before those that call many.
    """
    key = f"{mutant.path}:{mutant.function}" if mutant.function else f"{mutant.path}:"
    found = [node for node, (_, called) in tests.items() if any(name.startswith(key) for name in called)]
    name = f"test_{Path(mutant.path).stem}"

    def rank(node: str) -> tuple[bool, int, float]:
        seconds, called = tests[node]
        return name not in node, len(called), seconds

    order, total = [], 0.0
    for node in sorted(found, key=rank):
        total += tests[node][0]
        if total > LONGEST:
            break
        order.append(node)
    return order


def equivalent() -> dict[str, str]:
    """Reasons by path and changed lines."""
    listed = yaml.safe_load((Path(__file__).parent / "equivalent.yaml").read_text()) or []
    return {f"{entry['path']}\n{entry['changed'].strip()}": entry["reason"] for entry in listed}


def report(done: list[tuple[Mutant, dict[str, Any]]], existing: int, args: argparse.Namespace) -> None:
    """The score by folder on stdout, survivors as diffs in a file, and both into the docs where asked for."""
    reasons, counts, diffs = equivalent(), Counter[tuple[str, str]](), []
    for mutant, row in done:
        state = row["state"]
        if state != "killed" and f"{mutant.path}\n{mutant.changed}" in reasons:
            state = "equivalent"
        part = mutant.path.split("/")[1]
        counts[part, state] += 1
        if state in ("survived", "uncovered"):
            diffs.append(f"# {state}: {mutant.path}:{mutant.line} {mutant.function}\n{mutant.diff()}\n")
    (PLACE / "survivors.diff").write_text("\n".join(diffs))
    lines = ["| folder | errors | killed | equivalent | survived | killed of the others |", "|---|---|---|---|---|---|"]
    for part in [*dict.fromkeys(part for part, _ in sorted(counts)), "all"]:
        here = Counter({s: sum(n for (p, q), n in counts.items() if q == s and part in (p, "all")) for _, s in counts})
        total, survived = sum(here.values()), here["survived"] + here["uncovered"]
        share = here["killed"] / max(here["killed"] + survived, 1)
        row = f"{part} | {total} | {here['killed']} | {here['equivalent']} | {survived} | {100 * share:.1f} %"
        lines.append(f"| {row} |")
    text = "\n".join(lines)
    print(text)
    print(f"survivors: {PLACE / 'survivors.diff'}")
    if args.write:
        about = f"{len(done)} of {existing:,} possible errors, drawn at random (`--seed {args.seed}`):"
        write_part("mutants", f"{about}\n\n{text}")


if __name__ == "__main__":
    main()
