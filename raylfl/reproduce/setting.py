"""Settings: the configs behind the lines of a figure and the cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """The config of a line of a figure or a cell of a table, without the seed.

    label: its name, different for every setting of an experiment. config: a config as `load_config` takes it;
    its `base:` names files of conf/.
    """

    label: str
    config: Mapping[str, Any]

    def with_(self, label: str, options: Mapping[str, Any]) -> Setting:
        """The same with these dotted keys changed: {"local.lr": 0.1}."""
        return Setting(label, layered(self.config, options))


def setting(label: str, bases: Sequence[str], options: Mapping[str, Any] | None = None) -> Setting:
    """A setting of the files `bases` (later ones win) with dotted keys changed."""
    return Setting(label, layered({"base": list(bases)}, options or {}))


def layered(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The nested config with dotted keys set; neither argument is changed."""
    out = dict(config)
    for key, value in options.items():
        head, _, rest = key.partition(".")
        out[head] = layered(out.get(head, {}), {rest: value}) if rest else value
    return out
