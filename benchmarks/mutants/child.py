"""Tests of a changed package: with a statement in every block that records its entry, or with one error.

Most errors are inside functions: a fork of a process that has imported and collected everything exchanges the code of
one function and runs tests at once. Other errors (defaults, constants, class attributes) need a new process.
"""

import ast
import builtins
import gc
import hashlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from benchmarks.mutants.mutations import mark_blocks
from benchmarks.pages import ROOT

Tests = dict[str, tuple[float, frozenset[str]]]  # node id: processor seconds, blocks that it enters as "path:name#k"
AT_IMPORT = "at import"  # used as a node id: what is entered before the first test
IMPORTS = Path(__file__)  # used as a test file: where this is kept
BROKEN = 70  # exit code of a fork in which the work itself raised


class Instead(importlib.abc.MetaPathFinder):
    """Imports modules of these files from another source."""

    def __init__(self, root: Path, sources: dict[str, Callable[[], Any]]):
        """sources: path from the root -> function that returns an argument for `compile`."""
        self.root, self.sources = root, {str(root / path): make for path, make in sources.items()}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith("raylfl"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.origin in self.sources:
            spec.loader = _Loader(name, spec.origin, self.sources[spec.origin])
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, make: Callable[[], Any]):
        super().__init__(name, path)
        self.make = make

    def get_code(self, fullname: str) -> Any:
        return compile(self.make(), self.path, "exec", dont_inherit=True)


def noted(root: Path, path: str) -> ast.Module:
    """The syntax tree of the file, with a first statement in every block that records the block's name."""
    tree = ast.parse((root / path).read_bytes())
    for body, name in mark_blocks(tree):
        note = ast.parse(f"__entered__({f'{path}:{name}'!r})").body[0]
        is_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        for node in ast.walk(note):
            ast.copy_location(node, body[0])
        body.insert(1 if is_docstring else 0, note)
    return tree


class Timed:
    """A pytest plugin that records processor seconds and entered blocks of passing tests, in one file per test file.

    Of tests that differ only in their seed it runs the first; of tests of whole runs (tests/runtime), five
    parametrisations.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.entered: set[str] = set()
        self.tests: Tests = {}
        builtins.__entered__ = self.entered.add  # type: ignore[attr-defined]

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        first: dict[object, Any] = {}
        for item in items:
            first.setdefault(but_for_the_seed(item), item)
        functions: dict[str, list[Any]] = {}
        for item in first.values():
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
        items[:] = [item for name, alike in functions.items() for item in some_of(name, alike)]

    def pytest_runtestloop(self, session: Any) -> None:
        """Records the blocks entered while these files are imported and collected, without blocks of other files."""
        before = kept_calls(self.place, IMPORTS) or {}
        entered = before.get(AT_IMPORT, (0.0, frozenset[str]()))[1]
        keep_calls(self.place, IMPORTS, {AT_IMPORT: (0.0, entered | self.entered)})

    def pytest_runtest_setup(self, item: Any) -> None:
        self.entered.clear()
        self.started = time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.tests[report.nodeid] = (round(time.process_time() - self.started, 3), frozenset(self.entered))

    def pytest_runtest_teardown(self, item: Any, nextitem: Any) -> None:
        if nextitem is None or nextitem.path != item.path:
            keep_calls(self.place, item.path, self.tests)
            self.tests = {}


def but_for_the_seed(item: Any) -> object:
    """A key that is equal for parametrisations of a test that differ in `seed` alone."""
    chosen = dict(item.callspec.indices) if hasattr(item, "callspec") else {}
    chosen.pop("seed", None)
    return item.nodeid.partition("[")[0], tuple(chosen.items())


def some_of(name: str, alike: list[Any]) -> list[Any]:
    """All parametrisations of a test; for a test of whole runs, five of them, evenly spread."""
    if not name.startswith("tests/runtime/") or len(alike) <= 5:
        return alike
    return [alike[k * (len(alike) - 1) // 4] for k in range(5)]


def keep_calls(place: Path, path: Path, tests: Tests) -> None:
    """Writes the blocks that the tests of a file enter, with checksums of the file and of the block names."""
    names = sorted(frozenset().union(*(entered for _, entered in tests.values())))
    number = {name: k for k, name in enumerate(names)}
    rows = {node: [seconds, sorted(number[name] for name in entered)] for node, (seconds, entered) in tests.items()}
    forms = {entered: form(entered) for entered in {name.partition(":")[0] for name in names}}
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    content = {"sha256": checksum, "forms": forms, "blocks": names, "tests": rows}
    (place / f"{path.parent.name}-{path.stem}.json").write_text(json.dumps(content))


def kept_calls(place: Path, path: Path) -> Tests | None:
    """The record that `keep_calls` wrote; None if there is none, or if the test file has changed.

    If the blocks of a source file have changed, a test counts as entering all blocks of each function that it entered,
    because recording all tests again takes minutes.
    """
    kept = place / f"{path.parent.name}-{path.stem}.json"
    content = json.loads(kept.read_text()) if kept.exists() else {}
    if content.get("sha256") != hashlib.sha256(path.read_bytes()).hexdigest():
        return None
    changed = {entered for entered, then in content["forms"].items() if form(entered) != then}
    names = [[name] if name.partition(":")[0] not in changed else alike(name) for name in content["blocks"]]
    return {
        node: (seconds, frozenset(name for k in ks for name in names[k]))
        for node, (seconds, ks) in content["tests"].items()
    }


def alike(name: str) -> list[str]:
    """The names of all blocks in the function of this block."""
    path, _, block = name.partition(":")
    function = block.partition("#")[0]
    return [f"{path}:{other}" for other in block_names(path) if other.partition("#")[0] == function]


@cache
def block_names(path: str) -> list[str]:
    source = ROOT / path
    return [name for _, name in mark_blocks(ast.parse(source.read_bytes()))] if source.exists() else []


def form(path: str) -> str:
    """A checksum of the names of all blocks of a file."""
    return hashlib.sha256("\n".join(block_names(path)).encode()).hexdigest()[:12]


QUIET = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:leaks",
    "--assert=plain",  # rewriting would import raylfl, a pytest plug-in, before `Instead` is active
    "--no-header",
    "-m",
    "not slow and not exhaustive",
]


def look(root: Path, paths: Sequence[str], files: Sequence[str], place: Path) -> int:
    """Records which blocks the quick tests in these files enter, in one file per test file."""
    import pytest

    sys.meta_path.insert(0, Instead(root, {path: lambda p=path: noted(root, p) for path in paths}))
    code = int(pytest.main([*QUIET, f"--basetemp={place}/tmp{os.getpid()}", *files], plugins=[Timed(place)]))
    for path in (root / file for file in files if code in (0, 1, 5)):
        if kept_calls(place, path) is None:  # the file has only slow tests
            keep_calls(place, path, {})
    return code


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions and methods of a module, nested ones included."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_NEWLOCALS:  # not a class body
                yield constant
            yield from functions_of(constant)


def live_functions(root: Path) -> dict[str, list[FunctionType]]:
    """The functions in this process by file below the root; visits every object, hence called once, before any fork."""
    found: dict[str, list[FunctionType]] = {}
    gc.unfreeze()  # makes objects visible that tests/conftest.py has frozen
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(str(root)):
            found.setdefault(thing.__code__.co_filename, []).append(thing)
    return found


def exchanged(functions: Sequence[FunctionType], path: str, before: bytes, after: bytes) -> bool:
    """Gives each function of the file its code in `after`; returns False if no function's code differs."""
    old, new = (by_name(compile(text, path, "exec", dont_inherit=True)) for text in (before, after))
    outer = [[name for name in codes if "<locals>" not in name[0]] for codes in (old, new)]
    if outer[0] != outer[1]:
        return False  # a lambda is missing
    places = {(o.co_qualname, o.co_firstlineno): new[name] for name, o in old.items() if new.get(name, o) != o}
    found = False
    for function in functions:
        code = places.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__, found = code, True
    return found


