"""Weighted sums whose rows are divided among workers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raylfl.core.partial_sums import SumPlan, add_up, columns_of, depth_first, in_subtrees, side_by_side
from raylfl.core.reduce import BLOCK, square_norms, tree_sum, weighted_sum


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 6))
def test_any_division_of_a_cohort_has_the_bits_of_the_whole_sum(seed, received, workers):
    """Random cohorts, some uploads lost, any clients at any worker, in any number of tasks."""
    rng = np.random.default_rng(seed)
    count, width = received + int(rng.integers(6)), int(rng.choice([1, 50, 3000, 20_000]))
    dtype = torch.float32 if seed % 2 else torch.float64
    rows, clients = torch.from_numpy(rng.normal(size=(count, width))).to(dtype), rng.permutation(100)[:count]
    arrived, c = np.sort(rng.permutation(count)[:received]), rng.normal(size=received)
    plan = SumPlan.of(clients[arrived], {"a": ("up", c), "b": ("up", np.ones(received)), "again": ("up", c)}, dtype)
    assert len(plan.terms) == 2
    worker, parts = rng.integers(workers, size=count), []
    for w in range(workers):
        mine = np.flatnonzero(worker == w)
        tasks = np.array_split(mine, 1 + int(rng.integers(3)))
        parts.append(plan.parts(clients[mine].tolist(), [{"up": rows[task]} for task in tasks]))
    sums = plan.sums(parts)
    assert torch.equal(sums["a"], weighted_sum(rows[arrived], c))
    assert torch.equal(sums["b"], tree_sum(rows[arrived]))
    assert sums["again"] is sums["a"]


@pytest.mark.parametrize(("count", "workers", "vectors"), [(10, 1, 1), (10, 2, 4), (64, 4, 4), (100, 2, 6), (5, 5, 5)])
def test_neighbours_in_depth_first_order_send_few_vectors(count, workers, vectors):
    plan = SumPlan.of(np.arange(count), {"a": ("up", np.ones(count))}, torch.float32)
    runs = np.array_split(np.argsort(depth_first(count)), workers)
    parts = [plan.parts(run.tolist(), [{"up": torch.ones(len(run), 2)}]) for run in runs]
    assert sum(len(sums) for (sums,) in parts) == vectors
    assert sum(plan.vectors([*run.tolist(), -1]) for run in runs) == vectors  # client -1 sends nothing
    assert plan.sums(parts)["a"].tolist() == [count, count]


@pytest.mark.parametrize(
    ("count", "tasks", "workers", "most"), [(40, 4, 2, 2), (1000, 8, 2, 6), (64, 8, 4, 1), (7, 4, 2, 2)]
)
def test_vectorised_tasks_of_a_worker_add_up_to_few_vectors(count, tasks, workers, most):
    rows = in_subtrees(count, tasks)
    assert sorted(np.concatenate(rows).tolist()) == list(range(count))
    assert {len(own) for own in rows} <= {count // tasks, -(-count // tasks)}
    plan = SumPlan.of(np.arange(count), {"a": ("up", np.ones(count))}, torch.float32)
    shares = np.array_split(np.arange(tasks), workers)
    assert max(plan.vectors(np.concatenate([rows[k] for k in share]).tolist()) for share in shares) == most


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 40), st.integers(1, 3000))
def test_pieces_of_columns_completed_apart_have_the_bits_of_the_whole_sum(seed, pieces, count, width):
    """Two parts of a cohort, joined piece by piece, also if there are more pieces than columns."""
    rng = np.random.default_rng(seed)
    rows, mine = torch.from_numpy(rng.normal(size=(count, width))).float(), rng.random(count) < 0.5
    plan = SumPlan.of(np.arange(count), {"a": ("up", c := rng.normal(size=count))}, torch.float32)
    parts = [plan.parts(np.flatnonzero(own).tolist(), [{"up": rows[own]}]) for own in (mine, ~mine)]
    apart = [add_up([columns_of(part, k, pieces) for part in parts], count) for k in range(pieces)]
    assert torch.equal(plan.sums([side_by_side(apart)])["a"], weighted_sum(rows, c))


def test_sums_replace_their_uploads_and_all_uploads_where_nothing_was_received():
    one, none = np.ones(1), np.arange(0)
    plan = SumPlan.of(np.arange(1), {"a": ("up", one), "b": ("up", one), "c": ("up", 2 * one)}, torch.float32)
    assert [plan.replaces(name) for name in ("up", "a", "other")] == [True, False, False]
    assert SumPlan.of(none, {}, torch.float32).replaces("other")
    assert (len(plan.terms), plan.term_of) == (2, {"a": 0, "b": 0, "c": 1})


def test_a_part_that_is_missing_is_noticed():
    plan = SumPlan.of(np.arange(4), {"a": ("up", np.ones(4))}, torch.float32)
    with pytest.raises(AssertionError, match="leave"):
        plan.sums([plan.parts([0, 1, 3], [{"up": torch.ones(3, 2)}])])


@pytest.mark.parametrize("width", [1, BLOCK - 1, BLOCK, 3 * BLOCK + 7])
def test_a_square_norm_has_the_same_bits_beside_any_other_rows(width):
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    together = square_norms(rows)
    assert together.tolist() == [square_norms(row[None])[0] for row in rows]
    assert together == pytest.approx(rows.double().square().sum(dim=1).numpy(), rel=1e-5)
