"""The results as rows, and as a part of docs/measurements.md."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import Any

from benchmarks.pages import plain_table
from benchmarks.peers.definitions import DEFINITIONS

NAMES = {
    ("raylfl", 1): "raylfl, in process",
    ("raylfl", 2): "raylfl, two workers",
    ("plain", 1): "plain loop, one thread",
    ("pfl", 1): "pfl-research {}, one process",
    ("pfl", 2): "pfl-research {}, two processes",
    ("flower", 2): "Flower {}, two clients at a time",
    ("fedlab", 1): "FedLab {}, one thread",
    ("fluke", 1): "fluke {}, one thread",
}
OURS = ("raylfl", 2)  # the side that the columns of ratios compare with the others
MEASURED = ("seconds", "processor", "whole")
COLUMNS = (
    "seconds a round",
    "processor seconds",
    "whole run, s",
    "raylfl's two workers take",
    "by processor",
    "accuracy",
)


def rows_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per workload and side, with medians of times; then the limits and what is unmeasured."""
    rows = []
    for name, result in results.items():
        groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for run in result["runs"]:
            groups.setdefault((run["side"], run["workers"]), []).append(run)
        for key, runs in groups.items():
            values = [median(run[of] for run in runs) for of in MEASURED]
            ratios = [ratio(groups.get(OURS, []), runs, of) for of in MEASURED[:2]]
            accuracy = f"{runs[-1]['accuracy']:.1%}"
            rows.append(row(name, name_of(key, runs[0]["version"]), *values, *ratios, accuracy))
        for part in ("arithmetic", "memory"):
            rows.append(row(name, f"limit of the cores: {part}", result["limit"][part]))
        rows += [row(name, f"{side}: unmeasured ({reason})") for side, reason in result["unmeasured"].items()]
    return rows


def ratio(ours: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]], of: str) -> str:
    """The median ratio of our time to another side's in the same repetition; empty without such a repetition."""
    mine = {run["repetition"]: run[of] for run in ours}
    ratios = [mine[run["repetition"]] / run[of] for run in runs if run["repetition"] in mine]
    return f"{median(ratios):.2f}" if ratios else ""


def name_of(case: tuple[str, int], version: str = "") -> str:
    """The name of a side and its number of workers, with the version of the peer's release."""
    return NAMES.get(case, f"{case[0]} {{}}, {case[1]} workers").format(version).replace(" ,", ",")


def row(workload: str, side: str, *values: float | str) -> dict[str, Any]:
    """A row with the first of COLUMNS filled in."""
    return {"workload": workload, "side": side, **dict(zip_longest(COLUMNS, values, fillvalue=""))}


def repetitions(runs: Sequence[Mapping[str, Any]]) -> str:
    """How often the sides were run: `2 times`, or `1 to 3 times`."""
    counts = Counter((run["side"], run["workers"]) for run in runs).values()
    least, most = min(counts), max(counts)
    return f"{least} time{'s' * (least > 1)}" if least == most else f"{least} to {most} times"


def page(results: Mapping[str, Any]) -> str:
    """The table, and below it what was run and what others published."""
    notes = []
    for name, result in results.items():
        workload, loads = DEFINITIONS[name], [run["load"] for run in result["runs"]]
        per_client, times = workload.samples // workload.clients, repetitions(result["runs"])
        about = (
            f"{workload.cohort} of {workload.clients:,} clients of {per_client} images a round, {workload.steps} steps "
            f"of {workload.batch_size}, rate {workload.lr}, {result['data']}"
        )
        measured = (
            f"{result['rounds']} rounds on {result['stamp'].split(',')[0]}, each side {times}, "
            f"at a load of {min(loads):.1f} to {max(loads):.1f}{result.get('note', '')}"
        )
        notes.append(f"- `{name}` ({workload.title}): {about}.\n  {measured}. Published: {workload.published}.")
    return plain_table(rows_of(results)) + "\n\n" + "\n".join(notes)
