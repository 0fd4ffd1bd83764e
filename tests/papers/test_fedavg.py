"""Table 1 of McMahan et al. 2017: cells are read from configs, rates are chosen, a cell ends at its target."""

import math
from pathlib import Path

import numpy as np
import pytest

from papers import ledger
from papers.base import choice, find
from papers.fedavg import FRACTIONS, PARTITIONS, claims, crossing, row_of
from papers.grid import Point
from papers.ledger_rows import LedgerRows
from papers.run_cache import RunCache
from raylfl.report.runs import RunRecord, load_run
from tests.papers.caches import DryCache

NAME = "fedavg/table1"


def selected(folder, *words):
    """The cells and configs of the selected settings, and their findings."""
    cache = DryCache(folder, "paper")
    cache.only = choice(words, find(NAME).choices, NAME)
    findings = find(NAME).run(cache)
    return [setting.cell for setting, *_ in cache.asked], [config for _, config, _ in cache.asked], findings


def test_the_cells_have_the_clients_and_steps_of_the_paper(tmp_path):
    """Sec. 3: one epoch of batches of 10 on 1, 10, 20, 50 and 100 of 100 clients; each run ends at 97 %."""
    cells, configs, _ = selected(tmp_path, "pixels=standardised", "lr=0.1")
    assert [c["participation"]["size"] for c in configs] == 2 * [1, 10, 20, 50, 100]
    for config in configs:
        local, stop = config["local"], config["stop"]
        assert (config["num_clients"], local["epochs"], local["steps"], local["batch_size"]) == (100, 1, None, 10)
        assert config["model"]["init_args"]["hidden"] == [200, 200]
        assert (stop["metric"], stop["target"], config["eval"]["every"]) == ("test/accuracy", 0.97, 1)
        assert config["partition"]["name"] == "iid" or config["partition"]["shards_per_client"] == 2
    assert [(cell["partition"], cell["fraction"]) for cell in cells] == [
        (partition, fraction) for partition in PARTITIONS for fraction in FRACTIONS
    ]


def test_a_cell_can_be_chosen(tmp_path):
    cells, configs, findings = selected(tmp_path, "pixels=0..1", "partition=non-iid", "fraction=0", "lr=0.1,0.215")
    assert [(c["partition"]["name"], c["local"]["lr"]) for c in configs] == [("shards", 0.1), ("shards", 0.215)]
    assert {str(c["data"]["init_args"]["std"]) for c in configs} == {"[1.0]"}
    assert {cell["pixels"] for cell in cells} == {"0..1"}
    (row,) = findings.tables[0].rows
    assert (row["block"], row["paper"], row["fedlab"]) == ("non-IID, pixels 0..1", 3275, 1056)


def test_the_best_rate_is_chosen_on_the_first_seed_and_averaged_over_all():
    runs = {0.1: {0: 90.0, 1: 10.0}, 0.215: {0: 80.0, 1: 100.0}, 0.464: {0: None}}
    point = Point(pixels="0..1", partition="IID", fraction=0.1)
    row = row_of(point, runs)
    assert row["tried"] == "0.1: 90, 0.215: 80, 0.464: –"
    assert (row["lr"], row["inside"], row["ours"].mean, row["ours"].of) == ("0.215", True, 90.0, 2)
    assert row["ratio"] == pytest.approx(90 / 87)
    assert not row_of(point, {lr: runs[lr] for lr in (0.1, 0.215)})["inside"]


def test_a_claim_is_open_until_its_cells_have_runs():
    def cells(factor, fractions, rates=(0.1,)):
        theirs = {0.0: 316, 0.1: 87, 0.2: 77, 0.5: 75, 1.0: 70}
        tried = {c: {lr: {0: factor * theirs[c] + 9 * abs(lr - 0.1)} for lr in rates} for c in fractions}
        return [row_of(Point(pixels="0..1", partition="IID", fraction=c), own) for c, own in tried.items()]

    def holds(places):
        return [claim.holds for claim in claims(places)]

    assert holds(cells(1.4, FRACTIONS)) == [True, None, None]
    assert holds(cells(1.4, FRACTIONS, (0.0464, 0.1, 0.215))) == [True, True, True]
    assert holds(cells(1.4, FRACTIONS[1:])) == [None, None]
    assert holds(cells(1.6, FRACTIONS[1:])) == [False, None]


def test_a_shortened_cell_ends_at_its_target_and_is_complete_in_the_ledger(tmp_path, monkeypatch):
    monkeypatch.setattr("raylfl.runtime.records.summary.raylfl_commit", lambda: "c0ffee")
    table = find(NAME)
    only = choice(["partition=iid", "fraction=0.1", "lr=0.215"], table.choices, NAME)
    cache = RunCache(tmp_path, "smoke", ["stop.target=0.3", "eval.every=1"], jobs=1, only=only)
    (row,) = table.run(cache).tables[0].rows
    (run,) = (load_run(path) for path in cache.runs.iterdir())
    accuracies = run.column("test/accuracy")
    assert len(accuracies) < 100
    assert accuracies[-1] >= 0.3 > accuracies[:-1].max()
    assert len(accuracies) - 1 < row["ours"].mean <= len(accuracies)
    point = Point(pixels="standardised", partition="IID", fraction=0.1, lr=0.215)
    kept = ledger.row(run, table.cell(point), "", {name: measure(run) for name, measure in table.measures.items()})
    assert (kept.rounds, kept.measures) == (len(accuracies), {"rounds to target": row["ours"].mean})
    assert kept.cell == {"pixels": "standardised", "partition": "IID", "fraction": 0.1, "lr": 0.215}
    assert table.run(LedgerRows(table, [kept])).tables[0].rows == [row]


@pytest.mark.parametrize(
    ("values", "rounds"),
    [
        ([0.1, 0.5, 0.7, 0.6, 0.8], 4 + 0.05 / 0.1),  # from 0.7, the best so far, in round 4 to 0.8 in round 5
        ([0.1, math.nan, 0.9], 1 + 2 * 0.65 / 0.8),  # round 2 was not measured
        ([0.8, 0.9], 1),
        ([0.1, 0.75], 2),
        ([0.1, 0.7], None),
        ([0.1, math.inf], None),  # diverged
    ],
)
def test_the_curve_of_the_best_so_far_crosses_a_target_between_rounds(values, rounds):
    """McMahan et al. 2017, sec. 3: monotone by the best value of all prior rounds, with linear interpolation."""
    run = RunRecord(Path(), {}, np.arange(len(values)), {"test/accuracy": np.array(values)}, {})
    assert crossing(run, 0.75) == pytest.approx(rounds)
