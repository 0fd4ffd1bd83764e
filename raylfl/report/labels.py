"""Labels of configs for legends and tables, from the keys in which the configs differ.

Each key has one of three roles. `algorithm.name` is the *method*. Learning rate, clipping and the algorithm's own
options are *tuned*. All other keys that define a run (data, model, partition, participation, links, number of local
steps, ...) are the *scenario*; a fair comparison of methods has equal scenarios.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from raylfl.components.registry import registered

METHOD = "algorithm.name"
LONGEST = 60  # characters of a value in a label
TUNED_LOCAL = {"lr", "lr_schedule", "lr_decay", "momentum", "weight_decay", "clip_norm", "optimizer"}
DISPLAY = {  # methods whose names in their papers differ from those of their classes
    "cafedavg": "c-a-FedAvg",
    "centralized": "centralized",
    "exact_diffusion": "exact diffusion",
    "extra": "EXTRA",
    "fedmgda": "FedMGDA+",
    "focus": "FOCUS",
    "gradient_tracking": "gradient tracking",
    "kgt": "K-GT",
    "local_only": "local only",
    "optimal_sampling": "Optimal sampling",
    "push_diging": "Push-DIGing",
    "push_pull": "push-pull",
    "scaffold": "SCAFFOLD",
}


def canonical(value: Any) -> str:
    """A text for a config value; two texts are equal if and only if the values are (2 equals 2.0, true is not 1)."""
    return json.dumps(_whole(value), sort_keys=True, default=str)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list | tuple) else value


def method_of(flat: Mapping[str, Any]) -> str:
    """The method of a config with dotted keys: its `algorithm.name`, or `?` without that key.

    A class of the user with the name of a method of raylfl has its class path in addition: `FedAvg (mine.FedAvg)`.
    """
    name, path = str(flat.get(METHOD, "?")), flat.get(f"{METHOD.partition('.')[0]}.class_path")
    return f"{name} ({path})" if path and display(name) in map(display, _class_names()) else name


def display(method: str) -> str:
    """A method's name as its paper writes it; unknown names are unchanged."""
    return DISPLAY.get(method) or _class_names().get(method, method)


@cache
def _class_names() -> dict[str, str]:
    return {entry.name: entry.path.rpartition(".")[2] for entry in registered("raylfl.algorithms")}


def is_scenario(key: str) -> bool:
    """Whether a dotted key belongs to the scenario: it is neither the method nor a tuned option."""
    group, _, rest = key.partition(".")
    if group == "local":
        return rest.split(".")[0] not in TUNED_LOCAL
    return group != "algorithm"


def varying(flats: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ between configs: the method first, then keys of the scenario, then tuned keys.

    A missing key counts as None, because a resolved config has null for a value that is not set.
    """
    keys = dict.fromkeys(key for flat in flats for key in flat)
    differ = [key for key in keys if len({canonical(flat.get(key)) for flat in flats}) > 1]
    return sorted(differ, key=lambda key: (key != METHOD, not is_scenario(key)))  # stable: config order within a role


def labels(flats: Sequence[Mapping[str, Any]]) -> list[str]:
    """One short, distinct label for each config with dotted keys, such as `FOCUS, lr=0.01`."""
    texts = tell_apart(flats, varying(flats), {key for flat in flats for key in flat})
    return distinct([text or display(method_of(flat)) for text, flat in zip(texts, flats, strict=True)])


def tell_apart(flats: Sequence[Mapping[str, Any]], keys: Sequence[str], known: Iterable[str]) -> list[str]:
    """The keys and values that distinguish each config from the others, as text: `partition=dirichlet, alpha=0.1`.

    A key is in the text only if it distinguishes the config from another with the same values of all earlier `keys`.
    known: all keys of all configs; short names are unambiguous among them.
    """
    names = short_keys(keys, known)
    texts = []
    for flat in flats:
        parts, rivals = [], [other for other in flats if other is not flat]
        for key in keys:
            same = [other for other in rivals if canonical(other.get(key)) == canonical(flat.get(key))]
            if len(same) < len(rivals):
                parts.append(say(key, method_of(flat) if key == METHOD else flat.get(key), names[key]))
                rivals = same
        texts.append(", ".join(parts))
    return texts


def distinct(texts: Sequence[str]) -> list[str]:
    """The texts, with repetitions numbered: `a`, `a (2)`; `show_value` shortens numbers and lists."""
    seen: Counter[str] = Counter()
    numbered = []
    for text in texts:
        seen[text] += 1
        numbered.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return numbered


def say(key: str, value: Any, name: str) -> str:
    """The text of a key, with its short name, in a label: `lr=0.01`, `FOCUS`, `model=LeNet5`."""
    if key == METHOD:
        return display(str(value))
    if key.endswith(".class_path"):
        return f"{name}={str(value).rpartition('.')[2]}"
    text = show_value(value)
    return f"{name}={text if len(text) <= LONGEST else f'{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}'}"


def short_keys(keys: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """A short name for each key: its shortest ending that no other known key has, such as `lr` for `local.lr`.

    `partition.name` and `model.class_path` become `partition` and `model`.
    """
    endings = Counter(ending for key in known for ending in _endings(key))
    short = {}
    for key in keys:
        group, _, last = key.rpartition(".")
        if last in {"name", "class_path"} and group:
            short[key] = group
        else:
            short[key] = next((e for e in _endings(key) if endings[e] <= 1), key)
    return short


def _endings(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]


def show_value(value: Any) -> str:
    """A config value as short text: floats with six digits, None as `none`, long lists without their middle entries."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        items = [show_value(item) for item in value]
        if len(items) > 4:
            items = [items[0], items[1], "…", items[-1]]
        return "[" + ", ".join(items) + "]"
    return str(value)


def order_key(value: Any) -> tuple[int, float, str]:
    """A sort key: None first, then numbers by size, then all other values by their text."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        return (1, float(value), "")
    return (2, 0.0, show_value(value))
