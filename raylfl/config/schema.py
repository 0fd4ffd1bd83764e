"""The fixed groups of a config: a dataclass for each, whose fields with types and defaults are the group's schema.

A named group (algorithm, partition, participation, link, topology) has the schema of the class that it names. `model`
and `data` have the form of Lightning's command line: a name or class_path, and init_args. The annotation of a field
states its limits; `__post_init__` checks limits that involve several fields.
"""

import textwrap

from raylfl.config.components import keys_of
from raylfl.config.groups.local import LocalConfig
from raylfl.config.groups.records import CheckpointConfig, EvalConfig, LoggingConfig, StopConfig
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.groups.top import ComponentConfig, ModelConfig, TopConfig
from raylfl.heterogeneity.clock import Clock

FIXED_GROUPS: dict[str, type] = {
    "model": ModelConfig,
    "data": ComponentConfig,
    "local": LocalConfig,
    "system": Clock,
    "eval": EvalConfig,
    "stop": StopConfig,
    "checkpoint": CheckpointConfig,
    "runtime": RuntimeConfig,
    "logging": LoggingConfig,
}
NAMED_GROUPS = ("partition", "participation", "link", "topology", "algorithm")


def keys_text() -> str:
    """All keys of a config as text for `--help`, one line per group."""
    rows = [(group, ", ".join(keys_of(cls))) for group, cls in {"": TopConfig, **FIXED_GROUPS}.items()]
    rows += [(group, "name (or class_path), and the options of that component") for group in NAMED_GROUPS]
    lines = [
        textwrap.fill(text, 110, initial_indent=f"  {group:15}", subsequent_indent=17 * " ") for group, text in rows
    ]
    head = "keys (group.key=value; docs/config.md has meanings, `raylfl schema` types, `raylfl list` names):"
    return "\n".join([head, *lines])
