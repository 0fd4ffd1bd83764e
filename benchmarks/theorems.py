"""Tests of the papers' theorems on thousands of random problems: the property tests of tests/theory, repeated.

    python -m benchmarks.theorems [--count 300] [--only NAME] [--write]

Each test gets `--count` problems. If a run exceeds its bound, the test's failure is printed, and the exit code is 1.
`--write` puts the counts into docs/theory.md.
"""

import argparse
import functools
import importlib
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings

from benchmarks.pages import ROOT, write_part

MODULES = ("test_bounds", "test_fedacs_bounds", "test_fedaware_rate", "test_softmax")


def claims(only: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, test) of all property tests of tests/theory."""
    for module in MODULES:
        for name, found in vars(importlib.import_module(f"tests.theory.{module}")).items():
            if getattr(found, "is_hypothesis_test", False) and only in name:
                yield name, found


def tried(test: Any, count: int) -> tuple[int, str]:
    """(the number of problems tried, the traceback of a failure or nothing)."""
    calls, inner = 0, test.hypothesis.inner_test

    @functools.wraps(inner)
    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        inner(*args, **kwargs)

    test.hypothesis.inner_test = counted
    chosen = settings(
        max_examples=count, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck)
    )
    try:
        chosen(test)()
    except Exception:
        return calls, traceback.format_exc()
    finally:
        test.hypothesis.inner_test = inner
    return calls, ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.theorems", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows, failed = [], False
    for name, test in claims(args.only):
        start = time.perf_counter()
        calls, error = tried(test, args.count)
        words = re.sub(r"(\d) (\d)", r"\1.\2", name.removeprefix("test_").replace("_", " "))  # lemma 3.2
        rows.append((words, calls))
        print(
            f"{calls:6} problems in {time.perf_counter() - start:5.0f} s: {rows[-1][0]}{error and ': EXCEEDED'}",
            flush=True,
        )
        if error:
            failed = True
            print(error, file=sys.stderr)
    if args.write and not failed and not args.only:
        total = sum(calls for _, calls in rows)
        lines = [
            f"{total:,} random problems, each with its runs, and no bound was exceeded:",
            "",
            "| claim | problems |",
            "| --- | --- |",
        ]
        lines += [f"| {name} | {calls:,} |" for name, calls in rows]
        write_part("theorems", "\n" + "\n".join(lines) + "\n", ROOT / "docs" / "theory.md")
    sys.exit(failed)


if __name__ == "__main__":
    main()
