"""Objects kept beside a run: what comes back, what is left out and why, and what is refused."""

from __future__ import annotations

import json
import threading

import pytest

from raylfl.errors import BadConfig
from raylfl.runtime.records import kept_objects
from raylfl.runtime.records.kept_objects import FILE, INDEX, keep, on_trust, read


class Folder:
    """A stand-in for a run directory, with the methods that are used here."""

    def __init__(self, path):
        self.path, self.address = path, str(path)

    def write(self, name, content):
        (self.path / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def test_what_is_kept_comes_back_and_the_rest_is_named(tmp_path):
    said = keep(Folder(tmp_path), {"mine.Data": [1, 2], "mine.Lock": threading.Lock()})
    assert read(tmp_path).load(tmp_path) == {"mine.Data": [1, 2]}
    left = read(tmp_path).left_out
    assert left["mine.Data"] is None
    assert "pickle" in left["mine.Lock"]
    assert said.startswith("mine.Data, mine.Lock are known to this process only")
    assert f"{FILE} keeps what it needs: {on_trust(tmp_path)}" in said
    assert f"mine.Lock is not kept ({left['mine.Lock']}): give it again" in said
    assert "mine.Data is not kept" not in said


def test_without_objects_nothing_is_written(tmp_path):
    assert keep(Folder(tmp_path), {}) is None
    assert not list(tmp_path.iterdir())
    assert read(tmp_path).left_out == {}
    assert read(tmp_path).load(tmp_path) == {}


def test_objects_that_cannot_be_kept_leave_an_index_alone(tmp_path):
    said = keep(Folder(tmp_path), {"mine.Lock": threading.Lock()})
    assert said.startswith("mine.Lock is known")
    assert FILE not in said
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]
    assert read(tmp_path).load(tmp_path) == {}


def test_an_object_that_is_too_large_is_left_out_with_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_objects, "LARGEST", 2**20)
    keep(Folder(tmp_path), {"mine.Large": bytes(2**20), "mine.Small": bytes(2**20 - 200)})
    assert read(tmp_path).left_out == {"mine.Large": "it takes more than 1 MiB", "mine.Small": None}


def test_an_object_of_the_largest_size_is_kept(monkeypatch):
    monkeypatch.setattr(kept_objects, "LARGEST", 10)
    memory = kept_objects._Limited()
    memory.write(bytes(4))
    memory.write(bytes(6))
    with pytest.raises(ValueError, match="it takes more than 0 MiB"):
        memory.write(bytes(1))


def test_damaged_files_are_refused(tmp_path):
    keep(Folder(tmp_path), {"mine.Data": [1, 2]})
    index = read(tmp_path)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes() + b"x")
    with pytest.raises(BadConfig, match="does not match its checksum"):
        index.load(tmp_path)
    for text in ("{", "[]", json.dumps({"left_out": {}})):
        (tmp_path / INDEX).write_text(text)
        with pytest.raises(BadConfig, match=f"{INDEX} is damaged"):
            read(tmp_path)


def test_the_command_quotes_its_folder(tmp_path):
    assert on_trust(tmp_path / "a b").endswith("a b' --trust")
