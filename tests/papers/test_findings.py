"""The numbers of docs/findings.md are those of the ledger, of `raylfl theory` and of the partitions."""

import csv
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from papers.fedavg import ROUNDS
from papers.ledger import read
from papers.numbers import CIFAR10
from raylfl.config.components import build
from raylfl.config.load import load_config
from raylfl.heterogeneity.partition.base import PARTITIONS, Samples
from raylfl.heterogeneity.partition.stats import class_counts
from raylfl.python.api import checked
from raylfl.theory.summary import theory_of
from tests.shares import also

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
PLAIN = " ".join(TEXT.split())
UNIFORM = ["participation.name=uniform", "participation.size=4"]
DIGITS = {
    "SCAFFOLD": "SCAFFOLD",
    "SCAFFOLD, control variates that start as the model": "SCAFFOLD, variates from the model",
    "SCAFFOLD, server's control variate divided by the received clients": "SCAFFOLD, variate over the received",
    "FedAvg": "FedAvg",
    "FedAvg, momentum 0.9": "FedAvg, momentum 0.9",
    "FedProx": "FedProx",
}


def rows(section, table=0):
    """The rows of a table in a section of the findings, as lists of cells; table: its number in the section, from 0."""
    text = TEXT[TEXT.index(f"## {section}") :].split("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\n)+", text, re.M)[table].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def accuracies(audit):
    """Method -> its accuracy in the ledger of an audit, as the findings write it."""
    with (ROOT / f"results/audit/{audit}/accuracy.csv").open() as file:
        return {
            line["method"]: f"{100 * float(line['accuracy_mean']):.1f} ± {100 * float(line['accuracy_std']):.1f} %"
            for line in csv.DictReader(file)
        }


def test_the_accuracies_on_the_digits_are_those_of_the_ledger():
    ledger = accuracies("scaffold-digits")
    found = {name: text for name, text in rows("SCAFFOLD with 10 %", 1) if "±" in text}
    assert found == {name: ledger[line] for name, line in DIGITS.items()}


def test_the_accuracies_with_all_clients_are_those_of_the_ledger():
    audits, ledger = iter(["scaffold-classes", "scaffold-dirichlet"]), dict[str, str]()
    for setting, method, ours, _ in rows("SCAFFOLD with 10 %"):
        ledger = accuracies(next(audits)) if setting else ledger
        assert ledger[method] == ours
    assert next(audits, None) is None


def test_the_accuracies_of_single_departures_are_those_of_the_ledger():
    ledger = {name: text.split(" ±")[0] for name, text in accuracies("scaffold-network").items()}
    names = ("SCAFFOLD", "SCAFFOLD, variates from the model", "SCAFFOLD, variate over the received")
    plain, model, received = (ledger[name] for name in names)
    assert f"SCAFFOLD ends at {plain} % as published, at {model} % with control variates" in PLAIN
    assert f"at {received} % with the other divisor, and at {ledger['SCAFFOLD, momentum 0.9']} % with the" in PLAIN
    assert f"FedAvg ends at {ledger['FedAvg']} % (one seed each" in PLAIN


def test_the_rounds_to_97_per_cent_are_those_of_the_ledger():
    words = {"one": 0.0, "ten": 0.1, "twenty": 0.2}
    told = set()
    for data, clients, ours, _ in rows("FedAvg, table 1"):
        for count, lr in re.findall(r"(\d+) at ([\d.]+)", ours):
            told.add((data.split(" (")[0], words[clients], float(lr), int(count)))
    found = {
        (row.cell["partition"], row.cell["fraction"], row.cell["lr"], round(row.measures[ROUNDS]))
        for row in read(ROOT / "results/fedavg/table1")
        if row.cell["pixels"] == "standardised" and row.measures[ROUNDS] is not None
    }
    assert told == found


def test_the_differences_from_the_authors_logs_are_those_of_the_ledger():
    notes = json.loads((ROOT / "results/sfl/table10/verdicts.json").read_text())["notes"]
    cells, median, near, mean = re.search(
        r"of the (\d+) cells.*\| ([\d.]+) points.* in (\d+) cells.*difference ([+\d.]+) points", notes[0]
    ).groups()
    assert f"in the median of the {cells} cells {median} points, in {near} cells below 0.5 points" in PLAIN
    assert f"with a mean of {mean} points" in PLAIN
    with (ROOT / "results/sfl/table11/table11.csv").open() as file:
        same = [line["same"] for line in csv.DictReader(file)]
    shown, tested = same.count("yes"), len(same) - same.count("undecided")
    assert f"is shown in {shown} of the {tested} cells with three seeds" in PLAIN


@cache
def theory_at(config, algorithm, *overrides):
    return theory_of(checked(load_config(f"reproduce/{config}", [f"algorithm.name={algorithm}", *overrides])))


@pytest.mark.parametrize(
    ("run", "theorem", "case", "told"),
    [
        (("focus_fig4", "focus"), "[1] Thm 1", "strongly convex", "2.7e-10"),
        (("focus_fig4", "focus"), "[1] Thm 1", "PL", "9.7e-6"),
        (("focus_fig4", "focus"), "[1] Thm 1", "non-convex", "9.7e-6"),
        also(("focus_fig4", "focus", *UNIFORM), "[1] Thm 1", "strongly convex", "6.8e-11"),
        (("sfl_fig1", "sfl"), "[2] Thm 1", "strongly convex", "0.0083"),
        (("sfl_fig1", "fedavg"), "[2] Thm 2", "strongly convex", "0.0167"),
    ],
)
def test_the_bounds_of_learning_rates_are_those_of_the_theory(run, theorem, case, told):
    theory = theory_at(*run)
    (bound,) = [step.largest for step in theory.steps if (step.theorem, step.case) == (theorem, case)]
    table = [(name.replace("Theorem", "Thm"), value) for _, _, name, value in rows("Published learning rates")]
    assert (f"{theorem}, {case}", told) in table
    assert bound == pytest.approx(float(told), rel=0.02)
    assert bound < theory.eta


@pytest.mark.parametrize(("balance", "told"), [("move", "77 % (60 to 85 %)"), (None, "92 % (90 to 94 %)")])
def test_the_largest_classes_of_the_clients_are_those_of_ten_partitions(balance, told):
    labels = np.repeat(np.arange(len(CIFAR10)), CIFAR10)
    samples = Samples(len(labels), labels)
    options = {"name": "dirichlet_client", "alpha": 0.05} | ({"balance": balance} if balance else {})
    partition = build(PARTITIONS, options, "partition")
    counts = [class_counts(partition.split(samples, 32, seed=seed), samples) for seed in range(10)]
    shares = 100 * np.array([(own.max(axis=1) / own.sum(axis=1)).mean() for own in counts])
    assert f"{shares.mean():.0f} % ({shares.min():.0f} to {shares.max():.0f} %)" == told
    mean, spread = told.split(" (")
    assert mean in PLAIN
    assert f"({spread.removesuffix('%)').strip()} %" in PLAIN
