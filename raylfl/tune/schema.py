"""The keys of a sweep file that are not keys of a config, and the JSON schema of a sweep file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from raylfl.components.options import Doc, Ge, Kind
from raylfl.config.components import keys_of
from raylfl.config.json_schema import Schema, config_schema, keys_schema
from raylfl.errors import BadValue
from raylfl.tune.schedulers import SchedulerConfig
from raylfl.tune.score import Score
from raylfl.tune.space import LISTS, RANGES


@dataclass
class SweepConfig(Score):
    """The keys of a sweep file that are not keys of a config."""

    space: Annotated[dict[str, Any], Doc("the values to try, by config key: `{local.lr: {grid: [0.01, 0.1]}}`")] = (
        field(default_factory=dict)
    )
    seeds: Annotated[list[int] | None, Doc("seeds of every setting, judged by their mean; null: the config's seed")] = (
        None
    )
    scheduler: Annotated[Any, Kind("a name, or a group of keys"), Doc("`fifo` or `asha`; options beside it")] = "fifo"
    search: Annotated[Literal["random", "optuna"], Doc("optuna: a study for each point of the grids")] = "random"
    samples: Annotated[int, Ge(1), Doc("draws of the keys without a grid, at each point of the grids")] = 1
    concurrent: Annotated[int, Ge(1), Doc("settings at once; null: as many as fit")] | None = None
    retries: Annotated[
        int, Ge(0), Doc("further attempts at a setting that failed, each from its newest checkpoints")
    ] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise BadValue("seeds", got=self.seeds, need="a list of different seeds")


SWEEP_KEYS = tuple(keys_of(SweepConfig))
LATER = ("concurrent", "retries", "samples")  # keys that may change when a sweep continues, like all of `runtime`


def sweep_schema() -> Schema:
    """The JSON schema of a sweep file. It requires no key, because files are merged."""
    config = config_schema()
    scheduler = {"anyOf": [{"enum": ["fifo", "asha"]}, keys_schema(SchedulerConfig)]}
    keys = keys_schema(SweepConfig, space=_space(), scheduler=scheduler)
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
