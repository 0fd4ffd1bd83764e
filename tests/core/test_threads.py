"""Pieces of one computation on several threads."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from raylfl.core import threads
from raylfl.core.threads import cores, on_all_cores


@pytest.fixture(params=[1, 3])
def count(request, monkeypatch):
    """Pretends that the machine has this many cores."""
    monkeypatch.setattr(threads, "cores", lambda: request.param)
    return request.param


def test_results_come_in_the_order_of_the_pieces_and_errors_in_the_caller(count):
    assert on_all_cores(lambda k: k * k, range(50)) == [k * k for k in range(50)]
    assert on_all_cores(lambda k: k, []) == []
    with pytest.raises(ZeroDivisionError):
        on_all_cores(lambda k: 1 // k, [1, 0, 2])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_only_cores_that_this_process_may_use_count():
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(usual)])
    try:
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, usual)
    assert cores() == len(usual)


def test_several_cores_are_several_threads_each_piece_the_work_of_one(count):
    meeting = threading.Barrier(count)
    assert len(set(on_all_cores(lambda k: meeting.wait(timeout=60), range(count)))) == count
    assert count == 1 or set(on_all_cores(lambda k: torch.get_num_threads(), range(4))) == {1}


def test_a_thread_whose_work_starts_late_keeps_its_limit():
    """The main thread sets other numbers before the thread's start, and before its first computation."""
    before, started, go = torch.get_num_threads(), threading.Event(), threading.Event()
    torch.set_num_threads(2)

    def work() -> int:
        threads.limit_threads(1)
        started.set()
        go.wait(60)
        torch.ones(100_000) + 1
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(work)
        started.wait(60)
        torch.set_num_threads(3)
        try:
            go.set()
            assert found.result() == 1
        finally:
            torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_its_own_threads(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 2)
    assert on_all_cores(abs, [-1, -2]) == [1, 2]
    if (child := os.fork()) == 0:
        os._exit(0 if on_all_cores(abs, [-1, -2]) == [1, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
