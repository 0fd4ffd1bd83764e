"""`python -m benchmarks.gpu` on the simulated device: every part runs, and its verdicts can fail."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from benchmarks.gpu import main
from tests.runtime import simulated


@pytest.fixture(scope="module")
def rows():
    """The rows from a separate process, because torch unregisters a device only when its process ends."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(simulated.gpu_rows).result()


def test_each_part_has_its_rows(rows):
    assert [(row["part"], row["result"]) for row in rows if row["part"] != "speed"] == [
        ("out of memory", "yes"),
        *[("against the host", "yes")] * 4,
    ]
    assert [row["case"] for row in rows if row["part"] == "speed"] == ["tiny, eager", "tiny, graph"]
    assert "ms a round" in rows[0]["detail"]


def test_four_of_twelve_clients_fit(rows):
    assert [row["detail"] for row in rows if row["part"] == "out of memory"] == ["3 fit"]


def test_without_a_gpu_the_command_says_so(capsys):
    assert main([]) == 2
    assert "no GPU here" in capsys.readouterr().out
