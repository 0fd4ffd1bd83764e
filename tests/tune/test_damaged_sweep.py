"""A sweep whose journal is damaged ends with the table of an undisturbed one; damaged runs are named in it."""

import shutil

import pytest

from raylfl.tune.journal import DIVERGED, FINISHED, Journal, write_tables
from tests.tune.sweeps import finish, folder_of, sweep_of, tables


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return sweep_of(tmp_path_factory.mktemp("file"), seeds=[0, 1], space={"local.lr": {"grid": [0.1, 1e200]}})


@pytest.fixture(scope="module")
def undisturbed(sweep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    finish(sweep, folder)
    assert [row["state"] for row in tables(folder)[0]] == [FINISHED] * 2 + [DIVERGED] * 2
    return folder


DAMAGE = {
    "garbled": lambda path: path.write_bytes(b'{"[:\xff"]]' + path.read_bytes()[10:]),
    "gone": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_journal_changes_no_result(name, sweep, undisturbed, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(undisturbed, folder)
    DAMAGE[name](folder / "trials.jsonl")
    assert finish(sweep, folder) == []
    assert tables(folder) == tables(undisturbed)


def test_the_table_names_what_of_a_run_is_damaged_and_a_deleted_run_is_made_again(sweep, undisturbed, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(undisturbed, folder)
    first = folder_of(folder, 0)
    (first / "config.yaml").write_text("- 1\n")
    with open(folder_of(folder, 0, 1) / "metrics.jsonl", "a") as file:
        file.write("{cut\n")
    write_tables(sweep, folder, Journal(folder))
    reasons = [row["reason"] for row in tables(folder)[0] if row["setting"] == "0"]
    assert reasons == ["config.yaml is damaged", "metrics.jsonl: line 7 cannot be read"]
    shutil.rmtree(first)
    assert "finished" in finish(sweep, folder)[0]
