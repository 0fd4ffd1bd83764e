"""Exhausted memory and jumping clocks: a message, intact checkpoints, and equal bits after a resume."""

from __future__ import annotations

import datetime
import re
import time

import pytest
import torch
import yaml
from torch import nn

from raylfl.runtime.records import run_dir
from raylfl.runtime.records.run_dir import RunDirectory
from tests.runtime.faults import carry_out, checkpoints, finished, log_of, outcome
from tests.runtime.tiny import FOCUS, Net, Points
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import one_in

LARGE = {"data": "Large", "model": "Narrow"}
HUNGRY = """
def limit(phase, r):
    if (phase, r) == ({phase!r}, 4):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))
        hoard.append(bytearray(3 * 2**28))

hoard = []
try:
    carry_out(FOCUS, Path({folder!r}), fault=limit)
except BaseException as error:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(type(error).__name__, str(error).splitlines()[:1])
"""


@pytest.mark.parametrize("phase", one_in(2, ["train", "log"]))
def test_memory_that_runs_out_costs_no_checkpoint(tmp_path, clean, forked, phase):
    """The process may allocate one more megabyte and requests 768: a real MemoryError during a round."""
    assert "MemoryError" in forked(HUNGRY.format(folder=str(tmp_path / "run"), phase=phase))
    assert checkpoints(tmp_path / "run")[-1] == "round_000004"
    carry_out(FOCUS, tmp_path / "run", resume=True)
    assert "damaged" not in log_of(tmp_path / "run")
    assert outcome(tmp_path / "run") == clean


@pytest.mark.exhaustive  # of the message see test_worker_pool.py, of workers that keep dying test_lost_parts.py
def test_workers_without_memory_end_a_run_on_ray_with_one_message(tmp_path, command, monkeypatch):
    """Ray takes any use of memory for too much, and ends the actors as often as they start."""
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, "logging": {"report": False, "dir": str(tmp_path / "runs")}}))
    ray = ["runtime.backend=ray", "runtime.cpus_per_worker=0.5", "runtime.object_store_mb=80"]
    code, out, err = finished(command("run", str(path), *ray, "runtime.workers=1"))
    said = [line for line in err.splitlines() if "was lost (" not in line]
    assert code == 1
    assert re.match(r"raylfl: .*memory was almost full; a lower runtime.workers needs less", said[0])
    assert re.match(r"raylfl: raylfl resume \S+ continues it$", said[1])
    assert not said[2:] + out.splitlines()


class Large(Points):
    """240 MB of training data, of which the model reads four columns."""

    def __init__(self):
        super().__init__(owners=6)
        self.x = torch.cat([self.x, torch.zeros(60, 10**6)], dim=1)


class FourColumns(nn.Module):
    def forward(self, x):
        return x[:, :4]


class Narrow(Net):
    def __init__(self):
        super().__init__()
        self.body.insert(0, FourColumns())


@pytest.mark.exhaustive  # Ray's own spilling; of data in the store see test_ray.py
def test_data_larger_than_rays_object_store_are_kept_on_disk(tmp_path, command):
    """The store has 80 MB; Ray's own messages about spilled objects do not reach the user."""
    path = tmp_path / "large.yaml"
    parts = {kind: {"class_path": f"tests.runtime.test_exhausted.{name}"} for kind, name in LARGE.items()}
    config = {**TINY, **parts, "rounds": 2, "partition": {"name": "natural"}, "num_clients": None}
    place = {"report": False, "dir": str(tmp_path / "runs"), "id": "it"}
    path.write_text(yaml.safe_dump({**config, "logging": place}))
    carry_out(config, tmp_path / "here")
    ray = ["runtime.backend=ray", "runtime.cpus_per_worker=0.5", "runtime.object_store_mb=80"]
    code, _, err = finished(command("run", str(path), *ray, "runtime.workers=2"))
    assert (code, err) == (0, "")
    assert outcome(tmp_path / "runs" / "tiny" / "it") == outcome(tmp_path / "here")


class Backwards(datetime.datetime):
    """A clock that goes back an hour at every reading."""

    looks = 0

    @classmethod
    def now(cls, tz=None):
        cls.looks += 1
        return datetime.datetime(2026, 1, 1) - datetime.timedelta(hours=cls.looks)


def test_a_clock_that_goes_back_changes_no_bit_and_no_duration(tmp_path, clean, monkeypatch):
    monkeypatch.setattr(run_dir, "datetime", Backwards)
    monkeypatch.setattr(time, "time", lambda: -3600.0 * Backwards.looks)
    carry_out(FOCUS, tmp_path / "run")
    assert outcome(tmp_path / "run") == clean
    rows = RunDirectory(tmp_path / "run").metrics()
    assert all(0 < row["time/round"] < 100 for row in rows)


def test_with_a_stopped_clock_each_run_has_its_own_directory(tmp_path, monkeypatch):
    class Still(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime(2026, 1, 1)

    monkeypatch.setattr(run_dir, "datetime", Still)
    made = [RunDirectory.create(tmp_path, TINY["name"], None, 0) for _ in range(3)]
    assert [d.path.name for d in made] == ["20260101-000000-s0", "20260101-000000-s0-1", "20260101-000000-s0-2"]
    for directory in made:
        directory.close()
