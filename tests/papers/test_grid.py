"""A grid: its points, settings and gaps follow from its axes; its findings are the same from runs and from rows."""

from typing import ClassVar

import numpy as np
import pytest

from papers import ledger
from papers.base import Findings, choice
from papers.grid import Grid, Point, by
from papers.ledger_rows import LedgerRows
from papers.run_cache import RunCache
from raylfl.config.identity import flatten
from raylfl.errors import BadConfig
from raylfl.report.derived import score
from tests.papers.caches import ROUNDS, record


class Toy(Grid):
    """Two methods at three learning rates."""

    base, seeds, tuned, choices = ("reproduce/sfl_fig1",), (7, 8, 9), "lr", ("method", "lr", "seed")
    options: ClassVar = {"rounds": 4, "local.steps": 3}
    smoke: ClassVar = {"rounds": 2, "num_clients": 2}
    paper: ClassVar = {"local.steps": 5, "eval.drift": True}
    axes: ClassVar = {
        "method": {"A": {}, "B": {"algorithm.name": "sfl", "local.steps": 6, "smoke": {"local.steps": 2}}},
        "lr": {lr: {"local.lr": lr} for lr in (0.1, 0.2, 0.3)},
    }
    small: ClassVar = {"lr": (0.2,)}
    measures: ClassVar = {"last": lambda run: float(run.column("test/accuracy")[-1])}
    curves = ("test/loss",)

    def run(self, cache):
        return Findings()


class Levels(RunCache):
    """A cache whose runs have accuracies by (method, learning rate), in reverse order on seeds after the first."""

    levels: ClassVar = {
        ("A", 0.1): 0.3,
        ("A", 0.2): 0.5,
        ("A", 0.3): 0.4,
        ("B", 0.1): 0.9,
        ("B", 0.2): 0.1,
        ("B", 0.3): 0.2,
    }
    missing = ()

    def groups(self, settings, seeds=(0,)):
        from raylfl.report.runs import Group

        made = []
        for own in settings:
            method, lr = own.label.split(", ")
            if (method, float(lr)) not in self.missing:
                runs = [
                    self.run(own, seed, self.levels[method, float(lr)]) for seed in seeds if self.only.keeps(seed=seed)
                ]
                made.append(Group(own.label, flatten(own.config), runs))
        return made

    def run(self, own, seed, level):
        made = record(self.folder / own.label, dict(own.config), seed)
        made.metrics["test/accuracy"] = np.full(ROUNDS, 1 - level if seed > 7 else level)
        return made


def points(method, *rates):
    return [Point(method=method, lr=lr) for lr in rates]


def test_the_points_are_the_product_of_the_axes_and_have_values_as_attributes():
    every = Toy().points("paper")
    assert every == [*points("A", 0.1, 0.2, 0.3), *points("B", 0.1, 0.2, 0.3)]
    assert (every[3].method, every[3].lr, every[3].without("lr")) == ("B", 0.1, {"method": "B"})
    assert Toy().points("smoke") == [*points("A", 0.2), *points("B", 0.2)]
    assert len({every[0], Point(lr=0.1, method="A"), every[0].but(lr=0.2)}) == 2  # the order of the axes does not count
    with pytest.raises(AttributeError, match="no axis steps"):
        every[0].steps  # noqa: B018


@pytest.mark.parametrize(
    ("method", "scale", "rounds", "steps", "drift"),
    [("A", "paper", 4, 3, True), ("B", "paper", 4, 6, True), ("A", "smoke", 4, 3, None), ("B", "smoke", 4, 2, None)],
)
def test_values_of_a_point_win_over_options_and_these_over_the_scale(method, scale, rounds, steps, drift):
    own = Toy().setting(Point(method=method, lr=0.2), scale)
    config = flatten(own.config)
    assert (config["rounds"], config["local.steps"], config["local.lr"]) == (rounds, steps, 0.2)
    assert config.get("eval.drift") == drift
    assert config["base"] == ["reproduce/sfl_fig1", f"reproduce/{scale}"]
    assert (own.label, own.cell) == (f"{method}, 0.2", {"method": method.lower(), "lr": "0.2"})


