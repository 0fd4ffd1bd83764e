"""Products of rows are float64 sums for any dtype of the rows and any number of cores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.core import threads
from raylfl.solvers import gram
from raylfl.solvers.gram import inner_products_f64


def test_products_are_float64_sums_of_float32_entries():
    """Entries near 1e4 that cancel: their float32 dot product would be off by far more than 1e-9."""
    torch.manual_seed(0)
    rows, matrix = torch.randn(3, 40_000) + 100, torch.randn(5, 40_000)
    expected = (rows.double()[:, None, :] * matrix.double()[None]).sum(dim=2)
    torch.testing.assert_close(inner_products_f64(rows, matrix), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_have_the_same_bits_on_any_number_of_cores(monkeypatch, dtype):
    rows, matrix = torch.randn(3, 20_000, dtype=dtype), torch.randn(150, 20_000, dtype=dtype)
    bits = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "cores", lambda count=count: count)
        bits.append(inner_products_f64(rows, matrix))
    assert torch.equal(bits[0], bits[1])
    assert torch.equal(bits[0], bits[2])
    torch.testing.assert_close(bits[0], rows.double() @ matrix.double().T, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("spans", [1, 3, 100])
def test_some_rows_of_both_in_any_parts(monkeypatch, spans):
    rows, matrix = torch.randn(3, 1_000), torch.randn(40, 1_000)
    monkeypatch.setattr(gram, "COLUMNS", 90)
    monkeypatch.setattr(gram, "ROWS", 7)
    monkeypatch.setattr(gram, "SPANS", spans)
    monkeypatch.setattr(gram, "NARROWEST", 200)
    some, which = np.array([2, 0]), np.array([39, 0, 5, *range(10, 30)])
    expected = rows.double() @ matrix.double().T
    torch.testing.assert_close(inner_products_f64(rows, matrix), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        inner_products_f64(rows, matrix, None, which), expected[:, which], rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        inner_products_f64(rows, matrix, some, which), expected[some][:, which], rtol=1e-12, atol=1e-12
    )
    assert inner_products_f64(rows, matrix, None, which[:0]).shape == (3, 0)
    assert inner_products_f64(rows, matrix, some[:0], which).shape == (0, 23)
