"""The output of `raylfl list`, `runs`, `diff` and `profile`: components, configs, your classes, saved runs, timings."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from raylfl.components.options import options_of_class, words
from raylfl.components.registry import first_line, import_class
from raylfl.config.find import FOLDERS, config_names, find_config, summary_of
from raylfl.config.registries import KINDS
from raylfl.config.urls import is_url
from raylfl.errors import BadConfig, BadValue
from raylfl.python.console import print_cells, print_table, rows_table, say, shown
from raylfl.report.labels import METHOD, show_value
from raylfl.report.runs import RunRecord, read_runs
from raylfl.report.selection import differing_keys, same_parameters, select
from raylfl.runtime.records.mirror import address, owner_of
from raylfl.runtime.records.run_dir import RunDirectory

if TYPE_CHECKING:
    from raylfl.runtime.profile import Candidate

SHOWN = (  # the metrics in a list of runs, and their formats
    ("train/loss", "{:.4f}"),
    ("test/loss", "{:.4f}"),
    ("test/accuracy", "{:.2%}"),
    ("val/loss", "{:.4f}"),
    ("val/accuracy", "{:.2%}"),
    ("global/distance", "{:.2e}"),
)
DATA_ATTRIBUTES = {"train_dataset", "train_dataloader"}  # a class with one of them is a data class


def list_kind(kind: str, with_title: bool) -> None:
    """Prints a table of the components or configs of a kind: name, summary, and paper or package."""
    table = _table(kind if with_title else None)
    if kind in FOLDERS:
        for name in config_names(FOLDERS[kind]):
            table.add_row(name, summary_of(find_config(name)), "")
    else:
        for entry in KINDS[kind]:
            origin = f"plug-in: {entry.origin}" if entry.origin else entry.paper
            table.add_row(entry.name, entry.about(), origin)
        for plugin in KINDS[kind].hidden():
            about = f"hidden by raylfl's own {plugin.name}: say class_path={plugin.path}"
            table.add_row(plugin.name, about, f"plug-in: {plugin.origin}")
    print_table(table)


def list_own(path: str) -> None:
    """Prints your own components with their options: one class (`mine.FedCM`), or all of a module. Raises BadConfig."""
    found = list(_components(path))
    if not found:
        raise BadConfig(f"list {path}: no component found; docs/plugins.md says which classes are components")
    table = _table()
    for kind, cls in found:
        about = first_line(cls.__doc__) if "__doc__" in vars(cls) else ""
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            about = f"cannot be used: it does not define {' and '.join(missing)}"
        table.add_row(f"{cls.__module__}.{cls.__qualname__}", about, f"{kind}: {inspect.getfile(cls)}")
        for option, facts in _options(cls):
            table.add_row(f"  {option}", facts, "")
    print_table(table)


def _table(title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    return table


def kind_of(cls: Any) -> str | None:
    """The kind of component that a class defines, such as `models`; None if it is not a component."""
    if not isinstance(cls, type):
        return None
    for kind, registry in KINDS.items():
        if registry.base is not None and issubclass(cls, registry.base()):
            return kind
    if hasattr(cls, "training_step"):
        return "models"
    if hasattr(cls, "log_metrics") or (hasattr(cls, "log") and hasattr(cls, "close")):
        return "loggers"
    code = getattr(vars(cls).get("__init__"), "__code__", None)
    mentioned = {*dir(cls), *(code.co_names if code else ())}
    return "data" if mentioned & DATA_ATTRIBUTES else None


def _components(path: str) -> Iterator[tuple[str, type]]:
    """Pairs (kind, class) of the components at a path: one class, or all that a module defines. Raises BadConfig."""
    if _is_module(path):
        try:
            module = import_class(f"{path}.__dict__", "list")
        except BadValue as error:  # the message names a class
            raise BadConfig(f"list {path}: {error.hint}") from error
        classes = [value for value in module.values() if getattr(value, "__module__", None) == path]
    elif "." in path:
        classes = [import_class(path, "list")]
    else:
        known = ", ".join([*KINDS, *FOLDERS])
        raise BadConfig(f"list: invalid choice: {path!r} (choose from {known}, or name a module or class)")
    for cls in classes:
        if (kind := kind_of(cls)) is not None:
            yield kind, cls


def _is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except (ImportError, ValueError):
        return False


def _options(cls: type) -> Iterator[tuple[str, str]]:
    defaults = {name: p.default for name, p in inspect.signature(cls).parameters.items()}
    for name, hint in (options_of_class(cls) or {}).items():
        facts = [] if hint is Any else [words(hint)]
        default = defaults.get(name, inspect.Parameter.empty)
        if default is not inspect.Parameter.empty and repr(default) != "<factory>":  # of a dataclass's field
            facts.append(f"default {default}")
        yield name, "; ".join(filter(None, facts))


def list_runs(paths: Sequence[str], conditions: Sequence[str]) -> None:
    """Prints a line per run that meets the conditions: algorithm, state, rounds done, newest values of common metrics.

    Values of the validation set are shown if a run has no test set.
    """
    runs = select(read_runs(paths)[0], conditions)
    untested = [run for run in runs if not any(name.startswith("test/") for name in run.metrics)]
    measured = {
        name: form
        for name, form in SHOWN
        if any(run.measured(name) for run in (untested if name.startswith("val/") else runs))
    }
    rows = []
    for run in runs:
        location, newest = address(run.path), run.newest
        values = [form.format(newest[name]) if name in newest else "" for name, form in measured.items()]
        done = f"{len(run.rounds)}/{run.config.get('rounds', '?')}"
        name = location if is_url(location) else shown(run.path)
        rows.append([name, str(run.setting.get(METHOD, "?")), state_of(run), done, *values])
    print_cells(rows, ["run", "algorithm", "state", "rounds", *measured])


def list_differences(paths: Sequence[str], conditions: Sequence[str]) -> None:
    """Prints the config keys, versions and commits in which at least two runs differ, one line each."""
    runs = select(read_runs(paths)[0], conditions)
    if len(runs) < 2:
        raise BadConfig(f"{len(runs)} run{'s' * (len(runs) != 1)} found, but at least 2 are needed to compare")
    differing = differing_keys(runs)
    rows = [(key, *("-" if v is None else show_value(v) for v in values)) for key, values in differing.items()]
    if rows:
        print_cells(rows, ["key", *(shown(run.path) for run in runs)])
    else:
        say("all config keys, versions and commits are equal")
    if same_parameters(runs):
        say("the final parameters are equal, bit for bit")


def print_profile(timings: Sequence[Candidate], kernels: Sequence[dict[str, Any]]) -> None:
    """Prints the results of `raylfl.runtime.profile.profile`: forms of the gradient oracle, and kernels."""
    best, rule = timings[0], next(t for t in timings if t.rule)
    forms = [
        {
            "setting": t.setting + ("  (auto)" if t.rule else ""),
            "ms": 1e3 * t.median,
            "fastest": 1e3 * min(t.seconds),
            "slowest": 1e3 * max(t.seconds),
            "local steps/s": round(t.steps_per_round / t.median),
        }
        for t in timings
    ]
    say("Forms of the gradient oracle, one process, median rounds:")
    rows_table(forms)
    say("\nA round of the fastest:")
    phases = [{"phase": n, "ms": 1e3 * s, "% of the round": 100 * s / best.median} for n, s in best.phases.items()]
    rows_table(phases)
    say("\nIts kernels:")
    rows_table(kernels)
    if best.rule:
        say("\nThe rule's choice is the fastest here: leave both at auto.")
    else:
        say(f"\nFaster here than the rule's choice, by {rule.median / best.median:.2f}x: {best.setting}")


def state_of(run: RunRecord) -> str:
    """The state of a run: `finished`, `running`, the final state of its trial in a sweep, or `stopped`.

    At a URL, `running on HOST` also means a process that was killed.
    """
    from raylfl.tune.journal import ends  # imports scipy

    if run.finished:
        return "finished"
    if RunDirectory(run.path).in_use:
        return "running"
    if (owner := owner_of(run.path)) is not None:
        return f"running on {owner.host}"
    return ends(run.path.parent).get(run.path.name, "stopped")