def test_the_best_value_is_chosen_on_the_first_seed_and_has_all_seeds(tmp_path):
    groups = Toy().best(Levels(tmp_path, "paper"), lambda group: score(group, "test/accuracy", 5))
    assert {point.method: point.lr for point in groups} == {"A": 0.2, "B": 0.1}
    assert [run.seed for run in groups[Point(method="A", lr=0.2)].runs] == [7, 8, 9]


def test_a_cell_without_the_runs_of_all_values_is_left_out(tmp_path):
    cache = Levels(tmp_path, "paper")
    cache.missing = (("B", 0.2),)
    assert [point.method for point in Toy().best(cache, lambda group: score(group, "test/accuracy", 5))] == ["A"]


def test_a_selection_leaves_the_other_points_out(tmp_path):
    cache = Levels(tmp_path, "paper", only=choice(["method=b", "lr=0.1,0.3", "seed=8"], Toy.choices, "toy"))
    groups = Toy().groups(cache)
    assert list(groups) == points("B", 0.1, 0.3)
    assert [run.seed for run in groups[Point(method="B", lr=0.3)].runs] == [8]


def test_entries_are_arranged_by_axes():
    entries = {point: point.lr for point in Toy().points("paper")}
    assert by(entries, "method")[Point(lr=0.2)] == {"A": 0.2, "B": 0.2}
    assert by(entries, "lr", "method")["B"] == {0.1: 0.1, 0.2: 0.2, 0.3: 0.3}


def rows_of(cache, experiment, keep=lambda point, run: True):
    return [
        ledger.row(
            run,
            experiment.cell(point),
            measures={name: measure(run) for name, measure in experiment.measures.items()},
            curves=experiment.curves,
        )
        for point, group in experiment.groups(cache).items()
        for run in group.runs
        if keep(point, run)
    ]


def test_rows_stand_for_the_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "digests", lambda config: ("", "01234567"))
    toy, cache = Toy(), Levels(tmp_path, "paper")
    again = toy.groups(LedgerRows(toy, rows_of(cache, toy)))
    for point, group in toy.groups(cache).items():
        for one, other in zip(group.runs, again[point].runs, strict=True):
            assert (one.seed, toy.measure(one, "last")) == (other.seed, toy.measure(other, "last"))
            for metric in ("test/accuracy", *toy.curves):
                np.testing.assert_allclose(one.column(metric), other.column(metric), rtol=1e-5)


def test_rows_without_a_number_that_is_read_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "digests", lambda config: ("", "01234567"))
    toy = Toy()
    (row, *_) = rows_of(Levels(tmp_path, "paper"), toy)
    for name, part in (("last", row.measures), ("test/loss", row.curves)):
        value = part.pop(name)
        with pytest.raises(BadConfig, match=f"A, 0.1: its row in the ledger is older than {name}; make the run again"):
            toy.groups(LedgerRows(toy, [row]))
        assert toy.missing([row])[0].startswith(f"its rows are older than numbers that it reads now ({name})")
        part[name] = value


def test_the_gaps_of_a_ledger_are_those_of_the_grid(tmp_path, monkeypatch):
    """The best rate has all seeds: a cell with three rates needs five runs."""
    monkeypatch.setattr(ledger, "digests", lambda config: ("", "01234567"))
    toy, cache = Toy(), Levels(tmp_path, "paper")
    assert toy.whole() == 2 * (3 + 2)
    assert toy.missing(rows_of(cache, toy)) == []
    kept = rows_of(cache, toy, lambda point, run: point.method == "A" and run.seed < 9)
    assert toy.missing(kept) == ["no run of B", "2 of 3 seeds of A"]
