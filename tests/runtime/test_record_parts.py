"""Locks on record files, and how damaged lines are named."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from raylfl.runtime.records.lines import jsonable, last_row, lines, metrics_line, read_rows
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
    assert not first.take("here")  # what was released is not remembered as held
    first.close()
    assert is_locked(tmp_path / "here")
    assert not first.take("there")
    second.close()
    assert first.take("there")
    first.close()


def test_a_note_replaces_the_previous_one(tmp_path):
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
