"""The time of a call: the shortest of several, in processor time."""

from __future__ import annotations

import time

from benchmarks.step_profile import TIMES, _shortest


def test_the_shortest_of_several_calls_is_taken():
    calls = []

    def work() -> None:
        calls.append(time.thread_time())
        while time.thread_time() < calls[-1] + (0.002 if len(calls) == 2 else 0.008):
            pass

    assert 0.002 <= _shortest(work) < 0.008
    assert len(calls) == TIMES
