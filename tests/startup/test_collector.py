"""Garbage collections are rare while an actor or a command imports its libraries, and usual when it works."""

import gc
import subprocess
import sys

import pytest

from raylfl.startup import collector

ACTOR = """
import gc, sys
sys.argv = ["/ray/default_worker.py"]
import raylfl.runtime.ray
print(gc.get_threshold()[0])
"""


@pytest.fixture(autouse=True)
def _thresholds():
    before = gc.get_threshold()
    yield
    collector.restore()
    assert gc.get_threshold() == before


def test_the_frequency_of_collections_comes_back():
    before = gc.get_threshold()
    collector.make_rare()
    collector.make_rare()  # by the command line, then by an actor in the same process
    assert gc.get_threshold() == (collector.RARE, *before[1:])
    collector.restore()
    assert gc.get_threshold() == before


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(collector.SWITCH, "0")
    before = gc.get_threshold()
    collector.make_rare()
    assert gc.get_threshold() == before


def test_a_program_that_imports_raylfl_is_left_alone():
    import raylfl.runtime.ray  # noqa: F401

    assert not collector.in_an_actor()
    assert gc.get_threshold()[0] != collector.RARE


def test_in_an_actor_collections_are_rare_from_the_first_import():
    done = subprocess.run([sys.executable, "-c", ACTOR], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(collector.RARE)
