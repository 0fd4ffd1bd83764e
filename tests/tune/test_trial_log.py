"""The progress log of a sweep: the causes of failed trials."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

from raylfl.tune.tuner import cause


class NeedsTwo(Exception):
    """An exception that can be pickled, but not loaded again."""

    def __init__(self, key: str, value: str):
        super().__init__(f"{key}={value}")


@pytest.mark.parametrize(
    ("error", "text"), [(ActorDiedError(), "its process ended"), (NeedsTwo("a", "b"), "NeedsTwo: a=b")]
)
def test_the_cause_is_plain_for_a_lost_process_and_otherwise_the_last_line_of_the_error(tmp_path, error, text):
    (tmp_path / "error.pkl").write_bytes(pickle.dumps(error))
    (tmp_path / "error.txt").write_text("Failure # 1\nTraceback\nNeedsTwo: a=b\n")
    assert cause(SimpleNamespace(pickled_error_file=str(tmp_path / "error.pkl"), local_path=str(tmp_path))) == text
    assert cause(SimpleNamespace(pickled_error_file=None, local_path=None)) == "its process was lost"