def by_name(module: CodeType) -> dict[tuple[str, int], CodeType]:
    """The code of a module's functions, by (qualified name, number among functions of this name, such as lambdas)."""
    found: dict[tuple[str, int], CodeType] = {}
    for code in functions_of(module):
        found[code.co_qualname, sum(name == code.co_qualname for name, _ in found)] = code
    return found


def run_in_order(session: Any, items: Sequence[Any], seconds: Sequence[float]) -> str | None:
    """Runs tests in order; returns the first that fails, or None.

    SIGPROF ends the process if a test takes far more than its usual processor seconds.
    """
    failed: list[str] = []

    class Watch:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed and report.when != "teardown":
                failed.append(report.nodeid)

    session.config.pluginmanager.register(Watch())
    for item, following, usual in zip(items, [*items[1:], None], seconds, strict=True):
        signal.setitimer(signal.ITIMER_PROF, 5.0 + 10.0 * usual)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException:  # such as SystemExit, which pytest passes on
            return str(item.nodeid)
        if failed:
            return failed[0]
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    return None


def without_shrinking() -> None:
    """Makes Hypothesis stop at the first failure and draw the same examples each time."""
    from hypothesis import Phase, settings

    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None, derandomize=True)
    settings.load_profile("mutants")


class Afresh:
    """A pytest plugin that runs these tests in this order and records the first that fails."""

    def __init__(self, order: dict[str, float]):
        self.order, self.killed_by = order, None

    @staticmethod
    def pytest_collection() -> None:
        without_shrinking()

    def pytest_runtestloop(self, session: Any) -> bool:
        by_name = {item.nodeid: item for item in session.items}
        there = [node for node in self.order if node in by_name]
        self.killed_by = run_in_order(session, [by_name[n] for n in there], [self.order[n] for n in there])
        return True


def strike(root: Path, path: str, source: bytes, order: dict[str, float], out: Path) -> None:
    """Runs tests (order: usual seconds by name) until one fails, with this source in place of the file's."""
    import pytest

    sys.meta_path.insert(0, Instead(root, {path: lambda: source}))
    afresh = Afresh(order)
    files = dict.fromkeys(node.partition("::")[0] for node in order)
    code = int(pytest.main([*QUIET, f"--basetemp={out.parent}/afresh", *files], plugins=[afresh]))
    out.write_text(json.dumps({"by": afresh.killed_by or (f"exit code {code}" if code not in (0, 1, 5) else None)}))


def forked(work: Callable[[], object], log: Path, idle: float = 60.0) -> int | None:
    """Calls `work` in a fork, with its output in `log`; returns as `ended` does, BROKEN if the work raises."""
    return ended(started(work, log), idle)


def started(work: Callable[[], object], log: Path) -> int:
    child = os.fork()
    if child == 0:
        os.setsid()
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = BROKEN
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return child


def ended(child: int, idle: float) -> int | None:
    """The exit code of a fork; None if it was ended because it used no processor time for `idle` seconds.

    A limit on its total time would depend on the machine's load.
    """
    used, since = 0.0, time.monotonic()
    while time.monotonic() < since + idle:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if (now := processor_seconds(child)) > used + 0.02:
            used, since = now, time.monotonic()
        time.sleep(0.05)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return None


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":  # ROOT PATH SOURCE ORDER OUT
    root, path, source, order, out = sys.argv[1:]
    strike(Path(root), path, Path(source).read_bytes(), json.loads(Path(order).read_text()), Path(out))
