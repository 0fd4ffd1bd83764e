"""Reports of clients' work, joined, cut and looked up, against plain lists."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from raylfl.core.oracle import GradientMode
from raylfl.core.partial_sums import SumPlan
from raylfl.runtime.workers.task import ClientReports, Task, TaskResult, added_up, order_of

PLAIN, QUICK = GradientMode("autograd", "it was asked for"), GradientMode("recorded", "it was not")


def reports(clients, **changes):
    """Reports whose loss is ten times the client, with one logged value."""
    made = ClientReports.of(clients, loss=np.array(clients) * 10.0, gradients=3, finite=True)
    made.logged = {"a": np.array(clients) + 0.5}
    made.ways = Counter({PLAIN: len(clients)})
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_the_load_of_a_task_is_its_number_of_sample_gradients():
    assert Task(0, (4, 7), (2, 5), (10, 3), (2.0, 5.0), 0.1).load == 2 * 10 + 5 * 3


@pytest.mark.parametrize(
    ("clients", "order"),
    [([5, 9], [1, 0]), ([9, 5], None), ([5, 2, 9], [2, 0, 1]), ([9, 2, 5], [0, 2, 1]), ([7], None), ([], None)],
)
def test_clients_are_put_into_the_order_of_a_list(clients, order):
    found = order_of(clients, np.array([9, 5, 7, 2]))
    assert (None if found is None else found.tolist()) == order
    whole = reports([9, 5, 2]).in_order(np.array([2, 7, 9, 5]))
    assert whole.rows["client"].tolist() == [2, 9, 5]
    assert whole.logged["a"].tolist() == [2.5, 9.5, 5.5]


def test_square_norms_are_looked_up_by_client():
    whole = reports([4, 2, 9])
    whole.rows["square"] = [16.0, 4.0, 81.0]
    assert whole.squares(np.array([9, 4])).tolist() == [81.0, 16.0]


def test_missing_columns_are_0_and_failed_clients_have_no_loss():
    rows = ClientReports.of([3, 5], last_loss=[1.0, 2.0]).rows
    assert rows["client"].tolist() == [3, 5]
    assert rows["last_loss"].tolist() == [1.0, 2.0]
    assert not rows["loss"].any()
    assert not rows["finite"].any()
    failed = ClientReports.failed([3, 5], "why")
    assert np.isnan(failed.rows["loss"]).all()
    assert np.isnan(failed.rows["last_loss"]).all()
    assert failed.errors == {3: "why", 5: "why"}
    assert failed.bad["client"].tolist() == [3, 5]


def test_joined_reports_keep_their_order_and_what_only_some_of_them_logged():
    first = reports([4, 2], logged={"a": np.array([1.0, 2.0])}, errors={2: "first"})
    second = reports([9], logged={"b": np.array([7.0])}, errors={9: "second"}, ways=Counter({PLAIN: 2, QUICK: 5}))
    whole = ClientReports.joined([first, second])
    assert whole.rows["client"].tolist() == [4, 2, 9]
    np.testing.assert_array_equal(whole.logged["a"], [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(whole.logged["b"], [np.nan, np.nan, 7.0])
    assert whole.errors == {2: "first", 9: "second"}
    assert whole.ways == {PLAIN: 4, QUICK: 5}
    assert len(ClientReports.joined([]).rows) == 0


@pytest.mark.parametrize("wanted", [[4, 2, 9], [2, 9], [4], []])
def test_losses_and_logs_of_some_clients_come_in_the_order_of_the_reports(wanted):
    whole = reports([4, 2, 9])
    expected = [c for c in (4, 2, 9) if c in wanted]
    assert whole.losses(np.array(wanted, dtype=np.int64)).tolist() == [10.0 * c for c in expected]
    assert whole.logs(np.array(wanted, dtype=np.int64))["a"].tolist() == [c + 0.5 for c in expected]


def test_reports_that_are_not_finite_are_bad_and_errors_make_a_failed_result():
    whole = reports([4, 2, 9])
    whole.rows["finite"] = [True, False, True]
    assert whole.bad["client"].tolist() == [2]
    assert not TaskResult(whole).failed
    assert TaskResult(ClientReports.failed([4, 2, 9], "why")).failed


@pytest.mark.parametrize("each", [False, True])
def test_uploads_that_were_added_up_are_kept_as_their_sum_only(each):
    """Client 9, whose task failed, is left out; the upload `own` is in no sum and stays as rows."""
    clients, rows = np.array([2, 4, 7]), torch.arange(15.0).reshape(3, 5)
    plan = SumPlan.of(clients, {"total": ("up", np.array([1.0, 10.0, 100.0]))}, torch.float32)
    results = [
        TaskResult(ClientReports.failed([9], "why")),
        TaskResult(reports([4]), {"up": rows[1:2], "own": rows[1:2]}),
        TaskResult(reports([2, 7]), {"up": rows[[0, 2]], "own": rows[[0, 2]]}),
    ]
    failed, first, second = pickle.loads(pickle.dumps(added_up(results, plan, each)))
    assert torch.equal(plan.sums([first.sums])["total"], torch.tensor([1.0, 10.0, 100.0]) @ rows)
    assert {name: own.tolist() for name, own in first.uploads.items()} == {"up": [], "own": rows[1:2].tolist()}
    assert {name: own.tolist() for name, own in second.uploads.items()} == {"up": [], "own": rows[[0, 2]].tolist()}
    assert second.uploads["up"].shape == (0, 5)  # the size of an upload is still known
    assert not failed.sums
    assert not second.sums
