"""Settings: the configs behind the lines of a figure and the cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class CellConfig:
    """The config of one line in a figure or one cell of a table, without the seed.

    label: its name, unique within an experiment. config: a config for `load_config`; its `base:` names files in conf/.
    cell: the keys and values that identify its runs in the ledger.
    """

    label: str
    config: Mapping[str, Any]
    cell: Mapping[str, Any] = field(default_factory=dict)

    def with_(self, label: str, options: Mapping[str, Any]) -> CellConfig:
        """A copy with another label and other values of some dotted keys, such as {"local.lr": 0.1}."""
        return replace(self, label=label, config=set_keys(self.config, options))


def setting(label: str, bases: Sequence[str], options: Mapping[str, Any] | None = None) -> CellConfig:
    """A setting from the config files `bases` (later ones win) and values of dotted keys, such as {"local.lr": 0.1}."""
    return CellConfig(label, set_keys({"base": list(bases)}, options or {}))


def set_keys(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the nested config with the values of dotted keys set, such as {"local.lr": 0.1}."""
    out = dict(config)
    for key, value in options.items():
        head, _, rest = key.partition(".")
        out[head] = set_keys(out.get(head, {}), {rest: value}) if rest else value
    return out
