"""Damaged sweeps: the damage is reported, and the table of a resumed sweep is that of an undisturbed one.

The trials run in the test's own process; the stage determines the remaining ones, as in a sweep.
"""

from __future__ import annotations

import random
import shutil

import pytest

from raylfl.tune.journal import DIVERGED, FINISHED, Journal
from raylfl.tune.table import write_tables
from tests.shares import one_in
from tests.tune.sweeps import finish, sweep_of, tables


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return sweep_of(tmp_path_factory.mktemp("file"), seeds=[0, 1], space={"local.lr": {"grid": [0.1, 0.01, 1e200]}})


@pytest.fixture(scope="module")
def undisturbed(sweep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert sum("finished" in line for line in finish(sweep, folder)) == 2
    states = [row["state"] for row in tables(folder)[0]]
    assert states == [FINISHED] * 4 + [DIVERGED] * 2
    return folder


def garble(path, seed):
    """Overwrites a few bytes in the first half of a file."""
    data, rng = bytearray(path.read_bytes()), random.Random(seed)
    at = rng.randrange(len(data) // 2)
    data[at : at + 8] = b'{"[:\xff"]]'
    path.write_bytes(data)


def cut(path, count):
    path.write_bytes(path.read_bytes()[:-count])


DAMAGE = {
    "journal": lambda folder, seed: garble(folder / "trials.jsonl", seed),
    "metrics": lambda folder, seed: garble(folder / f"00{seed % 2}-fedavg-s1" / "metrics.jsonl", seed),
    "participation": lambda folder, seed: garble(folder / f"00{seed % 2}-fedavg-s1" / "participation.jsonl", seed),
    "journal_gone": lambda folder, seed: (folder / "trials.jsonl").unlink(),
    "journal_cut": lambda folder, seed: cut(folder / "trials.jsonl", 100 * (seed + 1)),
    "config": lambda folder, seed: (folder / f"00{seed % 2}-fedavg-s1" / "config.yaml").write_text("- 1\n"),
    "summary": lambda folder, seed: (folder / f"00{seed % 2}-fedavg-s1" / "summary.json").write_text("{"),
    "directory": lambda folder, seed: shutil.rmtree(folder / f"00{seed % 2}-fedavg-s1"),
}


@pytest.mark.parametrize("seed", one_in(2, range(2)))
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_sweep_ends_with_the_table_of_an_undisturbed_one(name, seed, sweep, undisturbed, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(undisturbed, folder)
    DAMAGE[name](folder, seed)
    write_tables(sweep, folder, Journal(folder))  # as if the sweep ended before the repair
    said = finish(sweep, folder)
    assert tables(folder) == tables(undisturbed)
    if not name.startswith("journal"):
        line = f"00{seed % 2}-fedavg-s1  had finished, but its directory is damaged: run again from what can be read"
        assert line in said
        assert sum("  finished" in line for line in said) == 1
    assert finish(sweep, folder) == []


def test_the_table_names_what_of_a_trial_is_damaged(sweep, undisturbed, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(undisturbed, folder)
    (folder / "000-fedavg-s0" / "config.yaml").write_text("- 1\n")
    with open(folder / "001-fedavg-s0" / "metrics.jsonl", "a") as file:
        file.write("{cut\n")
    write_tables(sweep, folder, Journal(folder))
    trials = {row["run"]: row for row in tables(folder)[0]}
    assert trials["000-fedavg-s0"]["reason"] == "config.yaml is damaged"
    assert trials["001-fedavg-s0"]["reason"] == "metrics.jsonl: line 7 cannot be read"
