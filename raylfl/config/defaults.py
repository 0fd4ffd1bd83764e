"""Completes a saved config with the defaults of options that are newer than the config.

The defaults are read from source text: no class is imported. `changes.complete_options` imports the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from raylfl.config.components import options_of
from raylfl.config.groups.top import ComponentConfig
from raylfl.config.registries import REGISTRIES
from raylfl.config.schema import FIXED_GROUPS, NAMED_GROUPS


def fill_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config in which missing options have their defaults.

    `init_args` of models and data, and options of classes outside raylfl, are not completed.
    """
    completed = dict(config)
    for group in (*FIXED_GROUPS, *NAMED_GROUPS):
        options = config.get(group, None if group in NAMED_GROUPS else {})
        if isinstance(options, Mapping):  # except for damaged files
            missing = {k: v for k, v in _defaults(group, str(options.get("name"))).items() if k not in options}
            completed[group] = {**options, **missing}
    return completed


@cache
def _defaults(group: str, name: str) -> dict[str, Any]:
    if group in NAMED_GROUPS:
        return REGISTRIES[group].defaults.get(name, {})
    cls = FIXED_GROUPS[group]
    return options_of(cls(name="") if issubclass(cls, ComponentConfig) else cls())
