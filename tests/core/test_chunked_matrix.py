"""Rows in several pieces: the bits of the stacked matrix, whatever reads them."""

import errno
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raylfl.core import chunked_matrix, client_rows
from raylfl.core.chunked_matrix import ChunkedMatrix, as_matrix, columns, norms, select
from raylfl.core.client_rows import Table
from raylfl.core.reduce import tree_sum, weighted_sum
from raylfl.diagnostics.updates import consensus_error, drift
from raylfl.errors import RaylflError
from raylfl.solvers.gram import inner_products_f64

WEIGHTS = np.linspace(0.1, 1.0, 7)


def matrix(width, seed=0):
    return torch.randn(7, width, generator=torch.Generator().manual_seed(seed))


def in_pieces(rows):
    return ChunkedMatrix([rows[:1], rows[1:4], rows[4:]])


@pytest.fixture
def never_whole(monkeypatch):
    def refused(matrix):
        raise AssertionError("the whole matrix was made")

    monkeypatch.setattr(ChunkedMatrix, "whole", refused)


@pytest.mark.parametrize("width", [3, 40_003, 300_001])
@pytest.mark.parametrize(
    "read",
    [
        tree_sum,
        lambda rows: weighted_sum(rows, WEIGHTS),
        lambda rows: weighted_sum(select(rows, [5, 0, 3]), WEIGHTS[:3]),
        lambda rows: chunked_matrix.elementwise(lambda r: (r.square() - r[0],), rows)[0],
        lambda rows: inner_products_f64(rows, rows),
        lambda rows: inner_products_f64(rows, rows, np.array([2, 6]), np.array([0, 1, 6])),
        lambda rows: norms(rows),
        lambda rows: norms(rows, torch.float64),
        lambda rows: select(rows, []),
        lambda rows: columns(rows, slice(1, 3)),
        lambda rows: torch.tensor([drift(rows, WEIGHTS), consensus_error(rows, WEIGHTS)]),
    ],
)
def test_readers_give_the_bits_of_the_whole_matrix_and_never_make_it(read, width, never_whole):
    rows = matrix(width)
    expected, found = read(rows), read(in_pieces(rows))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(found, expected)


def test_any_other_operation_gets_a_tensor():
    rows = matrix(5)
    ours = in_pieces(rows)
    assert isinstance(ours, torch.Tensor)
    assert (len(ours), ours.shape, ours.dtype, ours.ndim) == (7, rows.shape, rows.dtype, 2)
    assert torch.equal(ours * 2 + ours.mean(dim=0), rows * 2 + rows.mean(dim=0))
    assert torch.equal(ours[torch.tensor([4, 0])], rows[[4, 0]])
    assert torch.equal(torch.stack(list(ours)), rows)
    assert np.array_equal(ours.numpy(), rows.numpy())
    assert ours.tolist() == rows.tolist()
    assert torch.equal(torch.linalg.vector_norm(ours, dim=1), torch.linalg.vector_norm(rows, dim=1))


def test_new_tensors_read_no_row(never_whole):
    assert in_pieces(matrix(5)).new_zeros(2, 3).tolist() == [[0.0] * 3] * 2


def test_the_whole_matrix_is_made_once():
    ours = in_pieces(matrix(5))
    assert torch.equal(ours + ours, 2 * ours)
    assert ours.whole() is ours.whole()


def test_only_large_matrices_in_several_pieces_stay_apart(monkeypatch):
    row, wide = torch.ones(1, 4), torch.ones(1, 8)
    monkeypatch.setattr(chunked_matrix, "LARGE", 32)
    found = as_matrix([row, row[:0], 2 * row])
    assert isinstance(found, ChunkedMatrix)
    assert columns(select(found, [1, 0]), slice(0, 1)).tolist() == [[2.0], [1.0]]
    for pieces in ([wide], [wide, wide[:0]], [row[:, :3], row[:, :3]], [row[:0], row[:0]], [torch.ones(1, 8, 8)] * 2):
        assert type(as_matrix(pieces)) is torch.Tensor
        assert torch.equal(as_matrix(pieces), torch.cat(pieces))


SMALL = {(client_rows, "IN_MEMORY"): -1, **{(chunked_matrix, name): 0 for name in ("LARGE", "SPAN")}}


@pytest.mark.parametrize("in_file", [False, True])
@given(writes=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True), max_size=12))
def test_a_table_remembers_the_last_row_of_each_client(in_file, writes):
    """In a file, with all rows apart and blocks of two columns, or in memory; every other write depends on old rows."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in SMALL.items() if in_file else ():
            patch.setattr(module, name, value)
        patch.setattr(chunked_matrix, "NARROWEST", 2)
        table, expected = Table(torch.zeros(9)), {}
        for k, clients in enumerate(writes):
            rows = torch.tensor(clients)[:, None] + torch.arange(9.0) + k
            if k % 2:
                table.change(clients, lambda old, new: 0.5 * old + new, as_matrix(rows.split(1)))
                rows = rows + torch.stack([0.5 * expected.get(c, torch.zeros(9)) for c in clients])
            else:
                table.write(clients, rows)
            expected |= dict(zip(clients, rows, strict=True))
        everyone = torch.stack([expected.get(c, torch.zeros(9)) for c in range(13)])
        assert torch.equal(table.rows(range(13)), everyone)
        assert table.clients == list(expected)
        assert torch.equal(table.matrix[table.positions(table.clients)], everyone[table.clients])
        packed = table.state_dict()
        assert packed["rows"].untyped_storage().nbytes() == 4 * 9 * len(table)  # no spare rows in a checkpoint
        again = Table.from_state(packed)
        assert again.clients == table.clients
        assert torch.equal(again.matrix, table.matrix)


def test_a_table_that_outgrows_memory_moves_to_a_file(monkeypatch):
    monkeypatch.setattr(client_rows, "IN_MEMORY", 3 * 4 * 2)
    table, files, reserved = Table(torch.zeros(2)), [], os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *where: files.append(where[-1]) or reserved(*where))
    for client in range(20):
        table.write([client], torch.full((1, 2), float(client)))
        assert bool(files) == (client > 2)
        assert table.matrix.tolist() == [[float(c)] * 2 for c in range(client + 1)]
    assert files == [8 * rows for rows in (4, 6, 9, 13, 19, 28)]


def test_a_full_folder_is_named_with_its_remedy(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(client_rows, "IN_MEMORY", -1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RaylflError, match=r"a matrix of 1 vectors, .*No space left on device\): set TMPDIR"):
        Table(torch.zeros(2)).write([0], torch.ones(1, 2))
