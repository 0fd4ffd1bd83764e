"""The start of FOCUS's figure 9 is compared with the authors' logs of the same rounds."""

import csv
import gzip

import pytest

from papers.base import choice, find
from papers.focus import DIVISOR, DROPOUT, PUBLISHED, SEQUENCE, SHARED, logs
from raylfl.errors import DataMissing
from tests.papers.caches import DryCache

ROUNDS, LAST = 1000, 200
EARLIER = 0.9  # an accuracy outside the compared window
WRITTEN = [("bernoulli", "FOCUS"), ("bernoulli", "FedAU"), ("bernoulli", "SCAFFOLD"), ("markov", "FedAvg")]


@pytest.fixture
def level(tmp_path, monkeypatch):
    """Writes logs with this accuracy in percent in the last LAST of ROUNDS rounds, and EARLIER before and after."""

    def write(percent: float) -> None:
        (tmp_path / "published").mkdir()
        fields = ["method", "participation", "round", "test_accuracy_percent", "test_loss"]
        with gzip.open(tmp_path / "published" / "focus_fig9.csv.gz", "wt", newline="") as file:
            lines = csv.DictWriter(file, fields)
            lines.writeheader()
            for panel, method in WRITTEN:
                for r in range(24, 2 * ROUNDS, 25):
                    inside = ROUNDS - LAST <= r < ROUNDS
                    value = percent if inside else 100 * EARLIER
                    lines.writerow(dict(zip(fields, (method, panel, r, value, 1.0), strict=True)))

    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path))
    return write


def found(tmp_path, *words):
    """The claims and rows from made-up runs, of the cells that these words select."""
    cache, experiment = DryCache(tmp_path, "paper"), find("focus/fig9-start")
    cache.only = choice(words, experiment.choices, "focus/fig9-start")
    findings = experiment.run(cache)
    return findings.claims, findings.tables[0].rows


def test_the_logs_are_read_by_finished_rounds_under_the_names_of_the_figure(level):
    level(30.0)
    read = logs()
    bernoulli = {("Bernoulli", "FOCUS"), ("Bernoulli", "FedAU"), ("Bernoulli", DIVISOR)}
    dropout = {("Bernoulli", line) for line in DROPOUT}
    assert set(read) == bernoulli | dropout | {("Markov", "FedAvg"), ("Markov", SEQUENCE)}
    assert read["Bernoulli", DIVISOR][1000] == 0.3
    assert read["Bernoulli", DIVISOR][800] == EARLIER  # the window begins after 800 rounds
    assert all(
        read[panel, line] == read[panel, name] for line, name in SHARED.items() for panel, own in read if own == line
    )


@pytest.mark.parametrize(("percent", "holds"), [(40.0, False), (50.0, True), (60.0, False)])
def test_each_method_is_compared_with_its_log_in_the_window(level, tmp_path, percent, holds):
    level(percent)  # the made-up curves have a mean of 50 % there
    claims, rows = found(tmp_path, "participation=bernoulli")
    assert [row["method"] for row in rows] == [*PUBLISHED["Bernoulli"], *DROPOUT]
    assert {round(row["logs"].mean, 9) for row in rows} == {percent / 100}
    assert [claim.holds for claim in claims] == [holds] * 5
    assert [claim.text.partition(" is within")[0] for claim in claims] == [
        f"Bernoulli: {row['method']}" for row in rows
    ]


def test_a_sequential_fedavg_is_compared_with_the_log_of_fedavg(level, tmp_path):
    level(50.0)
    claims, rows = found(tmp_path, "participation=markov", "method=fedavg*")
    assert [row["method"] for row in rows] == ["FedAvg", SEQUENCE]
    assert [claim.text.partition("points of ")[2] for claim in claims] == ["its log", "FedAvg's log"]


def test_without_logs_nothing_runs_at_the_scale_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=r"focus_fig9\.csv\.gz is missing"):
        find("focus/fig9-start").run(DryCache(tmp_path, "paper"))


def test_bundled_digits_are_not_compared_with_the_logs_of_images(tmp_path):
    findings = find("focus/fig9-start").run(DryCache(tmp_path))
    assert not findings.claims
    assert all(row["logs"].count == 0 for row in findings.tables[0].rows)
