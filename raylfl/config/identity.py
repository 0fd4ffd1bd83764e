"""The keys of a config that identify a run, for each of three purposes.

resume   keys that determine the bits of the parameters: a resumed run must keep them; rounds and evaluation are free
group    keys by which a report groups runs: runs of a group differ in seed, directory and machine only
digest   keys that, with the seed, identify a cached run; rounds and evaluation are included: they change metrics.jsonl
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
LATER = ("edge_latency", "edge_bandwidth")  # options of `topology` that older runs lack; null means the same
OPTIONAL = {
    "model": ("buffers",),
    "partition": ("labels",),
    "runtime": ("processes_per_worker",),
}  # newer options, which older runs lack; null means that
LEFT_OUT: dict[Purpose, tuple[str, ...]] = {
    "resume": (*WHERE, *FREE, "rounds", "eval", "stop"),
    "group": (*WHERE, "runtime", "seed"),
    # the same data may be in another folder
    "digest": (*WHERE, *FREE, "seed", "data.init_args.root", "data.init_args.download"),
}


def identity(resolved: Mapping[str, Any], of: Purpose) -> dict[str, Any]:
    """A copy of the resolved config with the keys that identify a run for this purpose.

    The group `topology` is left out if all its options have their defaults. Its options in `LATER`, and those in
    `OPTIONAL`, are left out if they are null. Older runs, saved without these keys, thus keep their identity.
    `runtime.placement` is left out unless it is `pinned`.
    """
    config = _without(resolved, LEFT_OUT[of], "")
    topology = {key: v for key, v in config.get("topology", {}).items() if key not in LATER or v is not None}
    if topology:
        config["topology"] = topology
    if topology.items() <= UNCHOSEN.items():  # an older run lacks newer options
        config.pop("topology", None)
    for group, keys in OPTIONAL.items():
        for key in keys:
            if isinstance(config.get(group), dict) and config[group].get(key, ...) is None:
                config[group] = {name: value for name, value in config[group].items() if name != key}
    runtime = config.get("runtime", {})
    if runtime.get("placement") != "pinned":  # pinned clients are not vectorised, which can change bits
        runtime.pop("placement", None)
    return config


def _without(config: Mapping[str, Any], dotted_keys: Sequence[str], prefix: str) -> dict[str, Any]:
    """A copy of the config without the dotted keys in `dotted_keys`, and without groups that become empty.

    prefix: the dotted key of `config` in the whole config, with a final dot.
    """
    remaining: dict[str, Any] = {}
    for key, value in config.items():
        dotted_key = f"{prefix}{key}"
        if dotted_key in dotted_keys:
            continue
        if isinstance(value, Mapping) and any(other.startswith(f"{dotted_key}.") for other in dotted_keys):
            rest = _without(value, dotted_keys, f"{dotted_key}.")
            if value and not rest:
                continue
            value = rest
        remaining[key] = value
    return remaining
