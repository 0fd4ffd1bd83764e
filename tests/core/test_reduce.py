"""Fixed-order sums."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raylfl.core.reduce import BLOCK, finite_rows, tree_sum, weighted_sum


@given(st.integers(1, 33), st.integers(0, 100))
def test_the_tree_adds_up_to_the_sum_and_leaves_its_input_alone(count, seed):
    rows = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kept, c = rows.clone(), np.linspace(-1, 2, count)
    torch.testing.assert_close(tree_sum(rows), rows.sum(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weighted_sum(rows, c), torch.from_numpy(c) @ rows, rtol=1e-12, atol=1e-12)
    assert torch.equal(rows, kept)


def test_a_sum_has_the_bits_of_its_pieces_with_any_number_of_threads():
    rows, c = torch.randn(17, 6 * BLOCK + 5, generator=torch.Generator().manual_seed(0)), np.linspace(-1, 2, 17)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(torch.stack([tree_sum(rows), weighted_sum(rows, c)]))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[0][1], torch.cat([weighted_sum(piece, c) for piece in rows.split(1000, dim=1)]))


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 4), (2, 3, BLOCK)])
def test_a_sum_has_the_shape_of_its_rows(shape):
    rows, c = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64), [1.0, 10.0, -2.0]
    kept = rows.clone()
    torch.testing.assert_close(weighted_sum(rows, c), rows[0] + 10 * rows[1] - 2 * rows[2], rtol=1e-12, atol=1e-12)
    assert torch.equal(rows, kept)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_with_one_bad_entry_are_found_among_any_others(bad):
    rows = torch.full((4, 3, 5), 3e38)  # finite, though their sum is not
    assert finite_rows(rows).tolist() == [True] * 4
    rows[2, 1, 4] = bad
    assert finite_rows(rows).tolist() == [True, True, False, True]
    rows[2, 0, 0] = -bad  # inf - inf
    assert finite_rows(rows).tolist() == [True, True, False, True]
    assert finite_rows(torch.zeros(2, 0)).tolist() == [True, True]
    mixed = torch.tensor([[3e38, 3e38], [1.0, 2.0], [bad, 1.0]])  # the sum of the first overflows
    assert finite_rows(mixed).tolist() == [True, True, False]
    assert finite_rows(mixed[:2]).tolist() == [True, True]
    assert [finite_rows(row[None]).tolist() for row in mixed] == [[True], [True], [False]]
    assert {finite_rows(part).dtype for part in (mixed, mixed[:2], mixed[1:2])} == {torch.bool}


def test_nothing_has_no_sum():
    with pytest.raises(ValueError, match="no rows"):
        tree_sum(torch.zeros(0, 3))
