"""`python -m benchmarks`: prints the benchmarks' tables; -o FILE also writes the numbers as JSON.

    python -m benchmarks [PART ...] [-o FILE] [--write]
    python -m benchmarks peers [--help]

Without PART, all parts but `peers` are run. `--write` puts their tables into docs/measurements.md, with date, commit
and machine; `nodes`, which is computed and not measured, goes into docs/scaling.md.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import clients, many_nodes, pinned, steps, sums, workers
from benchmarks.neighbours import beside_neighbours
from benchmarks.pages import MEASUREMENTS, ROOT, plain_table, write_measurement, write_part
from benchmarks.peers import command as peers
from benchmarks.processes import start_up_and_memory
from benchmarks.rounds import beside_fedavg, evaluated, measure, page_of_ratios
from benchmarks.scale import RESNET18, SFL_TABLE_3, TINY, against_the_oracle
from benchmarks.tables import table_of
from benchmarks.workloads import USERS

PARTS = (
    "speed",
    "users",
    "steps",
    "stateful",
    "evaluation",
    "neighbours",
    "processes",
    "clients",
    "workers",
    "pinned",
    "sums",
    "rows",
    "nodes",
    "oracle",
    "peers",
)
ROUNDS = {"W1": 60, "W2": 12, "W3": 60}
USERS_ROUNDS = {**ROUNDS, "W4": 30, "W5": 20}
ROWS = ("fedmgda", "mifa", "fedaware")
STATEFUL = ("focus", "scaffold", "feddyn", "mifa", "fedaware")


PAGES: dict[str, Callable[[Any], str]] = {
    "speed": page_of_ratios,
    "stateful": lambda rows: plain_table([{key: row[key] for key in ("algorithm", "to_fedavg")} for row in rows]),
    "steps": steps.page,
    "clients": clients.page,
    "workers": workers.page,
    "pinned": pinned.page,
    "sums": sums.page,
    "rows": sums.page_of_rows,
}


def speed() -> list[dict[str, Any]]:
    """Round times of W1 to W3, in process and on one and two Ray workers, relative to the floor."""
    settings: list[tuple[str, dict[str, Any]]] = [
        ("in process", {"backend": "local"}),
        ("ray, 1 worker", {"workers": 1}),
        ("ray, 2 workers", {"workers": 2}),
    ]
    return [asdict(measure(w, label, runtime, ROUNDS[w])) for w in ROUNDS for label, runtime in settings]


def users() -> list[dict[str, Any]]:
    """Round times of W1 to W5 with a user's modules, on one and two Ray workers, relative to their floor."""
    settings: list[tuple[str, dict[str, Any]]] = [("ray, 1 worker", {"workers": 1}), ("ray, 2 workers", {"workers": 2})]
    return [
        asdict(measure(w, label, runtime, rounds, of=USERS))
        for w, rounds in USERS_ROUNDS.items()
        for label, runtime in settings
    ]


def stateful() -> list[dict[str, Any]]:
    """Round times on W1 of algorithms with memories, one Ray worker, each between two runs of FedAvg."""
    return [beside_fedavg("W1", a, {"workers": 1}, ROUNDS["W1"]) for a in STATEFUL]


def main() -> None:
    if sys.argv[1:2] == ["peers"]:
        peers.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS[:-1], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("-o", "--out", default="benchmarks/results.json")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/measurements.md")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for part in args.parts:
        if part == "speed":
            results[part] = speed()
        elif part == "users":
            results[part] = users()
        elif part == "steps":
            results[part] = [steps.measure(name) for name in USERS_ROUNDS]
        elif part == "stateful":
            results[part] = stateful()
        elif part == "evaluation":
            results[part] = [evaluated("W1", {"workers": 2}, 20, f"algorithm.name={a}") for a in ("fedavg", "sfl")]
        elif part == "neighbours":
            results[part] = [beside_neighbours(workers) for workers in (1, 2)]
        elif part == "processes":
            results[part] = [start_up_and_memory(w) for w in (1, 2)]
        elif part == "clients":
            results[part] = clients.measure()
        elif part == "workers":
            results[part] = [workers.round_of(count) for count in workers.WORKERS]
        elif part == "pinned":
            results[part] = [pinned.parts(w) for w in (1, 8, 64)]
            results["pinned rounds"] = [pinned.rounds(w) for w in (1, 2)]
        elif part == "sums":
            cases = (("shared", True), ("shared", False), ("pinned", False))
            results[part] = [sums.of_server("fedavg", placement, rows) for placement, rows in cases]
        elif part == "rows":
            results[part] = [sums.of_server(a, "shared", False) for a in ROWS]
        elif part == "nodes":
            results[part] = many_nodes.ways(many_nodes.counts())
        elif part == "oracle":
            results[part] = [
                *(against_the_oracle("ResNet-18, 10 clients, K 1", RESNET18, w, 3) for w in (0, 1)),
                against_the_oracle("ResNet-18, 10 clients, K 5", RESNET18 | SFL_TABLE_3, 1, 2),
                *(against_the_oracle("1,000 tiny clients", TINY, w, 30) for w in (0, 1, 2)),
            ]
        else:
            parser.error(f"no part {part}: there are {', '.join(PARTS)}")
        Console(width=120).print(table_of(results[part], part))
        if args.write and part == "nodes":
            write_part(part, many_nodes.page(results[part]), ROOT / "docs" / "scaling.md")
        elif args.write and f"<!-- {part}: " in MEASUREMENTS.read_text():
            write_measurement(part, PAGES.get(part, plain_table)(results[part]))
    Path(args.out).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
