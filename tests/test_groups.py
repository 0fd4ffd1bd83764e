"""The groups of conftest.py: one process of pytest-xdist runs each group, which a fixture checks."""

from __future__ import annotations

from tests.conftest import GROUPS, HERE


def test_every_file_of_a_group_exists():
    assert [path for path in GROUPS if not (HERE / path).is_file()] == []
