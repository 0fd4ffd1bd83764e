"""The operations on a block of nodes, against the same rows taken one by one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raylfl.algorithms.dsgd import DSGD
from raylfl.algorithms.gradient_tracking import GradientTracking
from raylfl.experiment.parts import BUFFERS
from raylfl.runtime.workers.nodes import (
    MixJob,
    OperationContext,
    PublishJob,
    Spread,
    measure,
    mix,
    publish,
    work,
)
from raylfl.runtime.workers.task import ClientReports, Task, TaskResult

BLOCK = {"x": torch.tensor([[1.0, 2.0], [3.0, 5.0], [8.0, 4.0]])}


def task(*clients):
    ones = (1,) * len(clients)
    return Task(0, clients, ones, ones, tuple(map(float, ones)), 0.1)


def moved(task, broadcast, states):
    """The result of local work that adds ten times its client's number to the rows of each client."""
    rows = states["x"] + 10.0 * torch.tensor(task.clients)[:, None]
    uploads = {"x": rows, BUFFERS: rows[:, :1]} if 5 not in task.clients else {}
    reports = ClientReports.of(task.clients) if uploads else ClientReports.failed(task.clients, "lost")
    return TaskResult(reports, uploads)


def test_each_task_works_on_its_own_rows_and_each_block_gets_what_it_needs():
    """Clients 1 and 2 are the rows 2 and 0 of the block."""
    needed = np.array([1]), np.array([0, 1])
    sending = PublishJob(np.array([2, 0]), np.array([0, 1]), needed)
    report, rows, *pieces = work(OperationContext(DSGD(), moved), replace(sending, tasks=(task(1), task(2))), {}, BLOCK)
    assert rows["x"].tolist() == [[18.0, 14.0], [21.0, 22.0]]
    assert [piece["x"].tolist() for piece in pieces] == [[[21.0, 22.0]], [[18.0, 14.0], [21.0, 22.0]]]
    assert (report.floats, report.sizes) == (2, (8, 16))
    assert report.result.uploads[BUFFERS].tolist() == [[18.0], [21.0]]
    assert report.result.reports.rows["client"].tolist() == [1, 2]


def test_a_failed_task_has_zeros_and_nothing_is_sent_where_all_failed():
    sending = PublishJob(np.array([2, 0, 1]), np.array([0, 1, 2]), (np.array([0]),))
    report, rows, piece = work(
        OperationContext(DSGD(), moved), replace(sending, tasks=(task(5, 3), task(1))), {}, BLOCK
    )
    assert rows["x"].tolist() == [[0.0, 0.0], [0.0, 0.0], [13.0, 15.0]]
    assert piece["x"].tolist() == [[0.0, 0.0]]
    assert sorted(report.result.reports.errors) == [3, 5]
    report, rows, piece = work(
        OperationContext(DSGD(), moved), replace(sending, tasks=(task(5), task(5, 3))), {}, BLOCK
    )
    assert (rows, piece, report.floats, report.sizes) == ({}, {}, 0, ())


def test_nothing_is_published_where_no_block_needs_it():
    assert publish(OperationContext(DSGD(), moved), PublishJob(np.arange(3), None, ()), BLOCK, {}) == ((),)


@pytest.mark.parametrize("at", [[0, 1, 2], [2, 0], [1], []])
def test_new_rows_take_the_places_of_their_nodes_and_the_others_stay(at):
    at = np.array(at, dtype=np.int64)
    new = torch.arange(10.0, 10.0 + 2 * len(at)).view(-1, 2)
    expected = BLOCK["x"].clone()
    for k, node in enumerate(at):
        expected[node] = new[k]
    job = MixJob(at, np.arange(len(at)), (), None)
    measures, block = mix(OperationContext(DSGD(), moved), job, BLOCK, {"x": new})
    assert torch.equal(block["x"], expected)
    assert torch.equal(measures.x.total, expected.sum(0))


def test_a_spread_is_the_sum_of_rows_and_of_their_squared_distances():
    total, squares = Spread.of(BLOCK["x"])
    assert total.tolist() == [12.0, 11.0]
    assert squares == pytest.approx(float(((BLOCK["x"] - BLOCK["x"].mean(0)) ** 2).sum()), rel=1e-6)


def test_measures_are_of_the_methods_parameters_and_tracked_rows():
    optimum, y = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.eye(3, 2)
    found = measure(GradientTracking(), {**BLOCK, "y": y}, optimum)
    assert (found.nodes, found.parameters) == (3, None)
    assert found.tracked.total.tolist() == [1.0, 1.0]
    assert found.worst == pytest.approx(65**0.5)
    own = SimpleNamespace(parameters=lambda rows: 2 * rows["x"], tracked=None)
    found = measure(own, BLOCK, None)
    assert (found.worst, found.tracked) == (None, None)
    assert found.parameters.total.tolist() == [24.0, 22.0]
    assert found.x.total.tolist() == [12.0, 11.0]
