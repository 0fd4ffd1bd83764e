"""Which keys of a config identify a run: one answer for each purpose, and the only place where a key is left out.

resume   what a resumed run must keep, as its bits depend on it; rounds may grow, evaluation may change
group    what a report pools over: one setting, whatever its seed, its place, and the machine it ran on
digest   what names a cached run beside its seed: rounds and evaluation count, as its rows depend on them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Purpose = Literal["resume", "group", "digest"]
RUNTIME_FREE = (  # of `runtime`, what leaves the bits alone
    "backend",
    "workers",
    "cpus_per_worker",
    "gpus_per_worker",
    "address",
    "object_store_mb",
    "step",
    "client_retries",
    "client_timeout",
    "on_client_error",  # a run that failed may go on by dropping; one that dropped never failed
    "on_nonfinite",
)
PLACE = ("name", "logging", "checkpoint")
FREE = tuple(f"runtime.{key}" for key in RUNTIME_FREE)
LEFT_OUT: dict[Purpose, tuple[str, ...]] = {
    "resume": (*PLACE, *FREE, "rounds", "eval", "stop"),
    "group": (*PLACE, "runtime", "seed"),
    # the same data may lie elsewhere
    "digest": (*PLACE, *FREE, "seed", "data.init_args.root", "data.init_args.download"),
}


def identity(resolved: Mapping[str, Any], of: Purpose) -> dict[str, Any]:
    """The resolved config without the keys that do not count for this purpose."""
    return _without(resolved, LEFT_OUT[of], "")


def _without(config: Mapping[str, Any], places: Sequence[str], prefix: str) -> dict[str, Any]:
    """The config without these dotted keys, nor a group that had no others."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        place = f"{prefix}{key}"
        if place in places:
            continue
        if isinstance(value, Mapping) and any(other.startswith(f"{place}.") for other in places):
            rest = _without(value, places, f"{place}.")
            if value and not rest:
                continue
            value = rest
        kept[key] = value
    return kept
