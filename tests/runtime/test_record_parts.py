"""Locks on record files, and how damaged lines are named."""

from __future__ import annotations

import json

import pytest

from raylfl.runtime.records.lines import fault_in_rounds, lines
from raylfl.runtime.records.locks import Locks, is_locked


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
    first.close()
    assert is_locked(tmp_path / "here")
    assert first.take("there") is False
    second.close()
    assert first.take("there")
    first.close()


def test_a_note_replaces_the_one_before(tmp_path):
    locks = Locks(tmp_path)
    locks.take("here")
    for text in ("a long note", "short"):
        locks.note("here", text)
        assert (tmp_path / "here").read_text() == text
    locks.close()


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "line 3"),
        ([3, 7], "lines 3, 7"),
        ([1, 2, 3, 4], "lines 1, 2, 3, 4"),
        ([1, 2, 3, 4, 5], "lines 1, 2, 3, 4 and 1 more"),
        ([*range(3, 9)], "lines 3, 4, 5, 6 and 2 more"),
    ],
)
def test_line_numbers_are_listed_up_to_four(numbers, text):
    assert lines(numbers) == text


@pytest.mark.parametrize(
    ("rounds", "fault"),
    [
        ([0, 1, 2], None),
        ([0, 1], "rows from round 2 on are lost"),
        ([], "rows from round 0 on are lost"),
        ([0, 2], "it does not hold rounds 0 to 2 once"),
        ([0, 1, 1, 2], "it does not hold rounds 0 to 2 once"),
        ([0, 2, 1], "it does not hold rounds 0 to 2 once"),
    ],
)
def test_a_record_holds_each_round_once_in_order(rounds, fault):
    data = "".join(json.dumps({"round": r}) + "\n" for r in rounds).encode()
    assert fault_in_rounds(data, 3) == fault


@pytest.mark.parametrize("damage", [b"{", b"[0]", b"\xff", b"nonsense"])
def test_a_damaged_line_is_named(damage):
    data = b'{"round": 0}\n' + damage + b'\n{"round": 2}\n'
    assert fault_in_rounds(data, 3) == "line 2 cannot be read"
