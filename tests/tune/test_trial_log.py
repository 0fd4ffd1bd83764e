"""The progress log of a sweep: the causes of failed trials."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError
from ray.tune import TuneError

from raylfl.tune.trial_log import cause


def damaged():
    raise TypeError("an exception that can be pickled, but not loaded again")


@pytest.mark.parametrize(
    ("load", "text"), [(ActorDiedError, "its process ended"), (damaged, "NeedsTwo: a=b"), (ValueError, "NeedsTwo: a=b")]
)
def test_the_cause_is_plain_for_a_lost_process_and_otherwise_the_last_line_of_the_error(load, text):
    error = TuneError("Failure # 1\nTraceback\nNeedsTwo: a=b\n")
    assert cause(SimpleNamespace(get_pickled_error=load, get_error=lambda: error)) == text
    nothing = SimpleNamespace(get_pickled_error=lambda: None, get_error=lambda: None)
    assert cause(nothing) == "its process was lost"
