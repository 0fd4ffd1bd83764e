"""Every experiment at every scale: its settings are valid, its tables hold the published numbers, its figures draw."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from papers.base import EXPERIMENTS, CellChoice, find
from papers.fedacs import AXES, METHODS, Table1, columns_of
from papers.grid import Point
from papers.run_cache import RunCache, config_digest
from papers.sfl_tables import Table3, Table11
from raylfl.report.derived import Stat
from raylfl.report.render import to_csv, to_markdown
from raylfl.report.runs import Group, RunRecord
from tests.papers.caches import DryCache
from tests.shares import also

SIBLINGS = {  # each differs from one of the usual suite in the values of an axis, or computes for seconds
    *("fedacs/fig7", "fedacs/table1-epochs", "fedacs/table4-epochs", "fedaware/fig6", "fedaware/fig8"),
    *("sfl/fig12", "sfl/fig13", "sfl/fig14", "theory/fedacs-bias"),
}
CASES = [  # the last scale of each is that of the paper
    (pytest.param if scale == scales[-1] and entry.name not in SIBLINGS else also)(entry.name, scale)
    for entry in EXPERIMENTS
    for scales in [entry.cls.scales or ("smoke",)]
    for scale in scales
]
PUBLISHED = {  # a number of the paper that must stand in the experiment's table
    "sfl/table3": "67.61 ± 4.02",
    "sfl/table11": "95.91 ± 0.33",
    "sfl/table7": "34.89",
    "sfl/table8": "67.97",
    "sfl/table9": "published: 0.03 28.72, 0.1 46.21",
    "sfl/table10": "90.95",
    "sfl/fig2": "58.63",
    "fedacs/table1": "3549",
    "fedacs/table4": "20.0k",
    "fedacs/table5": "149",
    "fedavg/table1": "3275",
    "fedaware/table1": "64.54 ± 0.38",
    "focus/fig9": "78.60 ± 0.80",
}


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_an_experiment_has_valid_settings_tables_claims_and_figures(name, scale, tmp_path, monkeypatch):
    monkeypatch.setattr("papers.focus.logs", dict)  # the authors' logs are not in the repository
    monkeypatch.setattr("papers.theory_figures.FocusSpeedup.rounds", 4000)  # a fifth, in which its claims hold, too
    monkeypatch.setattr("papers.numbers.DRAWS", 20)
    cache = DryCache(tmp_path, scale)
    findings = find(name).run(cache)
    assert findings.figures
    assert all(isinstance(figure, Figure) for figure in findings.figures.values())
    assert all(claim.text and claim.evidence for claim in findings.claims)
    assert all(claim.holds in (True, False, None) for claim in findings.claims)
    if name.startswith("theory/"):  # computed here, so that nothing is left open
        assert all(claim.holds for claim in findings.claims)
    for table in findings.tables:
        assert table.rows
        assert to_markdown(table)
        assert to_csv(table)
    if name in PUBLISHED and scale == "paper":
        assert PUBLISHED[name] in "".join(map(to_markdown, findings.tables))


def test_optimal_sampling_has_the_cell_of_table_4_that_the_papers_ratios_say(tmp_path):
    """FedACS, table 4: OS needs 1.06x the rounds and 1.34x the seconds of FedACS where it gets there at all."""
    (table,) = find("fedacs/table4").run(DryCache(tmp_path, "paper")).tables
    rows = {row["block"]: row for row in table.rows if row["method"] == "OS"}
    for axis, ratio in (("rounds", 1.06), ("computation", 1.34)):
        assert rows["CIFAR-10"][f"{axis} published ratio"] == pytest.approx(ratio, abs=0.005)
        assert rows["MNIST"][f"{axis} published"] == float("inf")


class Curves(RunCache):
    """A cache of runs whose accuracies depend on the learning rate only: rate -> accuracy of its rounds."""

    def __init__(self, curve):
        self.scale, self.curve, self.asked, self.only = "paper", curve, [], CellChoice()

    def groups(self, settings, seeds):
        self.asked.append([(s.config["rounds"], s.config["local"]["lr"]) for s in settings])
        return [Group(s.label, {}, [self.run(*asked)]) for s, asked in zip(settings, self.asked[-1], strict=True)]

    def run(self, rounds, lr):
        return RunRecord(Path(), {}, np.arange(rounds), {"test/accuracy": self.curve(np.arange(rounds), lr)}, {})


def test_the_coarse_search_of_table_3_uses_the_last_40_rounds_and_the_fine_one_the_last_100():
    """App. G.3 and tables 9, 10. By the last 100 rounds 0.1 would be 5 points behind in the coarse search."""

    def curve(r, lr):
        early = {0.01: 0.5, 0.1: 0.4}[lr]
        return np.where(r >= len(r) - 40, {0.01: 0.5, 0.1: 0.48}[lr] if len(r) == 1000 else 0.6, early)

    cache, cell = Curves(curve), Point(task="CIFAR-10, VGG-9", classes=1, steps=5, method="SFL", norm="medium")
    best = Table3().search(cache, {cell: (0.01, 0.1)})
    assert cache.asked == [[(1000, 0.01), (1000, 0.1)], [(4000, 0.01), (4000, 0.1)]]
    assert best == {cell: 0.01}  # by the last 40 alone the two would be equal


def test_a_single_rate_is_not_searched_for():
    """So that `--only lr=0.1 --only seed=0,1` selects runs, although the search has another seed."""
    cache = Curves(lambda r, lr: np.zeros(len(r)))
    cell = Point(task="MNIST, LeNet-5", classes=2, steps=20, method="PFL", norm="medium")
    assert Table11().search(cache, {cell: [0.1]}) == {cell: 0.1}
    assert cache.asked == []


def test_gains_in_accuracy_are_those_over_the_last_five_rounds(tmp_path):
    """FedACS at 0.8, the others at 0.54 to 0.74."""
    cost = dict.fromkeys(AXES, Stat(1.0, 0.0, 1, 1))
    ends = {name: Stat(0.8 if name == "FedACS" else 0.5 + 0.04 * k, 0.0, 5, 5) for k, name in enumerate(METHODS)}
    leads = {task: column["gains"] for task, column in columns_of("table1").items()}
    values = {t: {n: {"accuracy": end, "gains": lead, **cost} for n, end in ends.items()} for t, lead in leads.items()}
    claims = [claim for claim in Table1().claims(values) if "has the highest accuracy" in claim.text]
    assert [claim.holds for claim in claims] == [True, True, True]
    assert claims[0].result == "6.0 to 26.0 points above the others; published: 7.5 to 36"


@pytest.mark.parametrize(
    ("figure", "table"),
    [("sfl/fig14", "sfl/table3"), also("sfl/fig15", "sfl/table3"), ("fedaware/fig5", "fedaware/table1")],
)
def test_a_figure_has_the_runs_of_its_table(figure, table, tmp_path, monkeypatch):
    monkeypatch.setattr("papers.lines.curves_figure", lambda *parts: None)
    monkeypatch.setattr("papers.sfl_tables.overlay", lambda *parts: None)
    runs, folders = [], set()
    for name in (figure, table):
        cache = DryCache(tmp_path, "paper")
        find(name).run(cache)
        runs.append({s.folder(seed, config_digest(config)) for s, config, seeds in cache.asked for seed in seeds})
        folders.add(find(name).shares or name)
    assert runs[0] < runs[1]
    assert len(folders) == 1
