"""Layers of a config (files, their bases, `key=value` overrides): nested mappings; later layers take precedence.

A key path is the sequence of keys that leads to a value. Mappings at the key paths in `MERGED` are merged key by key.
At any other key path a value replaces the earlier value, even if both are mappings, such as {uniform: [1, 5]}. At the
key paths in `NAMED`, which select a component, a plain string means {name: string}. There, a layer with another name or
class_path replaces the whole mapping: no option of the earlier algorithm, partition or model remains. Options without a
name belong to the component that a later layer names, or else to the default one. In `local`, `epochs` of a later layer
replaces `steps` of an earlier one, and vice versa. Within one layer the order of keys has no effect, except that the
last of several equal keys counts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raylfl.components.registry import NAMING
from raylfl.config.find import find_config
from raylfl.config.schema import FIXED_GROUPS, NAMED_GROUPS
from raylfl.config.text import FORMAT, KEY, parse, refuse_other
from raylfl.errors import BadConfig, require_lists

KeyPath = tuple[Any, ...]  # the keys on the way to a value: ("local", "lr")
GROUPS = (*FIXED_GROUPS, *NAMED_GROUPS)
DEFAULTS: dict[str, Any] = {
    "model": {"name": "mlp"},
    "data": {"name": "digits"},
    "partition": {"name": "iid"},
    "participation": {"name": "full"},
    "link": {"name": "perfect"},
    "topology": {"name": "auto"},
    "algorithm": {"name": "fedavg"},
}
NAMED: set[KeyPath] = {*((group,) for group in DEFAULTS), ("local", "lr_schedule"), ("participation", "availability")}
MERGED = {*((group,) for group in GROUPS), *NAMED, ("model", "init_args"), ("data", "init_args"), ("metrics",)}
ALTERNATIVES: dict[KeyPath, tuple[str, ...]] = {("local",): ("steps", "epochs")}  # a later layer's replaces the other
QUOTES = "quote arguments with blanks, brackets or braces: 'local.steps={uniform: [1, 5]}'"


def file_layers(path: Path, chain: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """The layers of a config file: first those of its bases, then its own; chain: the files whose `base` led to it."""
    if path in chain:
        raise BadConfig(f"base: the files include each other: {' -> '.join(p.name for p in (*chain, path))}")
    return with_bases(content_of(path), path.parent, (*chain, path))


def content_of(path: Path) -> dict[str, Any]:
    """The keys and values of a yaml file. Raises BadConfig if it is not readable yaml or not a mapping."""
    try:
        content = parse(path.read_text(encoding="utf-8")) or {}
    except (ValueError, OSError) as error:  # UnicodeDecodeError is a ValueError
        raise BadConfig(f"{path} is not readable yaml: {error}") from error
    if not isinstance(content, dict):
        raise BadConfig(f"{path} must hold keys and values, not a {type(content).__name__}")
    return content


def with_bases(content: Mapping[str, Any], folder: Path, chain: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """The layers of the configs named in `base`, first looked up in `folder`, then one with the other keys."""
    content = tree(((key,), value) for key, value in content.items())
    refuse_other(content.pop(KEY, FORMAT), chain[-1] if chain else "the config")
    bases = content.pop("base", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(b, str) for b in bases):
        raise BadConfig(f"base={bases}, but must be the name of a config or a list of names")
    return [layer for base in bases for layer in file_layers(find_config(base, folder), chain)] + [content]


def override_layers(overrides: Sequence[str]) -> list[dict[str, Any]]:
    """The layers of `key=value` overrides: the configs named by `base=...`, then one layer with all other items."""
    require_lists(overrides=overrides)
    layer = tree(map(override, overrides))
    return with_bases(layer, Path())


def override(item: str) -> tuple[KeyPath, Any]:
    """The key path and the value of an override such as `local.lr=0.1`. Raises BadConfig for another form."""
    key, equals, text = item.partition("=")
    problem = None if equals and key else f"override {item!r} must have the form key=value"
    try:
        value = parse(text)
    except ValueError as error:
        problem = problem or f"{item}: the value is not yaml ({error})"
    if problem is not None:
        if set(item) & set("[]{}"):
            problem += f"; {QUOTES}"
        raise BadConfig(problem)
    return tuple(key.split(".")), value


def tree(items: Iterable[tuple[KeyPath, Any]]) -> dict[str, Any]:
    """One layer from (path, value) pairs. Raises BadConfig if a key path has both a value and keys below it."""
    leaves: dict[KeyPath, Any] = {}
    for path, value in items:
        leaves.update(_spread(path, value))
    out: dict[str, Any] = {}
    for path in sorted(leaves, key=len):
        node: Any = out
        for depth, key in enumerate(path[:-1]):
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                above, below = ".".join(map(str, path[: depth + 1])), ".".join(map(str, path))
                raise BadConfig(f"{above}={node} and {below}={leaves[path]} contradict each other: leave out one")
        value = leaves[path]
        node[path[-1]] = dict(value) if isinstance(value, Mapping) else value
    return out


def _spread(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """The (path, value) pairs of a mapping at a key path in `MERGED`, one per key, recursively; else one pair.

    null for a whole group gives no pair. A string at a key path in `NAMED` becomes the value of the key `name`.
    """
    if path in NAMED and isinstance(value, str):
        yield (*path, "name"), value  # `model: lenet5`
    elif path in MERGED and isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _spread((*path, key), inner)
    elif len(path) > 1 or path not in MERGED or value is not None:  # an empty group has no effect
        yield path, value


def merge_layer(merged: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Merges a layer into `merged`, in place. Raises BadConfig if a group is not a mapping."""
    for key, value in layer.items():
        if key in GROUPS and not isinstance(value, Mapping):
            raise BadConfig(f"{key}={value}, but must be a group of keys")
        merged[str(key)] = _merge_values(merged.get(key), value, (key,))


def _merge_values(earlier: Any, later: Any, path: KeyPath) -> Any:
    """The value at a key path after a layer with the value `later` is merged over `earlier`."""
    if path not in MERGED or not isinstance(later, Mapping):
        return later
    earlier = earlier if isinstance(earlier, Mapping) else {}
    is_named = path in NAMED and any(earlier.get(key) is not None for key in NAMING)
    if is_named and any(key in later and later[key] != earlier.get(key) for key in NAMING):
        earlier = {}  # the options of another component
    others = ALTERNATIVES.get(path, ())
    if sum(later.get(key) is not None for key in others) == 1:
        earlier = {key: value for key, value in earlier.items() if key not in others}
    return {**earlier, **{key: _merge_values(earlier.get(key), value, (*path, key)) for key, value in later.items()}}
