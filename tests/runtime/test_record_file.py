"""Record files, state files, manifests, locks, rows and kept objects by themselves, against hashlib and files."""

import hashlib
import json
import os
import re
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raylfl.config.text import FORMAT
from raylfl.errors import BadConfig
from raylfl.runtime.records import provenance
from raylfl.runtime.records.files import Displaced, Locks, RecordFile, atomic_write, is_locked, open_plain
from raylfl.runtime.records.lines import jsonable, last_row, metrics_line, read_rows
from raylfl.runtime.records.provenance import INDEX, keep, read
from raylfl.runtime.records.state_files import Damaged, encode, folder_of, read_manifest, save_hashed, sha256_of


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def record(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b"before\n")
    record = RecordFile(tmp_path / "rows.jsonl")
    yield record
    record.close()


def test_what_is_appended_is_on_disk_at_once_and_in_the_checksum(record):
    assert (record.size, record.sha256) == (7, sha256(b"before\n"))
    for data in (b"first\n", b"second\n"):
        record.append(data)
    content = b"before\nfirst\nsecond\n"
    assert record.path.read_bytes() == content
    assert (record.size, record.sha256) == (len(content), sha256(content))
    record.check()
    record.sync()


class InPieces:
    """A file that accepts three bytes at a time, `most` times."""

    def __init__(self, file, most):
        self.file, self.most = file, most

    def write(self, data):
        if self.most == 0:
            raise OSError(28, "No space left on device")
        self.most -= 1
        return self.file.write(data[:3])

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("most", [1, 3])
def test_a_write_in_pieces_is_whole_and_one_that_fails_half_way_leaves_the_file_unchanged(record, most):
    before, record.file = record.sha256, InPieces(record.file, most)
    with nullcontext() if most == 3 else pytest.raises(OSError, match="No space"):
        record.append(b"abcdef\n")
    record.file = record.file.file
    assert record.path.read_bytes() == b"before\n" + b"abcdef\n" * (most == 3)
    assert (record.sha256 == before) == (most == 1)


def test_a_missing_file_is_made_with_the_usual_rights_and_a_closed_one_takes_nothing(tmp_path):
    mask = os.umask(0o022)
    try:
        record = RecordFile(tmp_path / "new.jsonl")
    finally:
        os.umask(mask)
    assert (record.size, record.sha256) == (0, sha256(b""))
    assert record.path.stat().st_mode & 0o777 == 0o644
    record.close()
    with pytest.raises(ValueError, match="closed file"):
        record.append(b"row\n")


