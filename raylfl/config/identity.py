"""The keys of a config that identify a run, for each of three purposes.

resume   keys that determine the bits of the parameters: a resumed run must keep them; rounds and evaluation are free
group    keys by which a report groups runs: runs of a group differ in seed, directory and machine only
digest   keys that, with the seed, identify a cached run; rounds and evaluation are included: they change metrics.jsonl
"""

import hashlib
import json
from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal

from raylfl.errors import BadConfig

Purpose = Literal["resume", "group", "digest"]
RUNTIME_FREE = (  # keys of `runtime` that do not change the bits
    "backend",
    "workers",
    "cpus_per_worker",
    "gpus_per_worker",
    "address",
    "object_store_mb",
    "sums",
    "wait",
    "step",
    "client_retries",
    "client_timeout",
    "on_client_error",  # a failed run may be resumed with `drop`, with which no run fails
    "on_nonfinite",
)
WHERE = ("name", "logging", "checkpoint", "metrics")
FREE = tuple(f"runtime.{key}" for key in RUNTIME_FREE)
UNCHOSEN = {  # the default of `topology`
    "name": "auto",
    "weights": "auto",
    "latency": 0.0,
    "bandwidth": None,
    "links": None,
}
OPTIONAL = (  # newer options, which older runs lack; null means that
    "topology.edge_latency",
    "topology.edge_bandwidth",
    "model.buffers",
    "partition.labels",
    "runtime.processes_per_worker",
)
LEFT_OUT: dict[Purpose, tuple[str, ...]] = {
    "resume": (*WHERE, *FREE, "rounds", "eval", "stop"),
    "group": (*WHERE, "runtime", "seed"),
    # the same data may be in another folder
    "digest": (*WHERE, *FREE, "seed", "data.init_args.root", "data.init_args.download"),
}


def identity(resolved: Mapping[str, Any], of: Purpose) -> dict[str, Any]:
    """A copy of the resolved config with the keys that identify a run for this purpose.

    Options in `OPTIONAL` are left out if they are null, and the group `topology` if all its other options have their
    defaults: older runs, saved without these keys, thus keep their identity. `runtime.placement` is left out unless it
    is `pinned`.
    """
    config = reduce(_without, LEFT_OUT[of], dict(resolved))
    for dotted in OPTIONAL:
        group, _, option = dotted.partition(".")
        if isinstance(config.get(group), Mapping) and config[group].get(option, ...) is None:
            config[group] = {key: value for key, value in config[group].items() if key != option}
    if config.get("topology", {}).items() <= UNCHOSEN.items():
        config.pop("topology", None)
    if config.get("runtime", {}).get("placement", "pinned") != "pinned":  # which is not vectorised: other bits
        config["runtime"] = {key: value for key, value in config["runtime"].items() if key != "placement"}
    return config


def _without(config: Mapping[str, Any], dotted: str) -> dict[str, Any]:
    """A copy of the config without a dotted key, and without groups that become empty."""
    key, _, inner = dotted.partition(".")
    if not inner or not isinstance(config.get(key), Mapping):
        return {k: value for k, value in config.items() if inner or k != key}
    rest = _without(config[key], inner)
    return {**config, key: rest} if rest or not config[key] else _without(config, key)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as a flat one with dotted keys: {"local": {"lr": 0.1}} -> {"local.lr": 0.1}.

    Lists are not flattened. prefix: text before every key.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


# -- resuming a run ------------------------------------------------------------------------------------------------


def defining(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a resolved config that a resumed run must keep (`identity`), with values converted to plain JSON."""
    keys: dict[str, Any] = json.loads(json.dumps(identity(resolved, of="resume"), default=str))
    return keys


def fingerprint_of_config(resolved: Mapping[str, Any]) -> str:
    """The sha256, in hex digits, of the keys that define a run (see `defining`)."""
    return hashlib.sha256(json.dumps(defining(resolved), sort_keys=True).encode()).hexdigest()


def refuse_changes(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> None:
    """Raises BadConfig with the keys that a resumed run must keep and that would change; `rounds` may grow."""
    before, after = flatten(defining(earlier)), flatten(defining(later))
    changed = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    if changed:
        pairs = ", ".join(f"{key}: {before.get(key)} -> {after.get(key)}" for key in changed)
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
