"""The keys of a config that define a run, and the check that a resumed run keeps them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from raylfl.config.identity import identity
from raylfl.config.load import load_config
from raylfl.config.objects import ObjectLayer
from raylfl.errors import BadConfig


def defining(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a resolved config that a resumed run must keep (`identity`), with values converted to plain JSON."""
    keys: dict[str, Any] = json.loads(json.dumps(identity(resolved, of="resume"), default=str))
    return keys


def complete_options(saved: Mapping[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved config of a checkpoint, completed with the defaults of options newer than the checkpoint.

    saved: the saved config. objects: class path -> object, for class paths that cannot be imported.
    """
    return load_config(saved, object_layer=ObjectLayer({}, dict(objects))).resolved


def fingerprint_of_config(resolved: Mapping[str, Any]) -> str:
    """The sha256, in hex digits, of the keys that define a run (see `defining`)."""
    return hashlib.sha256(json.dumps(defining(resolved), sort_keys=True).encode()).hexdigest()


def refuse_changes(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> None:
    """Checks that a resumed run keeps the keys that define it, except that `rounds` may grow.

    Raises BadConfig that names the changed keys.
    """
    changed = list(differing(defining(earlier), defining(later)))
    if changed:
        pairs = ", ".join(f"{k}: {_at(earlier, k)} -> {_at(later, k)}" for k in changed)
        raise BadConfig(
            f"a resumed run must keep the keys that define it, but these would change: {pairs}; start a new run instead"
        )
    if later["rounds"] < earlier["rounds"]:
        raise BadConfig(f"rounds={later['rounds']}, but must be >= {earlier['rounds']}, the value of the earlier run")
    if later["rounds"] > earlier["rounds"]:
        _refuse_moving_phases(later, earlier["rounds"])


def differing(earlier: Mapping[str, Any], later: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys at which two nested configs have different values.

    prefix: for two groups of a larger config, the dotted key of the group with a final dot; it begins every result.
    """
    for key in sorted({*earlier, *later}):
        old, new = earlier.get(key), later.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differing(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}"


def _refuse_moving_phases(config: Mapping[str, Any], rounds: int) -> None:
    """Raises BadConfig if an option has `phases`: one value for each part of the run.

    Phases end at fractions of `rounds`. With a larger number of rounds, the rounds already done would have had other
    values. rounds: the number of rounds before the resumption.
    """
    for group, options in config.items():
        if _mentions(options, "phases"):
            raise BadConfig(
                f"rounds={config['rounds']}, but must stay {rounds}: {group} has values in phases, which end at "
                "fractions of rounds; start a new run instead"
            )


def _mentions(value: Any, key: str) -> bool:
    if isinstance(value, Mapping):
        return key in value or any(_mentions(v, key) for v in value.values())
    return isinstance(value, list) and any(_mentions(v, key) for v in value)


def _at(config: Mapping[str, Any], dotted: str) -> Any:
    value: Any = config
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
