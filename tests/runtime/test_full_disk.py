"""A disk that fills up at any write: checkpoints remain intact, there is one message, and the run resumes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
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


@pytest.fixture
def full(monkeypatch):
    """A switch after which every sync, rename and append in a run directory finds no space."""
    state = {"on": False}

    def failing(real):
        def call(*args, **kwargs):
            if state["on"]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        return call

    return state, failing, monkeypatch


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_disk_that_fills_during_a_checkpoint_leaves_the_previous_one_and_a_message(tmp_path, clean, full, operation):
    state, failing, monkeypatch = full
    monkeypatch.setattr(os, operation, failing(getattr(os, operation)))

    def fill(phase, r):
        state["on"] = (phase, r) == ("log", 3)

    with pytest.raises(RaylflError, match=r"checkpoint of round 4 could not be written .*No space left on device"):
        carry_out(FOCUS, tmp_path / "full", fault=fill)
    state["on"] = False
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


@pytest.mark.parametrize("phase", ["train", "collect"])
def test_a_disk_that_fills_with_spilled_objects_leaves_a_checkpoint_of_the_previous_round(tmp_path, clean, phase):
    """Ray has no space for broadcasts or for uploads, and reports it during a round."""
    full = strike(phase, 3, OutOfDiskError("no room for an object"))
    with pytest.raises(OutOfDiskError):
        carry_out(FOCUS, tmp_path / "full", ["checkpoint.every=0"], fault=full)
    assert checkpoints(tmp_path / "full") == ["round_000003"]
    carry_out(FOCUS, tmp_path / "full", ["checkpoint.every=0"], resume=True)
    assert outcome(tmp_path / "full") == clean


def test_a_disk_that_fills_while_a_row_is_written_leaves_no_half_row(tmp_path, clean, monkeypatch):
    class Full:
        """A file that accepts ten bytes and then has no space."""

        def __init__(self, file):
            self.file, self.room = file, 10

        def write(self, data):
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = self.file.write(data[: self.room])
            self.room = 0
            return written

        def __getattr__(self, name):
            return getattr(self.file, name)

    append = run_dir.RunDirectory.append

    def filling(self, name, line):
        if name == "metrics.jsonl" and line.startswith('{"round": 3,'):
            self._files[name].file = Full(self._files[name].file)
        append(self, name, line)

    monkeypatch.setattr(run_dir.RunDirectory, "append", filling)
    with pytest.raises(RaylflError, match=r"metrics.jsonl could not be written \(No space left"):
        carry_out(FOCUS, tmp_path / "full")
    monkeypatch.undo()
    assert [json.loads(line)["round"] for line in (tmp_path / "full" / "metrics.jsonl").open()] == [0, 1, 2]
    carry_out(FOCUS, tmp_path / "full", resume=True)
    assert outcome(tmp_path / "full") == clean


LIMITED = """
from raylfl.errors import RaylflError

def limit(phase, r):
    if (phase, r) == ("log", 3):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))

try:
    carry_out(FOCUS, Path({folder!r}), fault=limit)
except RaylflError as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(error)
"""


@pytest.mark.parametrize("size", one_in(2, [700, 0]))
def test_files_that_may_not_grow_cost_no_checkpoint(tmp_path, clean, forked, size):
    """A quota, by the system's own limit on the size of files: every kind of file meets it at some size."""
    said = forked(LIMITED.format(folder=str(tmp_path / "run"), size=size))
    assert "could not be written" in said
    assert "(File too large)" in said
    assert "free some space" in said
    assert checkpoints(tmp_path / "run")[-1] in ("round_000003", "round_000004")
    carry_out(FOCUS, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == clean


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
