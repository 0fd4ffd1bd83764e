"""Damaged records and forged checkpoints: reported, skipped, and computed again with the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
from contextlib import suppress

import pytest
import torch

import raylfl
from tests.runtime.faults import PHASES, Killed, carry_out, checkpoints, killed, log_of, outcome, strike
from tests.runtime.tiny import FOCUS
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import one_in

# -- records -------------------------------------------------------------------------------------------------------


def scribble(line):
    return line[:5] + b"\x00\xff{]#" + line[10:]


def nested(line):
    return b"[" * 100_000 + b"\n"


def number(line):
    return b"3\n"


def emptied(line):
    return b"{}\n"


def digits(line):
    return b'{"round": ' + b"1" * 5000 + b"}\n"


def another_value(line):
    """The JSON of a row of the same round with one digit changed."""
    row = json.loads(line)
    name = "cost/local_steps" if "cost/local_steps" in row else "steps"
    row[name] = row[name] + 1 if isinstance(row[name], int) else [9, *row[name][1:]]
    return (json.dumps(row) + "\n").encode()


def twice(line):
    return line + line


def gone(line):
    return b""


DAMAGES = [scribble, nested, number, emptied, digits, another_value, twice, gone]


def damage_line(path, index, how):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[index] = how(lines[index])
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("how", "name"), one_in(3, [(how, name) for how in DAMAGES for name in ("metrics.jsonl", "participation.jsonl")])
)
def test_a_damaged_line_is_reported_and_its_round_computed_again(folder, clean, name, how):
    """Line 4 belongs to round 3: the checkpoint of round 3 is the newest before it."""
    damage_line(folder / name, 2 if how is twice else 3, how)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert f"{name} is damaged: " in log_of(folder)
    assert "resumed at round 3" in log_of(folder)


def test_the_damaged_file_is_kept_and_its_line_named(folder):
    before = (folder / "metrics.jsonl").read_bytes()
    damage_line(folder / "metrics.jsonl", 3, scribble)
    carry_out(FOCUS, folder, resume=True)
    assert "metrics.jsonl is damaged: line 4 cannot be read" in log_of(folder)
    kept = (folder / "damaged_metrics.jsonl").read_bytes().splitlines()
    assert kept[4:] == before.splitlines()[4:]


@pytest.mark.parametrize("line", [0, 3])
def test_a_finished_run_with_a_damaged_line_is_unfinished_until_its_rounds_are_computed_again(runs, line):
    first = raylfl.run(TINY, runs)
    whole = outcome(first.run_dir)
    damage_line(first.run_dir / "metrics.jsonl", line, scribble)
    again = raylfl.resume(first.run_dir)
    assert outcome(first.run_dir) == whole
    assert [row["round"] for row in again.metrics] == list(range(TINY["rounds"]))
    assert json.loads((first.run_dir / "summary.json").read_text())["rounds"] == TINY["rounds"]
    assert f"line {line + 1} cannot be read" in log_of(first.run_dir)


def test_lines_after_the_newest_checkpoint_may_hold_anything(tmp_path, clean):
    config = {**FOCUS, "checkpoint": {"every": 3, "keep": 1}}
    killed(lambda: carry_out(config, tmp_path / "run", fault=strike("collect", 5)))
    damage_line(tmp_path / "run" / "metrics.jsonl", 4, nested)
    carry_out(config, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == clean
    assert "resumed at round 3" in log_of(tmp_path / "run")


# -- checkpoints whose checksums are right ----------------------------------------------------------------------------


def rewrite(path, change):
    """manifest.json with its content changed in place, and the right checksum."""
    content = json.loads(path.read_text())
    del content["manifest_sha256"]
    change(content)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**content, "manifest_sha256": digest}))


def without(*path):
    def change(content):
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


def with_(value, *path):
    def change(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def elsewhere(content):
    """All client states in the checkpoints of another run, which has them."""
    content["clients"] = {f"../../other/checkpoints/{name}": ids for name, ids in content["clients"].items()}


KEYS = ["version", "round", "sha256", "partition_sha256", "device", "versions", "config", "records", "clients"]
MANIFESTS = {
    **{f"no {key}": without(key) for key in KEYS},
    "round -5": with_(-5, "round"),
    "another round": with_(3, "round"),
    "clients a list": with_([], "clients"),
    "clients who never were": with_({"round_000004": [77]}, "clients"),
    "clients elsewhere": with_({"../../other/checkpoints/round_000004": [0]}, "clients"),
    "all clients elsewhere": elsewhere,
    "no server.pt in the folder": with_({"server.pt": "0" * 64, "clients_999.pt": "0" * 64}, "sha256"),
    "files elsewhere": with_({"../../secret": "0" * 64}, "sha256"),
    "records of one file": with_({"metrics.jsonl": 0}, "records"),
    "records a text": with_("metrics.jsonl", "records"),
    "negative sizes": with_({"metrics.jsonl": -1, "participation.jsonl": 0}, "records"),
    "versions a text": with_("all", "versions"),
    "config a text": with_("all", "config"),
}


@pytest.mark.parametrize("name", one_in(2, MANIFESTS))
def test_a_forged_manifest_is_skipped(folder, clean, name):
    shutil.copytree(folder, folder.parent / "other")  # so that `clients elsewhere` exist
    rewrite(folder / "checkpoints" / "round_000004" / "manifest.json", MANIFESTS[name])
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "checkpoint round_000004 is damaged" in log_of(folder)
    assert "resumed at round 3" in log_of(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "", "null", "[]", '{"round": ' + "1" * 5000 + "}", "\x00"])
def test_what_is_no_manifest_is_passed_over(folder, clean, text):
    (folder / "checkpoints" / "round_000004" / "manifest.json").write_text(text)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "checkpoint round_000004 is damaged (round_000004/manifest.json" in log_of(folder)


def test_records_of_a_forged_manifest_touch_no_other_file(folder, tmp_path, clean):
    other = tmp_path / "other.jsonl"
    other.write_text("not to be cut\n")
    sizes = {"metrics.jsonl": 10, "participation.jsonl": 10, "../other.jsonl": 5}
    for path in (folder / "checkpoints").glob("*/manifest.json"):
        rewrite(path, lambda content: content.update(records=sizes, records_sha256={}))
    carry_out(FOCUS, folder, resume=True)
    assert other.read_text() == "not to be cut\n"
    assert outcome(folder) == clean


def replace_file(folder, file, content, dump=torch.save):
    """A file of the newest checkpoint with another content, and the right checksum."""
    path = folder / "checkpoints" / "round_000004" / file
    with open(path, "wb") as out:
        dump(content, out)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    rewrite(path.with_name("manifest.json"), with_(digest, "sha256", file))


def read(folder, file):
    return torch.load(folder / "checkpoints" / "round_000004" / file, weights_only=True)


def halves(tensor):
    return tensor[: len(tensor) // 2]


SERVERS = {
    "another dtype": lambda blob: blob["server"].update(x=blob["server"]["x"].double()),
    "another width": lambda blob: blob["server"].update(x=halves(blob["server"]["x"])),
    "a missing vector": lambda blob: blob["server"].pop("y"),
    "a vector too many": lambda blob: blob["server"].update(z=torch.zeros(3)),
    "a text for a vector": lambda blob: blob["server"].update(x="zeros"),
    "no costs": lambda blob: blob.pop("costs"),
    "costs of a stranger": lambda blob: blob["costs"].update(bribes=3),
    "other buffers": lambda blob: blob.update(buffers=torch.zeros(1000)),
    "no clock": lambda blob: blob.pop("seconds"),
    "nothing": lambda blob: blob.clear(),
}


@pytest.mark.parametrize("name", one_in(2, SERVERS))
def test_a_server_state_that_does_not_fit_is_skipped(folder, clean, name):
    blob = read(folder, "server.pt")
    SERVERS[name](blob)
    replace_file(folder, "server.pt", blob)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "round_000004/server.pt does not fit this run" in log_of(folder)


@pytest.mark.parametrize("content", [3, [1, 2], Killed("a class of ours")], ids=["a number", "a list", "an object"])
def test_a_pickle_is_never_loaded(folder, clean, content):
    replace_file(folder, "server.pt", content, pickle.dump)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "checkpoint round_000004 is damaged (round_000004/server.pt" in log_of(folder)


CLIENTS = {
    "another dtype": lambda chunk: chunk["states"].update(g_prev=chunk["states"]["g_prev"].double()),
    "another width": lambda chunk: chunk["states"].update(g_prev=chunk["states"]["g_prev"][:, :5]),
    "a row less": lambda chunk: chunk["states"].update(g_prev=chunk["states"]["g_prev"][1:]),
    "another name": lambda chunk: chunk["states"].update(g=chunk["states"].pop("g_prev")),
    "no states": lambda chunk: chunk.pop("states"),
    "other clients": lambda chunk: chunk.update(clients=chunk["clients"] + 100),
    "emptied": lambda chunk: chunk.update(clients=chunk["clients"][:0], states={"g_prev": torch.zeros(0, 63)}),
}


@pytest.mark.parametrize("change", CLIENTS.values(), ids=CLIENTS)
def test_client_states_that_do_not_fit_are_skipped(folder, clean, change):
    chunk = read(folder, "clients_000.pt")
    change(chunk)
    replace_file(folder, "clients_000.pt", chunk)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "checkpoint round_000004 is damaged (round_000004" in log_of(folder)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("file", ["server.pt", "clients_000.pt", "manifest.json"])
def test_a_pipe_in_place_of_a_file_does_not_hang(folder, clean, file):
    path = folder / "checkpoints" / "round_000004" / file
    path.unlink()
    os.mkfifo(path)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert f"round_000004/{file} cannot be read: not a regular file" in log_of(folder)


def test_strange_names_in_checkpoints_are_no_checkpoints(folder, clean):
    place = folder / "checkpoints"
    (place / "damaged_round_000004").write_text("a file")
    (place / ".round_000009.tmp").write_text("a file")
    (place / "round_000007").write_text("a file")
    (place / "round_5").mkdir()
    (place / "round_٠٠٠٠٠٤").mkdir()
    (place / ("round_" + "9" * 200)).mkdir()
    os.symlink("nowhere", place / "round_000006")
    (place / "round_000004" / "server.pt").write_text("damaged")
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "damaged_round_000004" in checkpoints(folder)
    assert "resumed at round 3" in log_of(folder)


# -- anything, at any moment -------------------------------------------------------------------------------------------


def blow(folder, rng):
    """One random change of a random file of the run."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in ("config.yaml", "log.txt", ".lock")]
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "cut", "garbage", "remove", "swap"])
    if kind == "remove" or not data:
        path.unlink()
    elif kind == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif kind == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif kind == "garbage":
        at = rng.randrange(len(data))
        data[at : at + 9] = rng.randbytes(9)
        path.write_bytes(data)
    else:
        path.write_bytes(rng.choice(files).read_bytes())


@pytest.mark.parametrize("seed", one_in(3, range(12)))
def test_random_kills_and_random_damage_end_in_the_undisturbed_bits(tmp_path, clean, seed):
    rng, folder = random.Random(seed), tmp_path / "run"
    for life in range(4):
        with suppress(Killed):
            carry_out(FOCUS, folder, resume=life > 0, fault=strike(rng.choice(PHASES), rng.randrange(FOCUS["rounds"])))
        for _ in range(rng.randrange(3)):
            blow(folder, rng)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
