"""Rows of buffers: one, several or none, written, changed in place and read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raylfl.core.cohort_buffers import CohortBuffers
from raylfl.core.flat import FlatModule

MEAN, COUNT, TURN = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor(2**31 + 5), torch.tensor([1 + 2j])
FORMS = {"none": [], "one": [MEAN], "two": [MEAN, COUNT], "a number": [COUNT], "complex": [TURN, MEAN]}


def buffers_of(name: str, travels: list[str] | None = None) -> CohortBuffers:
    module = nn.Linear(1, 1)
    for k, value in enumerate(FORMS[name]):
        module.register_buffer(f"b{k}", value.clone())
    return CohortBuffers(FlatModule(module, torch.float32, torch.device("cpu"), travels=travels))


@pytest.mark.parametrize("name", FORMS)
def test_clients_begin_with_copies_of_the_modules_own_and_more_of_them_get_new_ones(name):
    like, buffers = FORMS[name], buffers_of(name)
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
    assert [(b[0] - own).flatten()[0].item() for b, own in zip(again, like, strict=True)] == [1] * len(like)
    assert all((b[1] == own).all() for b, own in zip(again, like, strict=True))


@pytest.mark.parametrize("name", ["one", "two", "a number", "complex"])
def test_rows_come_back_as_written_and_whole_numbers_are_rounded(name):
    like, buffers = FORMS[name], buffers_of(name, ["b0", "b1"])
    width = sum(b.numel() * (2 if b.is_complex() else 1) for b in like)
    rows = torch.arange(3.0 * width, dtype=buffers.packing.dtype).view(3, width) + 0.25
    buffers.write(rows)
    expected = rows.clone()
    if like[-1] is COUNT:
        expected[:, -1] = expected[:, -1].round()
    assert torch.equal(buffers.read(), expected)
    one = torch.view_as_real(torch.ones(1, dtype=torch.complex64)).flatten() if name == "complex" else torch.ones(1)
    added = torch.cat([one.to(rows.dtype), torch.ones(width - len(one), dtype=rows.dtype)])
    changed = [b + 1 for b in buffers.of([2, 0])]
    buffers.keep([2, 0], changed)
    assert torch.equal(buffers.read(), expected + torch.tensor([[1.0], [0.0], [1.0]]) * added)
    buffers.keep(slice(0, 2), [b + 9 for b in buffers.of(slice(0, 2))])  # views are changed in place instead
    assert torch.equal(buffers.read(), expected + torch.tensor([[1.0], [0.0], [1.0]]) * added)


def test_buffers_that_do_not_travel_begin_as_the_modules_own_in_every_task():
    buffers = buffers_of("two")
    rows = torch.arange(8.0).view(2, 4)
    for _ in range(2):
        buffers.write(rows)
        mean, count = buffers.of(slice(0, 2))
        assert torch.equal(mean.flatten(1), rows)
        assert count.tolist() == [2**31 + 5] * 2
        count += torch.tensor([1, 2])
        assert buffers.of([1])[1].tolist() == [2**31 + 7]
    assert torch.equal(buffers.read(), rows)
