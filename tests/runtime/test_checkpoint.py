"""Checkpoints on disk: damage is detected and skipped, and only changed states are written."""

import json
import os

import pytest
import torch

from raylfl.errors import BadConfig
from raylfl.runtime.records import checkpoint, state_files
from tests.runtime.faults import carry_out, checkpoints, killed, log_of, outcome, strike
from tests.runtime.tiny import FOCUS
from tests.runtime.tiny import ONE_BY_ONE as TINY


def manifest(folder, r):
    return json.loads((folder / "checkpoints" / f"round_{r:06d}" / "manifest.json").read_text())


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "damage", "why"),
    [
        ("server.pt", flip, "does not match its checksum"),
        ("clients_000.pt", os.remove, "cannot be read"),
        ("manifest.json", cut, "cannot be read"),
    ],
)
def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(folder, clean, file, damage, why):
    damage(folder / "checkpoints" / "round_000004" / file)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert f"checkpoint round_000004 is damaged (round_000004/{file} {why}" in log_of(folder)
    assert "resumed at round 3" in log_of(folder)
    assert "damaged_round_000004" in checkpoints(folder)


def test_a_resumed_run_keeps_track_of_the_checkpoint_of_each_clients_state(folder, tmp_path):
    """Clients that did not take part since the resume included: the manifest is that of an undisturbed run."""
    killed(lambda: carry_out(FOCUS, folder, resume=True, fault=strike("collect", 5)))
    killed(lambda: carry_out(FOCUS, tmp_path / "straight", fault=strike("collect", 5)))
    assert manifest(folder, 5)["clients"] == manifest(tmp_path / "straight", 5)["clients"]
    rows = [json.loads(line) for line in (folder / "participation.jsonl").read_text().splitlines()[:5]]
    came = {c for row in rows for c, arrived in zip(row["cohort"], row["received"], strict=True) if arrived}
    assert {c for held in manifest(folder, 5)["clients"].values() for c in held} == came


def test_a_damaged_older_checkpoint_that_holds_client_states_is_noticed(folder, clean):
    """States are never silently zeroed: every checkpoint that needs them is skipped."""
    holder = min(manifest(folder, 4)["clients"])
    assert holder < "round_000004"
    flip(folder / "checkpoints" / holder / "clients_000.pt")
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert f"checkpoint round_000004 is damaged ({holder}/clients_000.pt does not match" in log_of(folder)


def test_a_damaged_older_checkpoint_that_is_not_needed_does_not_end_a_run(tmp_path):
    config = {**TINY, "checkpoint": {"every": 1, "keep": 3}}  # fedavg: no client states
    carry_out(config, tmp_path / "clean", ["checkpoint.every=0"])
    killed(lambda: carry_out(config, tmp_path / "run", fault=strike("collect", 4)))
    cut(tmp_path / "run" / "checkpoints" / "round_000003" / "manifest.json")
    carry_out(config, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "clean")
    assert "resumed at round 4" in log_of(tmp_path / "run")


def test_with_every_checkpoint_damaged_the_run_starts_again_and_says_so(folder, clean):
    for path in (folder / "checkpoints").glob("round_*/server.pt"):
        flip(path)
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "starting from round 0" in log_of(folder)


def test_a_resume_of_an_intact_run_warns_of_nothing_and_sweeps_leftovers_of_a_killed_writer_away(folder, clean):
    for name in (".round_000005.tmp", ".round_000099.tmp"):  # one that is written again, one that is not
        (folder / "checkpoints" / name).mkdir()
        (folder / "checkpoints" / name / "server.pt").write_text("half")
    (folder / ".summary.json.123.tmp").write_text("half")
    before = log_of(folder)
    carry_out(FOCUS, folder, resume=True)
    said = [line.partition(" ")[2] for line in log_of(folder)[len(before) :].splitlines()]
    new = [line for line in said if not (line.startswith("warning: ") and line in before)]  # of the model
    assert [line.split()[0] for line in new] == ["6", "resumed", "local", "finished"]
    assert outcome(folder) == clean
    assert not list(folder.glob(".*.tmp"))
    assert not list((folder / "checkpoints").glob(".*"))


def test_damage_to_an_unneeded_file_is_no_damage_and_a_truncated_row_is_written_again(folder, clean):
    holder = min(manifest(folder, 4)["clients"])
    flip(folder / "checkpoints" / holder / "server.pt")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"round": 4, "train/lo')
    carry_out(FOCUS, folder, resume=True)
    assert outcome(folder) == clean
    assert "resumed at round 4" in log_of(folder)


# -- what is written ------------------------------------------------------------------------------------------------


