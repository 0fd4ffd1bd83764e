"""Exhausted memory and disks, a clock that goes back: a message, intact checkpoints, and equal bits after a resume."""

import datetime
import errno
import os
import resource
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from ray.exceptions import OutOfDiskError

from raylfl.config.load import load_config
from raylfl.errors import RaylflError
from raylfl.experiment.assemble import assemble
from raylfl.runtime.records import run_dir
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.session import write_records
from tests.runtime.faults import carry_out, checkpoints, killed, log_of, outcome, strike
from tests.runtime.tiny import FOCUS
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import one_in


def hungry(folder, phase):
    """How a run ends that in round 4 may allocate one more megabyte and requests 768."""
    hoard = []

    def limit(now, r):
        if (now, r) == (phase, 4):
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))
            hoard.append(bytearray(3 * 2**28))

    try:
        carry_out(FOCUS, folder, fault=limit)
    except BaseException as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return type(error).__name__


@pytest.mark.parametrize("phase", one_in(2, ["train", "log"]))
def test_memory_that_runs_out_costs_no_checkpoint(tmp_path, clean, fork, phase):
    """A real MemoryError during a round."""
    assert fork.submit(hungry, tmp_path / "run", phase).result() == "MemoryError"
    assert checkpoints(tmp_path / "run")[-1] == "round_000004"
    carry_out(FOCUS, tmp_path / "run", resume=True)
    assert "damaged" not in log_of(tmp_path / "run")
    assert outcome(tmp_path / "run") == clean


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


# -- a disk that fills up at any write --------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_disk_that_fills_during_a_checkpoint_leaves_the_previous_one_and_a_message(
    tmp_path, clean, monkeypatch, operation
):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(phase, r):
        if (phase, r) == ("log", 3):
            monkeypatch.setattr(os, operation, full)

    with pytest.raises(RaylflError, match=r"checkpoint of round 4 could not be written .*No space left on device"):
        carry_out(FOCUS, tmp_path / "full", fault=fill)
    monkeypatch.undo()
    assert checkpoints(tmp_path / "full") == ["round_000001", "round_000002", "round_000003"]
    carry_out(FOCUS, tmp_path / "full", resume=True)
    assert outcome(tmp_path / "full") == clean


def test_a_disk_that_fills_at_a_first_file_leaves_a_message_and_no_part_of_the_file_once_the_run_goes_on(
    tmp_path, monkeypatch
):
    experiment, replace = assemble(load_config(TINY)), os.replace

    def failing(source, target):
        if Path(target).name == "partition.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with closing(RunDirectory.create(tmp_path, "full", "it", 0)) as directory:
        with pytest.raises(RaylflError, match=r"partition.json could not be written .*free some space"):
            write_records(experiment, directory)
        directory.claim()
    assert not list(tmp_path.rglob("*partition*"))


@pytest.fixture
def disk(tmp_path):
    """A file system of a few hundred kilobytes, and a function that sets its size."""
    place = tmp_path / "disk"
    place.mkdir()

    def size(kilobytes, *options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={kilobytes}k"]), "tmpfs", str(place)]
        return subprocess.run(command, capture_output=True).returncode == 0

    if shutil.which("mount") is None or not size(400):
        pytest.skip("no right to mount a file system")
    yield place, lambda kilobytes: size(kilobytes, "remount")
    subprocess.run(["umount", str(place)], check=True)


def test_a_real_disk_that_fills_up_costs_no_checkpoint(disk, tmp_path):
    """The disk fills at any write; with space again, the run resumes."""
    place, resize = disk
    config = {**FOCUS, "model": {**TINY["model"], "init_args": {"width": 700}}, "checkpoint": {"every": 1, "keep": 4}}
    carry_out(config, tmp_path / "wide", ["checkpoint.every=0"])
    with pytest.raises(RaylflError, match=r"could not be written.*\(No space left on device\).*free some space"):
        carry_out(config, place / "run")
    written = checkpoints(place / "run")
    assert written
    assert resize(4000)
    carry_out(config, place / "run", resume=True)
    assert f"resumed at round {int(written[-1].removeprefix('round_'))}" in log_of(place / "run")
    assert outcome(place / "run") == outcome(tmp_path / "wide")


def test_a_disk_that_fills_with_spilled_objects_leaves_a_checkpoint_of_the_previous_round(tmp_path, clean):
    """Ray has no space for broadcasts or for uploads, and reports it during a round."""
    full = strike("collect", 3, OutOfDiskError("no room for an object"))
    with pytest.raises(OutOfDiskError):
        carry_out(FOCUS, tmp_path / "full", ["checkpoint.every=0"], fault=full)
    assert checkpoints(tmp_path / "full") == ["round_000003"]
    carry_out(FOCUS, tmp_path / "full", ["checkpoint.every=0"], resume=True)
    assert outcome(tmp_path / "full") == clean


def test_a_directory_that_became_read_only_is_refused_and_resumed_once_writable(disk, tmp_path, clean):
    place, _ = disk
    killed(lambda: carry_out(FOCUS, place / "run", fault=strike("log", 3)))
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    with pytest.raises(RaylflError, match=r"cannot be written, or locked \(Read-only file system\)"):
        carry_out(FOCUS, place / "run", resume=True)
    subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
    carry_out(FOCUS, place / "run", resume=True)
    assert "resumed at round 3" in log_of(place / "run")
    assert outcome(place / "run") == clean
