"""The journal of a sweep survives a crash at any byte."""

from dataclasses import replace

import pytest

from raylfl.tune.journal import FAILED, STOPPED, Journal, Trial, ends

TRIALS = [
    Trial(f"00{k}-fedavg", k, [2, 10], {"local.lr": 0.1 * k}, [f"fedavg-s2-{k}", f"fedavg-s10-{k}"]) for k in range(3)
]


def planned(folder, trials=TRIALS):
    journal = Journal(folder)
    for trial in trials:
        journal.plan(trial)
    return journal


def test_a_journal_read_again_is_the_same(tmp_path):
    journal = planned(tmp_path)
    journal.end(TRIALS[0].id, STOPPED)
    journal.end(TRIALS[1].id, FAILED, "out of luck\nand lines")
    again = Journal(tmp_path)
    assert list(again.trials.values()) == TRIALS
    assert again.ends == journal.ends
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 5
    planned(tmp_path)  # adds nothing
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 5


def test_a_trial_whose_runs_are_others_is_open_again(tmp_path):
    """The identity of a run changes with the source of raylfl and of the user's classes."""
    journal = planned(tmp_path)
    journal.end(TRIALS[0].id, STOPPED)
    journal.plan(replace(TRIALS[0], runs=["new-s2", "new-s10"]))
    again = Journal(tmp_path)
    assert (again.trials[TRIALS[0].id].runs, again.ends) == (["new-s2", "new-s10"], {})


def test_a_line_truncated_at_any_byte_hides_no_other(tmp_path):
    planned(tmp_path, TRIALS[:2])
    content = (tmp_path / "trials.jsonl").read_bytes()
    first = content.index(b"\n") + 1
    for cut in range(first, len(content) - 1):
        (tmp_path / "trials.jsonl").write_bytes(content[:cut])
        assert list(planned(tmp_path, TRIALS[1:]).trials) == [trial.id for trial in TRIALS]
        assert list(Journal(tmp_path).trials) == [trial.id for trial in TRIALS]


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"\n", b"3\n", b"{}\n", b'{"id": 3}\n', b"[" * 99_999 + b"\n"])
def test_a_damaged_line_hides_no_other(tmp_path, line):
    journal = planned(tmp_path)
    journal.end(TRIALS[0].id, STOPPED)
    journal.end(TRIALS[1].id, FAILED, "out of luck")
    lines = (tmp_path / "trials.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "trials.jsonl").write_bytes(b"".join([lines[0], line, *lines[2:]]))
    damaged = Journal(tmp_path)
    assert list(damaged.trials) == [TRIALS[0].id, TRIALS[2].id]
    assert damaged.damaged == [2]
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "diverged.txt").touch()
    assert ends(tmp_path) == {"fedavg-s2-0": STOPPED, "fedavg-s10-0": STOPPED, "lost": "diverged"}
