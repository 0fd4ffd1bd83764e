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
    changed = list(_differing(defining(earlier), defining(later)))
    if changed:
        pairs = ", ".join(f"{key}: {old} -> {new}" for key, old, new in changed)
        raise BadConfig(
            f"a resumed run must keep the keys that define it, but these would change: {pairs}; start a new run instead"
        )
    if later["rounds"] < earlier["rounds"]:
        raise BadConfig(f"rounds={later['rounds']}, but must be >= {earlier['rounds']}, the value of the earlier run")
    phased = [group for group, options in later.items() if '"phases":' in json.dumps(options, default=str)]
    if later["rounds"] > earlier["rounds"] and phased:  # the rounds already done would have had other values
        raise BadConfig(
            f"rounds={later['rounds']}, but must stay {earlier['rounds']}: {phased[0]} has values in phases, which end "
            "at fractions of rounds; start a new run instead"
        )


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted keys at which two nested configs differ, each with its two values.

    prefix: for two groups of a larger config, the dotted key of the group with a final dot; it begins every key.
    """
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differing(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}", a, b
