"""Plug-ins: classes that installed packages declare as entry points; a config selects them by the declared name.

    [project.entry-points."raylfl.algorithms"]    # partitions, participation, links, topologies, models, data, ...
    fedcm = "fedcm_plugin:FedCM"

Only the metadata of packages are read here. A class is imported when a config selects it or `raylfl list` shows it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points


@dataclass(frozen=True)
class Plugin:
    """One entry point.

    name: the name that configs use. path: `package.module.Class`. origin: the package and its version, such as
    `raylfl-cm 0.1`.
    """

    name: str
    path: str
    origin: str


def plugins(kind: str) -> dict[str, list[Plugin]]:
    """Name -> plug-ins of this kind (`algorithms`); a name has several if several packages declare it."""
    return _found(kind, tuple(sys.path))


@cache
def _found(kind: str, path: tuple[str, ...]) -> dict[str, list[Plugin]]:
    found: dict[str, list[Plugin]] = {}
    for entry in entry_points(group=f"raylfl.{kind}"):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
        plugin = Plugin(entry.name, entry.value.replace(":", "."), origin)
        same = found.setdefault(entry.name, [])
        if plugin not in same:  # a distribution may be found in two folders of sys.path
            same.append(plugin)
    return found
