"""Objects in place of config entries: the type of the keyword arguments lists the accepted groups."""

from __future__ import annotations

from raylfl.config.objects import GROUPS, Objects


def test_the_annotations_have_each_group_that_is_accepted():
    assert tuple(Objects.__annotations__) == GROUPS
