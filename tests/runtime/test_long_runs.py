"""Six hundred rounds need no more at their end than after their warm-up: memory, file handles, checkpoints, objects."""

import ctypes
import gc
from contextlib import suppress

import psutil
import pytest

import raylfl
from tests.runtime.tiny import TINY

WARM_UP, ROUNDS = 200, 600
MOST_GROWTH = 2 * 2**20  # bytes of resident memory in 400 rounds: a leak of one update a round would be 0.2 kB


@pytest.mark.exhaustive
def test_hundreds_of_rounds_grow_nothing(runs):
    """The run has client states, checkpoints and evaluations; `make soak` does the same on Ray."""
    process, seen = psutil.Process(), []

    def watch(progress):
        if progress.metrics["round"] + 1 in (WARM_UP, ROUNDS):
            gc.collect()
            with suppress(OSError, AttributeError):  # with glibc, free memory within the heap does not count
                ctypes.CDLL("libc.so.6").malloc_trim(0)
            held = process.memory_info().rss, process.num_fds(), len(gc.get_objects())
            seen.append((*held, files(progress.run_dir), written(progress.run_dir)))

    light = ["eval.every=50", "checkpoint.every=20", f"rounds={ROUNDS}", "model.init_args={norm: false, dropout: 0.0}"]
    raylfl.run({**TINY, "algorithm": {"name": "focus"}}, [*runs, *light], watch)
    (rss, handles, objects, before, rows), (rss_end, handles_end, objects_end, after, rows_end) = seen
    assert rss_end - rss < MOST_GROWTH
    assert handles_end <= handles
    assert objects_end - objects < 50  # Python objects: less than one in eight rounds
    assert after <= before + 2
    assert rows_end / ROUNDS < 1.03 * rows / WARM_UP  # bytes a round; counters grow by a digit now and then


def files(folder):
    """The number of files in a run's directory, apart from checkpoints."""
    return sum(1 for _ in folder.rglob("*"))


def written(folder):
    """The bytes of a run's records."""
    return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
