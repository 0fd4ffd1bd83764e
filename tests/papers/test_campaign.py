"""Campaigns: some minutes of missing runs, which end with the same bits wherever they go on."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from papers import campaign as module
from papers.base import Findings
from papers.campaign import campaign, pack, take_up
from papers.grid import Grid
from papers.ledger import Row, add, read
from papers.run_cache import RunCache
from raylfl.errors import BadConfig
from raylfl.runtime.records.lines import read_rows


class Tiny(Grid):
    """Two methods on digits."""

    base, scales, seeds, choices = ("digits",), (), (0, 1), ("method",)
    axes: ClassVar = {"method": {"FOCUS": {"algorithm.name": "focus"}, "FedAvg": {"algorithm.name": "fedavg"}}}
    options: ClassVar = {"rounds": 3, "num_clients": 4, "runtime.backend": "local", "checkpoint.every": 1}

    def run(self, cache: RunCache) -> Findings:
        self.groups(cache)
        return Findings()


class Long(Tiny):
    """One run of many rounds."""

    axes: ClassVar = {"method": {"FedAvg": {"algorithm.name": "fedavg"}}}
    seeds, options = (0,), {**Tiny.options, "rounds": 300, "eval.every": 100}


class Pictures(Tiny):
    """One method on data that are not here and on digits."""

    axes: ClassVar = {"data": {"CIFAR-10": {"data": {"name": "cifar10"}}, "digits": {"data": {"name": "digits"}}}}
    choices = ("data",)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Enter a machine of this name: its runs are its own, the ledger is common."""
    monkeypatch.setattr(module, "find", {"tiny": Tiny(), "long": Long(), "pictures": Pictures()}.__getitem__)

    def enter(name: str) -> Path:
        monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / name))
        return tmp_path / name / "reproduce"

    return enter


def hashes(root: Path) -> dict[str, str]:
    files = root.rglob("runs/*/summary.json")
    return {path.parent.name: json.loads(path.read_text())["params_sha256"] for path in files}


def test_a_campaign_makes_what_is_missing_and_its_runs_count_elsewhere(tmp_path, machine, capsys):
    first, file = machine("first"), tmp_path / "campaign.tar"
    campaign(["tiny"], 10, jobs=1, save=file, results=tmp_path / "results")
    assert len(hashes(first)) == 4
    assert "4 runs, 0.0 MiB" in capsys.readouterr().out
    second = machine("second")
    campaign(["tiny"], 10, jobs=1, take=file, results=tmp_path / "results")
    out = capsys.readouterr().out
    assert "taken    4 runs" in out
    assert "to do" not in out
    assert hashes(second) == hashes(first)


def test_rows_of_the_ledger_are_not_made_again_and_not_sent(tmp_path, machine):
    cell = {"method": "FOCUS"}
    rows = [
        Row(cell, seed, "0" * 8, "test/accuracy", 3, False, {}, [[0, 0.5], [2, 0.6]], 1.0, {}, {}, None, None)
        for seed in (0, 1)
    ]
    add(tmp_path / "results" / "tiny", rows)
    assert len(read(tmp_path / "results" / "tiny")) == 2
    root = machine("first")
    campaign(["tiny"], 10, jobs=1, results=tmp_path / "results")
    names = sorted(hashes(root))
    assert [name.rpartition("-")[0] for name in names] == ["fedavg-s0", "fedavg-s1"]
    digest = names[0].rpartition("-")[2]
    published = [Row({"method": "FedAvg"}, 0, digest, "", 3, False, {}, [], 1.0, {}, {}, None, None)]
    add(tmp_path / "results" / "tiny", published)
    pack(tmp_path / "file.tar", root, tmp_path / "results")
    with tarfile.open(tmp_path / "file.tar") as tar:
        assert {name.split("/")[2] for name in tar.getnames()} == {names[1]}


class AtRounds(threading.Thread):
    """A timer of `stop_after` that is up when a run of this machine has so many rounds."""

    rounds: ClassVar = 0

    def __init__(self, _, stop):
        super().__init__(daemon=True)
        self.stop, self.root = stop, Path(os.environ["RAYLFL_RUNS"])

    def run(self):
        while not any(
            len(read_rows(path).rows) >= self.rounds for path in self.root.glob("reproduce/long/runs/*/metrics.jsonl")
        ):
            time.sleep(0.005)
        self.stop()

    def cancel(self):
        pass


@pytest.mark.slow
def test_a_run_that_stops_in_time_and_moves_ends_with_the_bits_of_an_undisturbed_one(
    tmp_path, machine, capsys, monkeypatch
):
    undisturbed = machine("undisturbed")
    campaign(["long"], 10, jobs=1, results=tmp_path / "results")
    capsys.readouterr()
    monkeypatch.setattr(module, "Timer", AtRounds)
    for k in range(3):
        root, file = machine(f"machine{k}"), tmp_path / f"{k}.tar"
        last, AtRounds.rounds = k == 2, (60, 120, 10**6)[k]
        taken = tmp_path / f"{k - 1}.tar" if k else None
        campaign(["long"], 10, jobs=1, take=taken, save=file, results=tmp_path / "results")
        assert bool(hashes(root)) == last
    out = capsys.readouterr().out
    assert out.count("time     is up") == 2
    assert "(1 resumed)" in out
    assert hashes(root) == hashes(undisturbed)


@pytest.mark.parametrize("fault", ["text", "link", "outside"])
def test_a_file_that_is_no_campaigns_is_refused_and_leaves_nothing(tmp_path, fault):
    file, root = tmp_path / "file.tar", tmp_path / "runs"
    file.write_text("no archive")
    if fault != "text":
        with tarfile.open(file, "w") as tar:
            info = tarfile.TarInfo("tiny/runs/a-s0/config.yaml" if fault == "link" else "../outside")
            info.type, info.linkname = (tarfile.SYMTYPE, "/etc/passwd") if fault == "link" else (tarfile.REGTYPE, "")
            tar.addfile(info, io.BytesIO())
    with pytest.raises(BadConfig, match=r"--take .*file.tar"):
        take_up(file, root)
    assert {*tmp_path.rglob("*")} == {root, file}


def test_a_run_that_is_further_here_stays(tmp_path):
    def run(root: Path, rounds: int) -> Path:
        folder = root / "tiny" / "runs" / "fedavg-s0-00000000"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("seed: 0\n")
        (folder / "metrics.jsonl").write_text("".join(f'{{"round": {r}}}\n' for r in range(rounds)))
        return folder

    here = run(tmp_path / "here", 2)
    for rounds, taken in ((1, 0), (3, 1)):
        run(tmp_path / str(rounds), rounds)
        pack(tmp_path / "file.tar", tmp_path / str(rounds), tmp_path / "results")
        assert take_up(tmp_path / "file.tar", tmp_path / "here") == taken
    assert len((here / "metrics.jsonl").read_text().splitlines()) == 3


def test_cells_whose_data_are_missing_leave_the_others(machine, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path / "none"))
    root = machine("first")
    campaign(["pictures"], minutes=10, results=tmp_path / "results", estimate=True)
    assert "2 runs: digits" in capsys.readouterr().out
    campaign(["pictures"], minutes=10, results=tmp_path / "results")
    assert len(hashes(root)) == 2
    assert capsys.readouterr().out.count("left out pictures: data.name=cifar10") == 2  # now, and when none is left
