"""The start of FOCUS's figure 9 is compared with the authors' logs of the same rounds."""

from __future__ import annotations

import csv
import gzip
import re

import pytest

from raylfl.errors import DataMissing
from raylfl.reproduce.base import find
from raylfl.reproduce.choice import choice
from raylfl.reproduce.focus_images import Fig9
from raylfl.reproduce.focus_logs import DIVISOR, logs
from tests.reproduce.caches import DryCache

ROUNDS, LAST = 1000, 200
EARLIER = 0.9  # an accuracy outside the compared window


@pytest.fixture
def level(tmp_path, monkeypatch):
    """Writes logs with this accuracy in percent in the last LAST of ROUNDS rounds, and EARLIER before and after."""

    def write(percent: float) -> None:
        (tmp_path / "published").mkdir()
        fields = ["method", "participation", "round", "test_accuracy_percent", "test_loss"]
        with gzip.open(tmp_path / "published" / "focus_fig9.csv.gz", "wt", newline="") as file:
            lines = csv.DictWriter(file, fields)
            lines.writeheader()
            for panel, method in (("bernoulli", "FOCUS"), ("bernoulli", "FedAU"), ("bernoulli", "SCAFFOLD")):
                for r in range(24, 2 * ROUNDS, 25):
                    inside = ROUNDS - LAST <= r < ROUNDS
                    value = percent if inside else 100 * EARLIER
                    lines.writerow(dict(zip(fields, (method, panel, r, value, 1.0), strict=True)))

    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path))
    return write


def claim(tmp_path):
    """The claim about Bernoulli participation, from made-up runs."""
    cache = DryCache(tmp_path, "paper")
    cache.only = choice(["participation=bernoulli"], find("focus/fig9-start").choices, "focus/fig9-start")
    findings = find("focus/fig9-start").run(cache)
    assert [row["method"] for row in findings.tables[0].rows] == list(Fig9.published["Bernoulli"])
    return findings.claims[0], findings.tables[0].rows


def test_the_logs_are_read_by_finished_rounds_under_the_names_of_the_figure(level):
    level(30.0)
    found = logs()
    assert set(found) == {("Bernoulli", "FOCUS"), ("Bernoulli", "FedAU"), ("Bernoulli", DIVISOR)}
    assert found["Bernoulli", DIVISOR][1000] == 0.3
    assert found["Bernoulli", DIVISOR][800] == EARLIER  # the window begins after 800 rounds


def test_methods_near_their_logs_in_the_window_hold_the_claim(level, tmp_path):
    level(50.0)  # the made-up curves have their mean there
    held, rows = claim(tmp_path)
    assert held.holds, held.evidence
    assert {round(row["logs"].mean, 9) for row in rows} == {0.5}
    gaps = [float(value) for value in re.findall(r"[+-]\d+\.\d", held.evidence)]
    assert gaps == pytest.approx([100 * (row["ours"].mean - 0.5) for row in rows], abs=0.051)


@pytest.mark.parametrize("percent", [40.0, 60.0])
def test_a_method_far_from_its_log_on_either_side_does_not(level, tmp_path, percent):
    level(percent)
    assert claim(tmp_path)[0].holds is False


def test_without_logs_nothing_runs_at_the_scale_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=r"focus_fig9\.csv\.gz is missing"):
        find("focus/fig9-start").run(DryCache(tmp_path, "paper"))


def test_bundled_digits_are_not_compared_with_the_logs_of_images(tmp_path):
    findings = find("focus/fig9-start").run(DryCache(tmp_path))
    assert not findings.claims
    assert all(row["logs"].count == 0 for row in findings.tables[0].rows)
