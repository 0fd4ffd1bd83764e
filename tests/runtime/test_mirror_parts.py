"""Mirrors of run directories without a run: the order of copies and deletions, and the change of a run's owner."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import fsspec
import pytest

from raylfl.config.urls import staging
from raylfl.console import state_of
from raylfl.report.runs import load_run
from raylfl.runtime.records import mirror
from raylfl.runtime.records.mirror import OWNER, STATE, Mirror, Owner, take
from raylfl.runtime.records.record_file import Displaced
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.records.storage import Storage, StorageError
from raylfl.runtime.records.views import here

URL = "memory://far/runs/it"


def copied(url):
    """A new run directory with a config, copied to the URL."""
    run_dir = RunDirectory.create(staging(url), "tiny", "it", 0, url)
    run_dir.write("config.yaml", "rounds: 1\n")
    run_dir.committed(print)
    return run_dir


@pytest.fixture
def mirrored(tmp_path):
    """A mirror of a folder that owns its URL."""
    (tmp_path / STATE).write_text(json.dumps({"url": URL, "token": "mine", "after": None, "copied": {}}))
    Storage(URL).write(OWNER, Owner("mine").encoded())
    yield Mirror(tmp_path)
    fsspec.filesystem("memory").store.clear()


FILES = (
    "metrics.jsonl",
    "checkpoints/round_000001/clients_000.pt",
    "checkpoints/round_000001/server.pt",
    "checkpoints/round_000001/manifest.json",
    "checkpoints/round_000002/server.pt",
    "checkpoints/round_000002/manifest.json",
    "summary.json",
)


def test_an_empty_cache_folder_counts_as_none(monkeypatch, tmp_path):
    monkeypatch.delenv("RAYLFL_STAGING", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert staging("s3://bucket/runs") == tmp_path / ".cache/raylfl/s3/bucket/runs"


def test_a_manifest_is_copied_after_its_files_and_deleted_before_them(mirrored, monkeypatch):
    """The summary marks a finished run: it is copied last and deleted first."""
    copied, deleted = [], []
    monkeypatch.setattr(Storage, "put", lambda there, path, name: copied.append(name))
    monkeypatch.setattr(Storage, "remove", lambda there, names: deleted.extend(names))
    for name in reversed(FILES):
        (mirrored.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (mirrored.folder / name).write_text(name)
    mirrored.push()
    assert (copied, deleted) == ([*FILES], [])
    for name in FILES:
        (mirrored.folder / name).unlink()
    mirrored.push()
    assert (copied, list(dict.fromkeys(deleted))) == ([*FILES], [*reversed(FILES)])
    deleted.clear()
    mirrored.push()
    assert deleted == []


@pytest.mark.parametrize("other", [Owner("theirs", command="theirs"), None])
def test_the_signs_of_life_end_where_another_folder_owns_the_run_or_it_is_deleted(mirrored, monkeypatch, other):
    monkeypatch.setattr(mirror, "BEAT_SECONDS", 0.01)
    mirrored.hold("mine")
    if other is None:
        Storage(URL).remove([OWNER])
    else:
        Storage(URL).write(OWNER, other.encoded())
    mirrored._pulse.join(30)
    assert not mirrored._pulse.is_alive()
    assert Owner.of(Storage(URL)) == other
    mirrored.release()
    assert Owner.of(Storage(URL)) == other


def test_a_machine_that_wakes_up_after_another_took_its_run_over_writes_nothing(url, machine):
    """The first machine gives no sign of life (its process is paused), and is not dead."""
    asleep = copied(url)
    machine("b")
    folder = take(f"{url}/tiny/it")
    awake = RunDirectory(folder).open()
    awake.write("log.txt", "second\n")
    awake.committed(print)
    asleep.write("log.txt", "first\n")
    with pytest.raises(Displaced, match=r"was taken over by .* has what was computed here"):
        asleep.committed(print)
    asleep.close()
    assert Storage(f"{url}/tiny/it").read("log.txt") == b"second\n"
    awake.committed(print)
    awake.close()
    assert json.loads(Storage(f"{url}/tiny/it").read(OWNER))["held"] is False


def test_a_commit_copies_what_changed_and_a_seldom_one_waits_for_a_while(url, machine):
    first = copied(url)
    first.write("log.txt", "new\n")
    first.committed(print, seldom=True)
    assert Storage(f"{url}/tiny/it").read("log.txt") == b""
    first.committed(print)
    assert Storage(f"{url}/tiny/it").read("log.txt") == b"new\n"
    first.close()


def test_only_a_new_owner_waits_for_others_that_take_the_run_over(url, machine, monkeypatch):
    waits = []
    clock = SimpleNamespace(sleep=waits.append, time=time.time, monotonic=time.monotonic)
    first = copied(url)
    first.close()
    monkeypatch.setattr(mirror, "time", clock)
    again = Mirror(first.path)
    again.hold("again")
    again.release()
    assert waits == []
    machine("b")
    RunDirectory(take(f"{url}/tiny/it")).open().close()
    assert waits == [mirror.SETTLE_SECONDS]


def test_of_two_machines_that_take_a_lost_run_over_only_one_gets_it(url, machine):
    lost = copied(url)
    folders = []
    for name in "bc":
        machine(name)
        folders.append(take(f"{url}/tiny/it"))
    first = RunDirectory(folders[0]).open()
    second = RunDirectory(folders[1])
    with pytest.raises(Displaced, match="was taken over by"):
        second.open()
    assert not second.in_use  # its lock is free again
    first.close()
    lost.close()


def test_a_run_elsewhere_is_listed_as_running_as_long_as_it_gives_signs_of_life(url, monkeypatch):
    monkeypatch.setattr(mirror, "WATCH_SECONDS", 5.0)
    run_dir = copied(url)
    run_dir.write("metrics.jsonl", "")
    run_dir.committed(print)
    record = load_run(here(url) / "tiny/it")
    assert state_of(record, lambda folder: {}) == "running"
    run_dir.close()
    assert state_of(record, lambda folder: {}) == "stopped"


def test_a_fetch_that_fails_leaves_no_folder(url, machine, monkeypatch):
    first = copied(url)
    first.close()
    machine("b")

    def fails(*arguments, whole):
        raise StorageError("no answer")

    monkeypatch.setattr(mirror, "fetch", fails)
    with pytest.raises(StorageError, match="no answer"):
        take(f"{url}/tiny/it")
    assert list(staging(f"{url}/tiny/it").parent.iterdir()) == []
