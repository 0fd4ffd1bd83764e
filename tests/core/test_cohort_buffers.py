"""Rows of buffers: one, several or none, written, changed in place and read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from raylfl.core.cohort_buffers import CohortBuffers

MEAN, COUNT = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor(5)
FORMS = {"none": [], "one": [MEAN], "two": [MEAN, COUNT], "a number": [COUNT]}


@pytest.mark.parametrize("name", FORMS)
def test_clients_begin_with_copies_of_the_modules_own_and_more_of_them_get_new_ones(name):
    like = FORMS[name]
    buffers = CohortBuffers(SimpleNamespace(buffers=like, params=torch.zeros(1)))
    for count, rows in ((2, slice(0, 2)), (2, [1]), (4, slice(0, 3)), (1, [0])):
        buffers.fill(count)
        found = buffers.of(rows)
        width = 1 if isinstance(rows, list) else rows.stop
        assert [b.shape for b in found] == [(width, *b.shape) for b in like]
        assert all((row == b).all() for rows_of, b in zip(found, like, strict=True) for row in rows_of)
    first = buffers.of(slice(0, 4))
    for b in first:
        b[1] += 1
    buffers.fill(3)  # as they are: there are enough
    again = buffers.of([1, 0])
    assert [(b[0] - own).unique().tolist() for b, own in zip(again, like, strict=True)] == [[1]] * len(like)
    assert all((b[1] == own).all() for b, own in zip(again, like, strict=True))


@pytest.mark.parametrize("name", ["one", "two", "a number"])
def test_rows_come_back_as_written_and_whole_numbers_are_rounded(name):
    like = FORMS[name]
    buffers = CohortBuffers(SimpleNamespace(buffers=like, params=torch.zeros(1)))
    width = sum(b.numel() for b in like)
    rows = torch.arange(3.0 * width).view(3, width) + 0.25
    buffers.write(rows)
    expected = rows.clone()
    if like[-1] is COUNT:
        expected[:, -1] = expected[:, -1].round()
    assert torch.equal(buffers.read(), expected)
    changed = [b + 1 for b in buffers.of([2, 0])]
    buffers.keep([2, 0], changed)
    assert torch.equal(buffers.read(), expected + torch.tensor([[1.0], [0.0], [1.0]]))
    buffers.keep(slice(0, 2), [b + 9 for b in buffers.of(slice(0, 2))])  # views are changed in place instead
    assert torch.equal(buffers.read(), expected + torch.tensor([[1.0], [0.0], [1.0]]))
