"""Settings: the configs behind the lines of a figure and the cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """The config of a line in a figure or a cell in a table, without the seed.

    label: its name, unique within an experiment. config: a config for `load_config`, whose `base:` names files in
    conf/.
    """

    label: str
    config: Mapping[str, Any]

    def with_(self, label: str, options: Mapping[str, Any]) -> Setting:
        """This setting with another label and these dotted keys changed, such as {"local.lr": 0.1}."""
        return Setting(label, layered(self.config, options))


def setting(label: str, bases: Sequence[str], options: Mapping[str, Any] | None = None) -> Setting:
    """A setting from the files `bases` (later ones win), with these dotted keys changed."""
    return Setting(label, layered({"base": list(bases)}, options or {}))


def layered(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The nested config with dotted keys set; neither argument is changed."""
    out = dict(config)
    for key, value in options.items():
        head, _, rest = key.partition(".")
        out[head] = layered(out.get(head, {}), {rest: value}) if rest else value
    return out
