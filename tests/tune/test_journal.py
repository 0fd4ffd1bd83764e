"""The journal of a sweep survives a crash at any byte."""

from __future__ import annotations

import pytest

from raylfl.tune.journal import DIVERGED, FAILED, FINISHED, Journal, Trial, ends

TRIALS = [Trial(f"00{k}-fedavg", 0, k, [2, 10], 6, {"local.lr": 0.1 * k}, ["p-s2", None]) for k in range(3)]


def test_a_journal_read_again_is_the_same(tmp_path):
    journal = Journal(tmp_path)
    journal.plan(*TRIALS)
    journal.end(TRIALS[0].id, FINISHED)
    journal.end(TRIALS[1].id, FAILED, "out of luck\nand lines")
    again = Journal(tmp_path)
    assert list(again.trials.values()) == TRIALS
    assert again.ends == journal.ends
    assert [again.is_over(trial) for trial in TRIALS] == [True, False, False]  # a failed trial is repeated
    again.end(TRIALS[1].id, FINISHED)
    assert Journal(tmp_path).is_over(TRIALS[1])


def test_planning_again_adds_only_what_is_new(tmp_path):
    journal = Journal(tmp_path)
    journal.plan(*TRIALS[:2])
    Journal(tmp_path).plan(*TRIALS)
    assert list(Journal(tmp_path).trials) == [trial.id for trial in TRIALS]
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 3


def test_a_line_truncated_at_any_byte_is_ignored_and_overwritten(tmp_path):
    journal = Journal(tmp_path)
    journal.plan(*TRIALS[:2])
    whole = (tmp_path / "trials.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        (tmp_path / "trials.jsonl").write_bytes(whole[:cut])
        torn = Journal(tmp_path)
        assert list(torn.trials) == [TRIALS[0].id]
        torn.plan(TRIALS[1])
        assert (tmp_path / "trials.jsonl").read_bytes() == whole


def damaged(tmp_path, number, line):
    """A journal of three planned and two ended trials, one line of which is replaced."""
    journal = Journal(tmp_path)
    journal.plan(*TRIALS)
    journal.end(TRIALS[0].id, FINISHED, diverged=[10])
    journal.end(TRIALS[1].id, FAILED, "out of luck")
    lines = (tmp_path / "trials.jsonl").read_bytes().splitlines(keepends=True)
    lines[number - 1] = line(lines[number - 1]) if callable(line) else line
    (tmp_path / "trials.jsonl").write_bytes(b"".join(lines))
    return Journal(tmp_path)


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"\n", b"3\n", b"{}\n", b'{"id": 3}\n', b"[" * 99_999 + b"\n"])
def test_a_damaged_line_hides_no_other(tmp_path, line):
    journal = damaged(tmp_path, 2, line)
    assert list(journal.trials) == [TRIALS[0].id, TRIALS[2].id]
    assert {name: end.state for name, end in journal.ends.items()} == {TRIALS[0].id: FINISHED, TRIALS[1].id: FAILED}
    assert journal.damaged == [2]
    runs = {"000-fedavg-s2": FINISHED, "000-fedavg-s10": DIVERGED}
    assert ends(tmp_path) == runs
    journal.plan(*TRIALS)
    assert set(Journal(tmp_path).trials) == {trial.id for trial in TRIALS}
    assert ends(tmp_path) == runs | {"001-fedavg-s2": FAILED, "001-fedavg-s10": FAILED}


def test_a_changed_value_in_a_valid_line_is_noticed(tmp_path):
    journal = damaged(tmp_path, 3, lambda line: line.replace(b'"rounds": 6', b'"rounds": 8'))
    assert journal.damaged == [3]
    assert list(journal.trials) == [TRIALS[0].id, TRIALS[1].id]