@pytest.mark.parametrize("change", ["longer", "shorter", "another file", "a link", "none"])
def test_a_changed_file_is_noticed(record, change):
    if change == "longer":
        record.path.write_bytes(b"before\nmore\n")
    elif change == "shorter":
        os.truncate(record.path, 3)
    elif change == "another file":
        other = record.path.with_name("other")
        other.write_bytes(b"before\n")
        other.rename(record.path)
    elif change == "none":
        record.path.unlink()
    else:
        record.path.rename(record.path.with_name("moved"))
        record.path.symlink_to(record.path.with_name("moved"))
    with pytest.raises(Displaced, match="was changed"):
        record.check()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_regular_files_are_opened(tmp_path, kind):
    path = tmp_path / "here"
    if kind == "link":
        (tmp_path / "target").write_text("")
        path.symlink_to(tmp_path / "target")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=re.escape(str(path))):
        open_plain(path, os.O_RDONLY)
    with pytest.raises(OSError, match=re.escape(str(path))):
        sha256_of(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_synced_is_whole(tmp_path, record, monkeypatch):
    """The bytes on disk at the time of each fsync are those that a power failure would leave."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle)))
    save_hashed({"x": torch.arange(1000.0)}, tmp_path / "state.pt")
    record.append(b"row\n")
    record.sync()
    for path, at in zip((tmp_path / "state.pt", record.path), synced, strict=True):
        assert os.path.samestat(at, path.stat())
        assert at.st_size == path.stat().st_size


def test_a_whole_file_is_synced_before_it_gets_its_name_and_the_name_after(tmp_path, monkeypatch):
    events, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: events.append((os.readlink(f"/proc/self/fd/{handle}"), content())))
    monkeypatch.setattr(os, "replace", lambda *paths: (replace(*paths), events.append("renamed")))

    def content():
        return [path.read_text() for path in tmp_path.iterdir()]

    atomic_write(tmp_path / "file", "whole")
    (aside, synced), renamed, named = events
    assert os.path.dirname(aside) == str(tmp_path)
    assert (synced, renamed, named) == (["whole"], "renamed", (str(tmp_path), ["whole"]))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_reported_as_the_systems_error_and_other_errors_unchanged(tmp_path, monkeypatch):
    def fails(content, file):
        try:
            raise content
        except OSError as error:
            raise RuntimeError("torch's own words") from error

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(OSError, match="No space left"):
        save_hashed(OSError(28, "No space left on device"), tmp_path / "state.pt")
    with pytest.raises(RuntimeError, match="something else"):
        save_hashed(RuntimeError("something else"), tmp_path / "state.pt")


MANIFEST = {
    "version": FORMAT,
    "round": 3,
    "sha256": {"server.pt": "0" * 64, "clients_000.pt": "1" * 64},
    "config_sha256": "a" * 64,
    "partition_sha256": "b" * 64,
    "device": "cpu",
    "versions": {"torch": "2"},
    "config": {"runtime": {}, "rounds": 4},
    "records": {"metrics.jsonl": 10, "participation.jsonl": 20},
    "records_sha256": {"metrics.jsonl": "c" * 64, "participation.jsonl": "d" * 64},
    "clients": {"round_000003": [0, 2]},
}


def written(folder, **changes):
    """A folder with this manifest; `None` leaves a key out."""
    content = {k: v for k, v in {**MANIFEST, **changes}.items() if v is not None}
    place = folder / folder_of(3)
    place.mkdir(exist_ok=True)
    (place / "manifest.json").write_text(encode(content))
    return place


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    assert folder_of(3) == "round_000003"
    assert read_manifest(written(tmp_path)) == MANIFEST
    manifest = written(tmp_path) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()), sort_keys=True, indent=2))
    assert read_manifest(manifest.parent) == MANIFEST


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"round": 4}, "it is of round 4"),
        ({"round": -1}, "round: "),
        ({"sha256": {"server.pt": "0" * 63}}, "sha256.server.pt: "),
        ({"sha256": {"../server.pt": "0" * 64}}, "sha256"),
        ({"sha256": {"server.pt": "0" * 64, "../clients_000.pt": "1" * 64}}, "sha256"),
        ({"records": {"/etc/passwd": 3}}, "records"),
        ({"clients": {"round_000003": []}}, "clients.round_000003: "),
        ({"clients": {"round_3": [1]}}, "clients"),
        ({"clients": {"../../other/checkpoints/round_000003": [0]}}, "clients"),
        *(({key: None}, f"{key}: ") for key in MANIFEST),
        *(({key: "all"}, f"{key}: ") for key in ("version", "config", "versions", "records", "clients")),
        ({"records": {"metrics.jsonl": -1}}, "records.metrics.jsonl: "),
    ],
)
def test_a_manifest_of_another_form_is_damaged(tmp_path, changes, says):
    with pytest.raises(Damaged, match=rf"^round_000003/manifest\.json: .*{re.escape(says)}"):
        read_manifest(written(tmp_path, **changes))


def test_a_manifest_of_another_format_is_refused(tmp_path):
    with pytest.raises(BadConfig):
        read_manifest(written(tmp_path, version=99))


NO_JSON = ["", "{", "[]", "3", "\x00", "[" * 100_000, '{"round": ' + "1" * 5000 + "}"]


@pytest.mark.parametrize("text", [*NO_JSON, json.dumps(MANIFEST), encode(MANIFEST).replace("cpu", "gpu")])
def test_a_manifest_without_its_checksum_is_damaged(tmp_path, text):
    place = written(tmp_path)
    (place / "manifest.json").write_text(text)
    with pytest.raises(Damaged, match=r"manifest\.json (cannot be read|does not match)"):
        read_manifest(place)
    (place / "manifest.json").unlink()
    with pytest.raises(Damaged, match="cannot be read"):
        read_manifest(place)


# -- locks and rows ------------------------------------------------------------------------------------------------


def test_a_lock_has_one_holder_until_it_is_released(tmp_path):
    """The system's locks belong to an open file, so that two in one process stand for two processes."""
    first, second = Locks(tmp_path), Locks(tmp_path)
    assert first.take("here")
    assert first.take("here")
    assert is_locked(tmp_path / "here")
    assert not second.take("here")
    assert second.take("there")
    first.close()
    assert not is_locked(tmp_path / "here")
    assert second.take("here")
    assert not first.take("here")  # what was released is not remembered as held
    first.close()
    assert is_locked(tmp_path / "here")
    assert not first.take("there")
    second.close()
    assert first.take("there")
    first.close()


@pytest.mark.parametrize("line", [b"\x00\xff{]#", b"[" * 100_000, b"3", b'{"round": ' + b"1" * 5000 + b"}"])
def test_lines_that_cannot_be_read_are_numbered(tmp_path, line):
    (tmp_path / "rows.jsonl").write_bytes(b'{"round": 0}\n' + line + b'\n{"round": 2}\n')
    found = read_rows(tmp_path / "rows.jsonl")
    assert (found.rows, found.numbers, found.damaged) == ([{"round": 0}, {"round": 2}], [1, 3], [2])


def test_a_truncated_line_is_no_damage_and_a_missing_file_has_no_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert read_rows(path).rows == []
    path.write_text('{"round": 0}\n{"round"')
    found = read_rows(path)
    assert (found.rows, found.numbers, found.damaged) == ([{"round": 0}], [1], [])


@pytest.mark.parametrize(
    ("content", "row"),
    [
        ("", None),
        ('{"a": 1}', None),  # cut short
        ('{"a": 1}\n', {"a": 1}),
        ('{"a": 1}\n{"a": 2}\n', {"a": 2}),
        ('{"a": 1}\n{"a": 2}\n{"a": 3', {"a": 2}),
        ('{"a": 1}\n{"a"\n', None),
    ],
)
def test_the_last_row_is_that_of_the_last_whole_line(tmp_path, content, row):
    assert last_row(tmp_path / "rows.jsonl") is None
    (tmp_path / "rows.jsonl").write_text(content)
    assert last_row(tmp_path / "rows.jsonl") == row


def test_numpy_and_torch_numbers_are_written_as_plain_ones_and_non_finite_ones_as_null():
    given = {
        1: (np.float64(1.5), float("nan"), [np.int64(2), torch.tensor(-np.inf)]),
        "s": "text",
        "b": True,
        "n": None,
    }
    plain = {"1": [1.5, None, [2, None]], "s": "text", "b": True, "n": None}
    assert jsonable(given) == plain
    assert json.dumps(jsonable(given)) == json.dumps(plain)
    line = metrics_line({"round": 3, "loss": float("inf"), "nested": {"a": np.float32(0.5)}})
    assert line == '{"round": 3, "nested": {"a": 0.5}}\n'


def test_an_object_that_is_too_large_to_be_kept_is_left_out_with_the_limit(tmp_path, monkeypatch):
    """What is kept, and what a damaged copy does: tests/api/test_objects.py."""
    monkeypatch.setattr(provenance, "LARGEST", 2**20)
    write = lambda name, content: (tmp_path / name).write_bytes(content.encode() if name == INDEX else content)  # noqa: E731
    folder = SimpleNamespace(path=tmp_path, address=str(tmp_path), write=write)
    keep(folder, {"mine.Large": bytes(2**20), "mine.Small": bytes(2**20 - 200)})
    kept = read(tmp_path)
    assert kept.left_out == {"mine.Large": "it takes more than 1 MiB", "mine.Small": None}
    assert kept.load(tmp_path) == {"mine.Small": bytes(2**20 - 200)}
