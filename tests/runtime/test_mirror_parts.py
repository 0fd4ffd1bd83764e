"""Parts of a mirror by themselves: the order of copies and deletions, and the end of the signs of life."""

from __future__ import annotations

import json

import fsspec
import pytest

from raylfl.runtime.records import mirror
from raylfl.runtime.records.mirror import OWNER, STATE, Mirror, Owner
from raylfl.runtime.records.storage import Storage

URL = "memory://far/runs/it"


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
