"""The check that a run has the setting of its cell, the config that the experiment prescribes for this cell.

The cell of a run is found from a few keys of its config or from the name of its folder. The user may have changed other
keys. If their values are not those of the experiment, the run must not replace the cell's numbers in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from papers.run_cache import drop_inferred
from raylfl.config.identity import identity
from raylfl.config.load import load_config
from raylfl.errors import BadConfig, RaylflError
from raylfl.report.labels import flatten
from raylfl.report.runs import RunRecord

PLACES = ("data.init_args.path", "data.init_args.cache")  # the same images may be in another folder
ABSENT = object()


def resolve_config(run: RunRecord) -> dict[str, Any]:
    """The run's config, in which options newer than the run have their defaults. Raises BadConfig if it is invalid."""
    try:
        return load_config(run.config).resolved
    except RaylflError as error:
        raise BadConfig(f"{run.path.name}: its config.yaml is invalid: {error}") from error


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys of a resolved config in which a run must agree with the setting of its cell.

    Left out are name, seed, logging, checkpoints, the place of the data, and all of `runtime` except the precision.
    """
    keys = flatten(identity(drop_inferred(config), of="digest"))
    return {
        key: value
        for key, value in keys.items()
        if key not in PLACES and (key == "runtime.precision" or not key.startswith("runtime."))
    }


def differences(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys in which a run differs from a setting, each with both values, as text.

    config: the run's config, from `resolve_config`. other: the config of the setting.
    """
    actual, expected = decisive(config), decisive(other)
    keys = [key for key in sorted({*actual, *expected}) if actual.get(key, ABSENT) != expected.get(key, ABSENT)]
    return [f"{key}={_text(actual, key)} in place of {_text(expected, key)}" for key in keys]


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key, ABSENT)
    return "nothing" if value is ABSENT else "null" if value is None else str(value)
