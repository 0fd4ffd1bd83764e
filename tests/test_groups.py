"""The groups of conftest.py reach pytest-xdist, which gives each to one process: fixtures of a module are made once."""

from __future__ import annotations

import pytest

from tests.conftest import GROUPS, HERE


def test_every_file_of_a_group_is_there():
    assert [path for path in GROUPS if not (HERE / path).is_file()] == []


def test_pytest_xdist_knows_the_group_of_every_test(request):
    if not request.config.getoption("loadgroup", False):
        pytest.skip("without pytest-xdist there is one process anyway")
    named = {item.nodeid.rpartition("@")[2] for item in request.session.items if item.get_closest_marker("xdist_group")}
    assert named <= set(GROUPS.values())