def test_only_client_states_that_changed_are_written_again(folder):
    trace = [json.loads(line) for line in (folder / "participation.jsonl").read_text().splitlines()]
    for r in (3, 4):
        stored = torch.load(folder / "checkpoints" / f"round_{r:06d}" / "clients_000.pt", weights_only=True)
        row = trace[r - 1]
        arrived = sorted(c for c, got in zip(row["cohort"], row["received"], strict=True) if got)
        assert stored["clients"].tolist() == arrived
        assert {name: tuple(rows.shape) for name, rows in stored["states"].items()} == {"g_prev": (len(arrived), 63)}


def test_states_in_many_files_come_back_whole(folder, tmp_path, clean, monkeypatch):
    monkeypatch.setattr(state_files, "CHUNK_BYTES", 600)  # two states of 63 floats a file
    monkeypatch.setattr(checkpoint, "FOLD_AFTER", 1)
    killed(lambda: carry_out(FOCUS, tmp_path / "small", fault=strike("collect", 5)))
    files = [p.name for p in (tmp_path / "small" / "checkpoints" / "round_000005").glob("clients_*.pt")]
    assert len(files) >= 2
    carry_out(FOCUS, tmp_path / "small", resume=True)
    assert outcome(tmp_path / "small") == clean


def test_checkpoints_fold_into_few_that_hold_every_client(tmp_path, monkeypatch):
    """The newest state of a client is never pruned, however rarely it takes part."""
    keep = 2
    monkeypatch.setattr(checkpoint, "FOLD_AFTER", 4)
    config = {**FOCUS, "rounds": 18, "num_clients": 20, "participation": {"name": "uniform", "size": 2}}
    config |= {"checkpoint": {"every": 1, "keep": keep}, "eval": {"every": 0, "inconsistency": False}}
    carry_out(config, tmp_path / "clean", ["checkpoint.every=0"])
    killed(lambda: carry_out(config, tmp_path / "run", fault=strike("checkpoint", 15)))
    kept = checkpoints(tmp_path / "run")
    assert keep <= len(kept) <= checkpoint.FOLD_AFTER + keep
    held = [c for clients in manifest(tmp_path / "run", 16)["clients"].values() for c in clients]
    assert sorted(held) == sorted(set(held))
    assert set(manifest(tmp_path / "run", 16)["clients"]) <= set(kept)
    carry_out(config, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "clean")


def test_a_checkpoint_gets_its_name_after_all_of_it_is_on_disk(tmp_path, monkeypatch):
    """A power failure leaves a whole checkpoint or none: files, their folder, the new name, the folder of the name."""
    events, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: events.append(os.readlink(f"/proc/self/fd/{handle}")))

    def renamed(source, target):
        replace(source, target)
        events.append(("named", str(target)))

    monkeypatch.setattr(os, "replace", renamed)
    carry_out(FOCUS, tmp_path / "run", ["rounds=1"])
    folder = tmp_path / "run" / "checkpoints"
    named = events.index(("named", f"{folder}/round_000001"))
    aside = f"{folder}/.round_000001.tmp"
    synced = [event for event in events[:named] if isinstance(event, str)]
    assert synced[-1] == aside
    assert {f"{aside}/server.pt", f"{aside}/clients_000.pt", str(tmp_path / "run/metrics.jsonl")} <= set(synced)
    assert ("named", f"{aside}/manifest.json") in events[:named]
    assert events[named + 1] == str(folder)


@pytest.mark.parametrize(
    ("every", "keep", "rounds", "there"), [(1, 2, 6, [5, 6]), (3, 9, 7, [3, 6, 7]), (3, 9, 6, [3, 6]), (0, 9, 4, [4])]
)
def test_a_state_is_saved_every_so_many_rounds_and_after_the_last_and_keep_is_how_many_stay(
    tmp_path, every, keep, rounds, there
):
    config = {**TINY, "rounds": rounds, "checkpoint": {"every": every, "keep": keep}}  # fedavg: no client states
    carry_out(config, tmp_path / "run")
    assert checkpoints(tmp_path / "run") == [f"round_{r:06d}" for r in there]


# -- another world --------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_config_is_refused_with_the_keys_named(folder):
    with pytest.raises(BadConfig, match=r"local.lr: 0.05 -> 0.01"):
        carry_out(FOCUS, folder, ["local.lr=0.01"], resume=True)
    assert "round_000004" in checkpoints(folder)


def test_other_versions_are_warned_of(folder, clean, monkeypatch):
    real = dict(checkpoint.versions())
    monkeypatch.setattr(checkpoint, "versions", lambda: {**real, "torch": "9.9.9"})
    carry_out(FOCUS, folder, resume=True)
    assert f"was written with torch {real['torch']}, this is 9.9.9" in log_of(folder)
    assert outcome(folder) == clean


def test_other_data_are_refused(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "sha256_of_shards", lambda shards: "of another partition")
    with pytest.raises(BadConfig, match="the clients' samples differ from those in round_000004"):
        carry_out(FOCUS, folder, resume=True)
