"""Rows in several pieces: the bits of the stacked matrix, whatever reads them."""

import errno
import os

import numpy as np
import pytest
import torch

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


@pytest.fixture
def small_blocks(monkeypatch):
    """Every table is a file, all rows are apart, and blocks have a few columns."""
    monkeypatch.setattr(client_rows, "IN_MEMORY", -1)
    monkeypatch.setattr(chunked_matrix, "LARGE", 0)
    monkeypatch.setattr(chunked_matrix, "SPAN", 8)
    monkeypatch.setattr(chunked_matrix, "NARROWEST", 2)


def test_a_table_in_a_file_remembers_what_one_in_memory_does(small_blocks, monkeypatch):
    in_file, generator = Table(torch.zeros(9)), np.random.default_rng(0)
    with monkeypatch.context() as patch:
        patch.setattr(client_rows, "IN_MEMORY", 2**30)
        in_memory = Table(torch.zeros(9))
        in_memory.write([3], torch.ones(1, 9))
    in_file.write([3], torch.ones(1, 9))
    for _ in range(12):
        clients = generator.choice(30, size=5, replace=False)
        rows = torch.from_numpy(generator.standard_normal((5, 9)).astype(np.float32))
        for table, room in ((in_file, -1), (in_memory, 2**30)):
            monkeypatch.setattr(client_rows, "IN_MEMORY", room)
            table.change(clients, lambda old, new: 0.5 * old + new, ChunkedMatrix([rows[:2], rows[2:]]))
    assert in_file.clients == in_memory.clients
    assert torch.equal(in_file.matrix, in_memory.matrix)
    everyone = range(31)
    assert torch.equal(in_file.rows(everyone), in_memory.rows(everyone))
    packed = in_file.state_dict()
    assert packed["rows"].untyped_storage().nbytes() == 4 * 9 * len(in_file)  # no spare rows in a checkpoint
    assert torch.equal(Table.from_state(packed).matrix, in_memory.matrix)


def test_a_table_that_outgrows_memory_moves_to_a_file(monkeypatch):
    monkeypatch.setattr(client_rows, "IN_MEMORY", 3 * 4 * 2)
    table, files, reserved = Table(torch.zeros(2)), [], os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *where: files.append(where[-1]) or reserved(*where))
    for client in range(20):
        table.write([client], torch.full((1, 2), float(client)))
        assert bool(files) == (client > 2)
        assert table.matrix.tolist() == [[float(c)] * 2 for c in range(client + 1)]
    assert files == [8 * rows for rows in (4, 6, 9, 13, 19, 28)]


def test_a_full_folder_is_named_with_its_remedy(small_blocks, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RaylflError, match=r"a matrix of 1 vectors, .*No space left on device\): set TMPDIR"):
        Table(torch.zeros(2)).write([0], torch.ones(1, 2))
