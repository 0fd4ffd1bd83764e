"""Damaged records and forged checkpoints: reported, skipped, and computed again with the same bits."""

import hashlib
import json
import os
import random
from contextlib import suppress

import pytest
import torch

import raylfl
from raylfl.runtime.records.state_files import encode
from tests.runtime.faults import PHASES, Killed, carry_out, checkpoints, killed, log_of, outcome, strike
from tests.runtime.tiny import FOCUS
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import also, one_in

# -- records -------------------------------------------------------------------------------------------------------


def scribble(line):
    return line[:5] + b"\x00\xff{]#" + line[10:]


def another_value(line):
    """The JSON of a row of the same round with one digit changed."""
    row = json.loads(line)
    row["steps"] = [9, *row["steps"][1:]]
    return (json.dumps(row) + "\n").encode()


def damage_line(path, index, how):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[index] = how(lines[index])
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("name", "index", "how"),
    [
        ("participation.jsonl", 3, another_value),  # line 4 belongs to round 3: the checkpoint before it is used
        ("metrics.jsonl", 3, lambda line: b""),
        ("metrics.jsonl", 2, lambda line: line + line),
    ],
    ids=["another value", "gone", "twice"],
)
def test_a_damaged_line_is_reported_and_its_round_computed_again(folder, clean, name, index, how):
    damage_line(folder / name, index, how)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert f"{name} is damaged: " in log_of(folder)
    assert "resumed at round 3" in log_of(folder)


@pytest.mark.parametrize("line", [0, also(3)])
def test_a_finished_run_with_a_damaged_line_is_unfinished_until_its_rounds_are_computed_again(runs, line):
    """The damaged file is kept."""
    first = raylfl.run(TINY, runs)
    whole, before = outcome(first.run_dir), (first.run_dir / "metrics.jsonl").read_bytes().splitlines()
    damage_line(first.run_dir / "metrics.jsonl", line, scribble)
    again = raylfl.resume(first.run_dir)
    assert outcome(first.run_dir) == whole
    assert [row["round"] for row in again.metrics] == list(range(TINY["rounds"]))
    assert json.loads((first.run_dir / "summary.json").read_text())["rounds"] == TINY["rounds"]
    assert f"metrics.jsonl is damaged: line {line + 1} cannot be read" in log_of(first.run_dir)
    damaged = (first.run_dir / "damaged_metrics.jsonl").read_bytes().splitlines()
    assert damaged[line + 1 :] == before[line + 1 :]


def test_lines_after_the_newest_checkpoint_may_hold_anything(tmp_path, clean):
    config = {**FOCUS, "checkpoint": {"every": 3, "keep": 1}}
    killed(lambda: carry_out(config, tmp_path / "run", fault=strike("collect", 5)))
    damage_line(tmp_path / "run" / "metrics.jsonl", 4, lambda line: b"[" * 100_000 + b"\n")
    carry_out(config, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == clean
    assert "resumed at round 3" in log_of(tmp_path / "run")


# -- checkpoints whose checksums are right; their forms by themselves: test_record_file.py, test_state_files.py -------


def rewrite(path, change):
    """manifest.json with its content changed in place, and the right checksum."""
    content = json.loads(path.read_text())
    del content["manifest_sha256"]
    change(content)
    path.write_text(encode(content))


@pytest.mark.parametrize("changes", [{"clients": {"round_000004": [77]}}, {"records": {"../other.jsonl": 5}}])
def test_a_forged_manifest_is_skipped(folder, clean, changes):
    (folder / "other.jsonl").write_text("not to be cut\n")
    rewrite(folder / "checkpoints" / "round_000004" / "manifest.json", lambda content: content.update(changes))
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "checkpoint round_000004 is damaged" in log_of(folder)
    assert "resumed at round 3" in log_of(folder)
    assert (folder / "other.jsonl").read_text() == "not to be cut\n"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("server.pt", lambda blob: blob["server"].update(x=torch.zeros(5)), "round_000004/server.pt does not fit"),
        ("clients_000.pt", lambda chunk: chunk.update(clients=chunk["clients"] + 100), "holds no state of client"),
    ],
)
def test_a_state_that_does_not_fit_is_skipped(folder, clean, file, change, words):
    path = folder / "checkpoints" / "round_000004" / file
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    rewrite(path.with_name("manifest.json"), lambda content: content["sha256"].update({file: digest}))
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert words in log_of(folder)


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


@pytest.mark.parametrize("seed", one_in(6, range(12)))
def test_random_kills_and_random_damage_end_in_the_undisturbed_bits(tmp_path, clean, seed):
    rng, folder = random.Random(seed), tmp_path / "run"
    for life in range(4):
        with suppress(Killed):
            carry_out(FOCUS, folder, resume=life > 0, fault=strike(rng.choice(PHASES), rng.randrange(FOCUS["rounds"])))
        for _ in range(rng.randrange(3)):
            blow(folder, rng)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
