"""Campaigns: some minutes of missing runs, which end with the same bits wherever they go on."""

import io
import json
import os
import tarfile
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

import raylfl
from papers import campaign as module
from papers.base import Findings
from papers.campaign import campaign, pack, take_up
from papers.grid import Grid
from papers.ledger import Row, add, read
from papers.run_cache import RunCache
from raylfl.cli import main
from raylfl.errors import BadConfig
from raylfl.runtime.records.files import Locks


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
    seeds, options = (0,), {**Tiny.options, "rounds": 70, "eval.every": 50}


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
        runs = "reproduce/long/runs/*/metrics.jsonl"
        while not any(path.read_bytes().count(b"\n") >= self.rounds for path in self.root.glob(runs)):
            time.sleep(0.02)
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
        last, AtRounds.rounds = k == 2, (10, 25, 10**6)[k]
        taken = tmp_path / f"{k - 1}.tar" if k else None
        campaign(["long"], 10, jobs=1, take=taken, save=file, results=tmp_path / "results")
        assert bool(hashes(root)) == last
    out = capsys.readouterr().out
    assert out.count("time     is up") == 2
    assert "(1 resumed)" in out
    assert hashes(root) == hashes(undisturbed)


def archive(file: Path, *names: str, **changes: object) -> bytes:
    """Writes a campaign's file whose entries have these names; changes: attributes of the first one."""
    with tarfile.open(file, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            for key, value in changes.items() if name == names[0] else ():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(b"\0" * info.size))
    return file.read_bytes()


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


@pytest.mark.parametrize("fault", ["text", "empty", "link", "outside", "large", "cut", "damaged", "deep"])
def test_a_file_that_is_no_campaigns_is_refused_and_leaves_nothing(tmp_path, fault, monkeypatch):
    file, root = tmp_path / "file.tar", tmp_path / "runs"
    monkeypatch.setattr(module, "UNPACKED", 2**21)
    config = "tiny/runs/a-s0/config.yaml"
    if fault == "link":
        archive(file, config, type=tarfile.SYMTYPE, linkname="/etc/passwd")
    elif fault in ("outside", "deep"):
        archive(file, "../outside" if fault == "outside" else "a/" * 3000 + config)
    elif fault == "large":
        archive(file, config, size=2**24)
    elif fault in ("cut", "damaged"):
        content = archive(file, config, size=2**20)
        file.write_bytes(content[: len(content) // 2] if fault == "cut" else flip(content))
    else:
        file.write_text("no archive" if fault == "text" else "")
    with pytest.raises(BadConfig, match=r"--take .*file.tar.*"):
        take_up(file, root)
    assert {*tmp_path.rglob("*")} == {root, file}


def test_a_run_within_a_run_and_the_rest_of_a_killed_campaign_do_not_count(tmp_path):
    names = [f"tiny/runs/{run}/{file}" for run in ("a", "a/runs/b") for file in ("config.yaml", "metrics.jsonl")]
    archive(tmp_path / "file.tar", *names)
    assert take_up(tmp_path / "file.tar", tmp_path / "runs") == 1
    (tmp_path / "runs/tiny/runs/a").rename(tmp_path / "runs/.take-1")
    pack(tmp_path / "file.tar", tmp_path / "runs", tmp_path / "results")
    assert take_up(tmp_path / "file.tar", tmp_path / "others") == 0


def test_a_run_that_a_process_is_making_here_stays(tmp_path, capsys):
    names = [f"tiny/runs/a/{file}" for file in ("config.yaml", "metrics.jsonl", ".lock")]
    archive(tmp_path / "file.tar", *names, "tiny/runs/a/diverged.txt")
    archive(tmp_path / "earlier.tar", *names)
    take_up(tmp_path / "earlier.tar", tmp_path / "runs")
    locks = Locks(tmp_path / "runs/tiny/runs/a")
    locks.take(".lock")
    assert take_up(tmp_path / "file.tar", tmp_path / "runs") == 0
    assert "another process is making it" in capsys.readouterr().out
    locks.close()
    assert take_up(tmp_path / "file.tar", tmp_path / "runs") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"save": Path("nowhere/file.tar")}, "--save nowhere/file.tar: it must be a file in a folder that exists"),
        ({"save": Path("/")}, "--save /: it must be a file"),
        ({"minutes": float("nan")}, "--minutes nan"),
        ({"minutes": -1.0}, "--minutes -1"),
    ],
)
def test_an_end_that_would_fail_is_refused_at_the_start(options, message, machine, tmp_path):
    machine("first")
    with pytest.raises(BadConfig, match=message):
        campaign(["tiny"], results=tmp_path / "results", **options)
    assert list(tmp_path.iterdir()) == []


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
    campaign(["pictures"], minutes=10, jobs=1, results=tmp_path / "results", estimate=True)
    assert "2 runs: digits" in capsys.readouterr().out
    campaign(["pictures"], minutes=10, jobs=1, results=tmp_path / "results")
    assert len(hashes(root)) == 2
    assert capsys.readouterr().out.count("left out pictures: data.name=cifar10") == 2  # now, and when none is left


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--campaign", "--only", "method=FOCUS"], "--only and --scale: a campaign makes all runs"),
        (["--campaign", "--scale", "smoke"], "--only and --scale: a campaign makes all runs"),
        (["focus/fig4", "--minutes", "8"], "--minutes, --take and --save are of a campaign"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(words, message, capsys):
    assert main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_campaign_in_another_folder_has_the_ledger_of_the_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(module, "campaign", lambda *arguments: seen.append(arguments[-1]))
    assert main(["reproduce", "--campaign", "--minutes", "1"]) == 0
    assert seen == [Path(raylfl.__file__).parents[1] / "results"]
