"""The JSON schema of a sweep file: the schema of a config, extended by the keys of a sweep."""

from __future__ import annotations

from raylfl.config.json_schema import Schema, config_schema, keys_schema
from raylfl.tune.schedulers import SchedulerConfig
from raylfl.tune.schema import SweepConfig
from raylfl.tune.space import LISTS, RANGES


def sweep_schema() -> Schema:
    """The JSON schema of a sweep file. It requires no key, because files are merged."""
    config = config_schema()
    keys = keys_schema(SweepConfig, space=_space(), scheduler=_scheduler())
    return {**config, "title": "raylfl sweep", "properties": {**config["properties"], **keys["properties"]}}


def _space() -> Schema:
    values = {kind: {"type": "array", "minItems": 1} for kind in LISTS}
    ranges = {kind: {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2} for kind in RANGES}
    when = {"type": "object", "description": "config keys, and the values for which this alternative counts"}
    domain = {
        "type": "object",
        "properties": {**values, **ranges, "when": when},
        "oneOf": [{"required": [kind]} for kind in (*LISTS, *RANGES)],
        "additionalProperties": False,
    }
    alternatives = {"type": "array", "items": domain, "minItems": 1}
    description = "the values of each config key: {local.lr: {grid: [0.01, 0.1]}}"
    return {"type": "object", "description": description, "additionalProperties": {"anyOf": [domain, alternatives]}}


def _scheduler() -> Schema:
    return {"anyOf": [{"enum": ["fifo", "asha"]}, keys_schema(SchedulerConfig)]}
