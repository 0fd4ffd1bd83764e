"""The min-norm point of a hull over successive calls, against the exact point of all rows; products of rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raylfl.core import threads
from raylfl.errors import NonFinite
from raylfl.solvers import gram, working_set
from raylfl.solvers.gram import inner_products_f64
from raylfl.solvers.working_set import WorkingSet, min_norm_working_set
from tests.oracles.minnorm import min_norm_weights

DTYPES = [torch.float32, torch.float64]
TOL = {torch.float32: 1e-6, torch.float64: 1e-12}


def ask(matrix, known=None, changed=None, tol=None, normalize=False):
    """`min_norm_working_set` of all rows; at first, all of them are new."""
    lengths = torch.linalg.vector_norm(matrix, dim=1, dtype=torch.float64).numpy()
    changed = np.arange(len(matrix)) if changed is None else changed
    return min_norm_working_set(
        matrix, lengths, known or WorkingSet.none(), changed, tol or TOL[matrix.dtype], normalize
    )


def assert_nearest(found, matrix, normalize=False):
    """Checks that v has the length of the exact solution, is the weighted sum, and no other row would shorten it."""
    rows = matrix.double().numpy()
    lengths = np.linalg.norm(rows, axis=1)
    there = lengths > 0
    vectors = rows[there] / lengths[there, None] if normalize else rows[there]
    v, tol = found.point.numpy(), TOL[matrix.dtype]
    exact = np.linalg.norm(min_norm_weights(vectors) @ vectors)
    size = float(found.weights @ lengths)
    assert np.linalg.norm(v) <= exact * (1 + 2 * tol) + max(tol, 1e-12) * size
    np.testing.assert_allclose(v, found.weights @ rows, rtol=0, atol=1e-12 * size)
    assert (found.weights >= 0).all()
    assert not found.weights[~there].any()
    assert found.weights @ (lengths if normalize else np.ones(len(rows))) == pytest.approx(1.0, abs=1e-12)
    if exact > 1e-3 * size:
        tol += 10 * np.finfo(np.float64).eps * (size / exact) ** 2  # the rounding error of products of such rows
        assert (vectors @ v).min() >= (v @ v) * (1 - 2 * tol)
        assert found.gap <= tol


def drifting(rng, n, d, rounds, dtype, zeros=0.0):
    """(matrix, rows that changed) of each round: rows near a few directions appear, and some are replaced."""
    directions = rng.normal(size=(4, d))
    matrix, seen = np.zeros((0, d)), 0
    for _ in range(rounds):
        new = min(n - seen, int(rng.integers(1, 6)))
        matrix = np.vstack([matrix, np.zeros((new, d))])
        changed = np.union1d(rng.integers(0, max(seen, 1), size=min(seen, 3)), np.arange(seen, seen + new))
        changed = changed.astype(np.int64)
        seen += new
        fresh = directions[rng.integers(0, 4, len(changed))] + rng.normal(size=(len(changed), d))
        matrix[changed] = fresh * rng.uniform(0.1, 2.0, (len(changed), 1)) * (rng.random((len(changed), 1)) >= zeros)
        yield torch.from_numpy(matrix.copy()).to(dtype), changed


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 10**6), d=st.sampled_from([1, 3, 12, 60]), zeros=st.sampled_from([0.0, 0.3]))
@settings(max_examples=8, deadline=None)
def test_rows_come_and_change(dtype, normalize, seed, d, zeros):
    known = WorkingSet.none()
    for matrix, changed in drifting(np.random.default_rng(seed), 40, d, 12, dtype, zeros):
        found = ask(matrix, known, changed, normalize=normalize)
        known = found.members
        if matrix.any():
            assert_nearest(found, matrix, normalize)
        else:
            assert not found.point.any()
        rows = matrix[torch.from_numpy(known.rows)].double()
        np.testing.assert_allclose(known.gram, rows @ rows.T, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(known.gram, known.gram.T)


@pytest.mark.parametrize("start", [[0], [7], [3, 150]])
def test_all_needed_rows_join_any_set_to_start_from(start):
    """The known rows are among the longest; the needed ones are found among 200."""
    rng = np.random.default_rng(1)
    matrix = torch.from_numpy(rng.normal(size=(200, 30)) + 4.0 * (np.arange(200) < 180)[:, None])
    found = ask(matrix, WorkingSet.none().joined(matrix, np.array(start)), np.zeros(0, dtype=np.int64))
    assert_nearest(found, matrix)
    assert len(found.members.rows) < 40


def test_nothing_known_and_nothing_changed_is_solved_all_the_same():
    matrix = torch.tensor([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    found = ask(matrix, changed=np.zeros(0, dtype=np.int64))
    np.testing.assert_allclose(found.weights, [0.0, 0.2, 0.8], atol=1e-14)


@pytest.mark.parametrize("cycles", [0, 1, 2])
def test_the_last_cycle_is_over_all_rows(monkeypatch, cycles):
    monkeypatch.setattr(working_set, "CYCLES", cycles)
    matrix = torch.from_numpy(np.random.default_rng(2).normal(size=(50, 80)) + 0.3)
    changed = np.arange(50) if cycles == 0 else np.array([4])
    assert_nearest(ask(matrix, changed=changed), matrix)


def test_members_that_are_0_now_are_none_any_more():
    matrix = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]], dtype=torch.float64)
    known = ask(matrix).members
    assert {0, 1} <= set(known.rows)
    matrix[0] = 0.0
    found = ask(matrix, known, np.array([0]))
    np.testing.assert_array_equal(found.weights, [0.0, 1.0, 0.0])
    matrix[:] = 0.0
    found = ask(matrix, found.members, np.arange(3))
    assert not found.weights.any()
    assert not found.point.any()
    assert len(found.members.rows) == 0


def test_rounding_in_the_rows_own_dtype_hides_no_row():
    """Row 2 shortens v = (row 0 + row 1) / 2 by its last entries only; its float32 product with v says nothing, for its
    first entries are large and cancel.
    """
    torch.manual_seed(0)
    matrix = torch.zeros(3, 3_000)
    matrix[0, 0] = matrix[1, 1] = 1.0
    matrix[:2, 2:2_002] = 0.01
    matrix[2, 2:1_002], matrix[2, 1_002:2_002] = 1e4, -1e4
    matrix[2, 2:2_002] = matrix[2, 2:2_002][torch.randperm(2_000)]
    matrix[2, 0] = 0.55
    known = WorkingSet.none().joined(matrix, np.arange(2))
    v = (matrix[0] + matrix[1]).double() / 2
    assert 0 < float(matrix[2].double() @ v) < float(v @ v)
    found = ask(matrix, known, np.zeros(0, dtype=np.int64))
    assert found.weights[2] > 0
    assert_nearest(found, matrix)


def test_the_first_look_is_off_by_no_more_than_its_bound():
    torch.manual_seed(0)
    matrix, point = torch.randn(20, 50_000) + 3.0, torch.rand(50_000, dtype=torch.float64)
    exact = (matrix.double() @ point).numpy()
    lengths = torch.linalg.vector_norm(matrix, dim=1, dtype=torch.float64).numpy()
    limits = exact.copy()
    limits[::2] = np.nextafter(limits[::2], np.inf)
    near, slopes = working_set._near(matrix, point, np.arange(20), limits, lengths)
    assert near.all()
    np.testing.assert_allclose(slopes, exact, rtol=1e-12)
    far, _ = working_set._near(matrix, point, np.arange(20), 0.5 * limits, lengths)
    assert not far.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_are_the_same_on_any_number_of_cores(monkeypatch, dtype):
    matrix = torch.from_numpy(np.random.default_rng(3).normal(size=(150, 20_000)) + 0.01).to(dtype)
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "cores", lambda count=count: count)
        with threads.one_thread():  # as around every server step
            found.append(ask(matrix, changed=np.arange(0, 150, 9)))
    for other in found[1:]:
        assert torch.equal(other.point, found[0].point)
        np.testing.assert_array_equal(other.weights, found[0].weights)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_refused(bad):
    matrix = torch.ones(3, 4, dtype=torch.float64)
    matrix[1, 2] = bad
    with pytest.raises(NonFinite, match="non-finite"):
        ask(matrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_float64_sums_with_the_same_bits_on_any_number_of_cores(monkeypatch, dtype):
    """Entries near 100 whose products cancel: float32 dot products would be off by far more than 1e-9."""
    torch.manual_seed(0)
    rows, matrix = torch.randn(3, 20_000, dtype=dtype) + 100, torch.randn(150, 20_000, dtype=dtype)
    bits = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "cores", lambda count=count: count)
        bits.append(inner_products_f64(rows, matrix))
    assert torch.equal(bits[0], bits[1])
    assert torch.equal(bits[0], bits[2])
    torch.testing.assert_close(bits[0], rows.double() @ matrix.double().T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spans", [1, 3, 100])
def test_some_rows_of_both_in_any_parts(monkeypatch, spans):
    rows, matrix = torch.randn(3, 1_000), torch.randn(40, 1_000)
    monkeypatch.setattr(gram, "COLUMNS", 90)
    monkeypatch.setattr(gram, "ROWS", 7)
    monkeypatch.setattr(gram, "SPANS", spans)
    monkeypatch.setattr(gram, "NARROWEST", 200)
    some, which = np.array([2, 0]), np.array([39, 0, 5, *range(10, 30)])
    expected = rows.double() @ matrix.double().T
    for a, b in ((None, None), (None, which), (some, which)):
        part = expected[slice(None) if a is None else a][:, slice(None) if b is None else b]
        torch.testing.assert_close(inner_products_f64(rows, matrix, a, b), part, rtol=1e-12, atol=1e-12)
    assert inner_products_f64(rows, matrix, None, which[:0]).shape == (3, 0)
    assert inner_products_f64(rows, matrix, some[:0], which).shape == (0, 23)
