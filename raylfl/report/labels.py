"""Labels of configs for legends and tables, from the keys in which they differ.

A key has one of three roles. `algorithm.name` is the *method*; what a researcher tunes (learning rate,
clipping, the algorithm's own options) is *tuned*; everything else that defines a run (data, model, partition,
participation, links, number of local steps, ...) is the *world*, which a fair comparison keeps the same.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

METHOD = "algorithm.name"
LONGEST = 60  # characters of a value in a label
TUNED_LOCAL = {"lr", "lr_schedule", "lr_decay", "momentum", "weight_decay", "clip_norm", "optimizer"}
DISPLAY = {
    "focus": "FOCUS",
    "sfl": "SFL",
    "fedacs": "FedACS",
    "fedaware": "FedAWARE",
    "fedavg": "FedAvg",
    "fedavgm": "FedAvgM",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fednova": "FedNova",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "feddyn": "FedDyn",
    "fedau": "FedAU",
    "fedawe": "FedAWE",
    "mifa": "MIFA",
    "fedvarp": "FedVARP",
    "scaffnew": "Scaffnew",
    "cafedavg": "c-a-FedAvg",
    "optimal_sampling": "Optimal sampling",
    "fedmgda": "FedMGDA+",
    "fedsgd": "FedSGD",
    "ssl": "SSL",
    "splitfed": "SplitFed",
    "centralized": "centralized",
    "local_only": "local only",
}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys dotted: {"local": {"lr": 0.1}} -> {"local.lr": 0.1}. Lists are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def canonical(value: Any) -> str:
    """A text that is equal exactly for equal values (2 and 2.0 are equal, true and 1 are not)."""
    return json.dumps(_whole(value), sort_keys=True, default=str)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list | tuple) else value


def method_of(flat: Mapping[str, Any]) -> str:
    """`algorithm.name`, `?` in a config that has none."""
    return str(flat.get(METHOD, "?"))


def display(method: str) -> str:
    """A method's name as its paper writes it; a name this module does not know stays as it is."""
    return DISPLAY.get(method, method)


def is_world(key: str) -> bool:
    """Whether a key describes the world that all methods share: neither the method nor tuned."""
    group, _, rest = key.partition(".")
    if group == "local":
        return rest.split(".")[0] not in TUNED_LOCAL
    return group != "algorithm"


def varying(flats: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that are not equal in all: the method first, then the world, then what is tuned.

    A key that some configs lack counts as None there: a resolved config says null for `not set`.
    """
    keys = dict.fromkeys(key for flat in flats for key in flat)
    differ = [key for key in keys if len({canonical(flat.get(key)) for flat in flats}) > 1]
    return sorted(differ, key=lambda key: (key != METHOD, not is_world(key)))  # stable: config order within


def labels(flats: Sequence[Mapping[str, Any]]) -> list[str]:
    """One short label a config, distinct for distinct configs: `FOCUS, lr=0.01`; see `tell_apart`."""
    texts = tell_apart(flats, varying(flats), {key for flat in flats for key in flat})
    return distinct([text or display(method_of(flat)) for text, flat in zip(texts, flats, strict=True)])


def tell_apart(flats: Sequence[Mapping[str, Any]], keys: Sequence[str], known: Iterable[str]) -> list[str]:
    """What of these keys tells each config from the others: `partition=dirichlet, alpha=0.1`; "" for a single one.

    Keys are taken in their order, each only where it tells this config from one that agrees with it on the keys
    already taken; so options that merely follow from another key stay out. All differences are in
    `tables.differences`. known: every key there is, for short names.
    """
    names = short_keys(keys, known)
    return [_label(flat, flats, keys, names) for flat in flats]


def distinct(texts: Sequence[str]) -> list[str]:
    """The texts, equal ones numbered (values that differ only where `show_value` cuts): `a`, `a (2)`."""
    seen: Counter[str] = Counter()
    numbered = []
    for text in texts:
        seen[text] += 1
        numbered.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return numbered


def _label(
    flat: Mapping[str, Any],
    flats: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    names: Mapping[str, str],
) -> str:
    rivals = [other for other in flats if other is not flat]
    parts = []
    for key in keys:
        same = [other for other in rivals if canonical(other.get(key)) == canonical(flat.get(key))]
        if len(same) < len(rivals):
            parts.append(say(key, flat.get(key), names[key]))
            rivals = same
    return ", ".join(parts)


def say(key: str, value: Any, name: str) -> str:
    """One key with its value, for a label: `lr=0.01`, `FOCUS`, `partition=dirichlet`, `model=LeNet5`."""
    if key == METHOD:
        return display(str(value))
    if key.endswith(".class_path"):
        return f"{name}={str(value).rpartition('.')[2]}"
    text = show_value(value)
    return f"{name}={text if len(text) <= LONGEST else f'{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}'}"


def short_keys(keys: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Each key's shortest ending that no other known key shares: `local.lr` -> `lr`.

    `partition.name` and `model.class_path` become `partition` and `model`.
    """
    endings: dict[str, int] = {}
    for key in known:
        for ending in _endings(key):
            endings[ending] = endings.get(ending, 0) + 1
    short = {}
    for key in keys:
        group, _, last = key.rpartition(".")
        if last in {"name", "class_path"} and group:
            short[key] = group
        else:
            short[key] = next((e for e in _endings(key) if endings.get(e, 0) <= 1), key)
    return short


def _endings(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]


def show_value(value: Any) -> str:
    """A config value for people: numbers short, `none`, lists longer than four cut in the middle."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = f"{value:g}"
        return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    if isinstance(value, list | tuple):
        items = [show_value(item) for item in value]
        if len(items) > 4:
            items = [items[0], items[1], "…", items[-1]]
        return "[" + ", ".join(items) + "]"
    return str(value)


def order_key(value: Any) -> tuple[int, float, str]:
    """Sorts numbers by size before texts by letter; None comes first."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        return (1, float(value), "")
    return (2, 0.0, show_value(value))
