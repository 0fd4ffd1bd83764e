"""Yaml text to plain values, for files and for `key=value` overrides, and plain values to yaml text.

The dialect is YAML 1.1, except that `1e-3` is a number, and that dates, `1:30` and `010` (90 and 8 in YAML 1.1) are
texts. Duplicate keys, aliases that expand to more than a million values and nesting deeper than 50 levels are refused.

The files of a run or a sweep have a format number, which grows if they could be misread (docs/formats.md).
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from raylfl.errors import BadConfig

FORMAT = 2  # in config.yaml and sweep.yaml as `format`, in a checkpoint's manifest as `version`
KEY = "format"
MAX_DEPTH = 50  # nested lists and mappings
MAX_VALUES = 1_000_000  # in a whole text, with aliases expanded; in a config, with interpolations expanded
INNERMOST = re.compile(r"\$\{([^{}]*)\}")
WORD = re.compile(r"[^\s$:,'\"\[\]()=]+")  # what may be a dotted path within an interpolation
BY_PATH = {"oc.select", "oc.deprecated", "oc.dict.keys", "oc.dict.values"}  # resolvers whose argument is a path
INNER = "\0"  # stands for an interpolation within another one
KeyPath = tuple[str, ...]
FLOAT, DATE, INT = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int"
WHOLE = re.compile(r"^(?:[-+]?0b[0-1_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?0|[-+]?[1-9][0-9_]*)$")
NUMBER = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)


class _Loader(yaml.SafeLoader):
    def compose_document(self) -> yaml.Node | None:
        node = super().compose_document()
        _check_size(node, {}, MAX_DEPTH)
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag not in (FLOAT, DATE, INT)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(FLOAT, NUMBER, list("-+0123456789."))
_Loader.add_implicit_resolver(INT, WHOLE, list("-+0123456789"))


class _Dumper(yaml.SafeDumper):
    """Also quotes texts that only this dialect reads as numbers: `1e3`."""


_Dumper.add_implicit_resolver(FLOAT, NUMBER, list("-+0123456789."))


def parse(text: str) -> Any:
    """The plain values of a yaml text. Raises ValueError with a one-line description of the fault."""
    return deepcopy(_load(text))


def dump(values: Mapping[str, Any]) -> str:
    """The yaml text of plain values, in their order; `parse` gives the same values."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False))


@lru_cache(maxsize=256)  # sweeps and reproductions compose the same files hundreds of times
def _load(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError(f"lists and mappings more than {MAX_DEPTH} deep") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:  # ValueError: a number of 5,000 digits
        raise ValueError(" ".join(str(error).split())) from None


def _check_size(node: yaml.Node | None, sizes: dict[int, int], depth: int) -> int:
    """The number of values in a node, with aliases expanded. Raises YAMLError.

    sizes: id of a node -> its number of values, for the nodes counted so far; extended in place.
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if depth == 0:
        raise yaml.YAMLError(f"lists and mappings more than {MAX_DEPTH} deep")
    if id(node) not in sizes:
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            _refuse_duplicates([key for key, _ in node.value])
            parts = [part for pair in node.value for part in pair]
        sizes[id(node)] = 1 + sum(_check_size(part, sizes, depth - 1) for part in parts)
    if sizes[id(node)] > MAX_VALUES:
        raise yaml.YAMLError(f"more than {MAX_VALUES:,} values, with aliases expanded")
    return sizes[id(node)]


def _refuse_duplicates(keys: list[yaml.Node]) -> None:
    seen: set[str] = set()
    for key in keys:
        if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
            raise yaml.YAMLError(f"{key.value} occurs twice, the second time in line {key.start_mark.line + 1}")
        seen.add(str(key.value))


def refuse_other(number: Any, where: str | Path) -> None:
    """Raises BadConfig if the format number of a file or checkpoint, with the name `where`, is not `FORMAT`."""
    if type(number) is not int:
        raise BadConfig(f"{where}: format={number}, but must be {FORMAT}, a whole number that raylfl writes itself")
    if number != FORMAT:
        writer = "a newer raylfl" if number > FORMAT else "an older raylfl"
        remedy = f"this one reads {FORMAT}: use the version that wrote it"
        raise BadConfig(f"{where} has format {number}, which {writer} writes; {remedy}")


# -- interpolations ------------------------------------------------------------------------------------------------


def refuse_expansion(config: Mapping[str, Any]) -> None:
    """Raises BadConfig if the interpolations of a config expand to more than MAX_VALUES characters and values.

    Forty lines `x1: ${x0}${x0}` would fill any memory. An upper bound: each word of an interpolation that is a path in
    the config counts as the whole value there, and `${a.${b}}` as the whole of `a`. Also raises BadConfig for
    `${${b}}`, whose value may be any part of the config, and for values that refer to themselves.
    """
    sizes: dict[KeyPath, int | None] = {}  # None: not known yet

    def size(path: KeyPath) -> int:
        if path in sizes:
            if (cached := sizes[path]) is None:
                raise BadConfig(f"{'.'.join(path)}: an interpolation refers to itself, or to a part that contains it")
            return cached
        sizes[path], value = None, _at(config, path)
        if isinstance(value, (Mapping, list)):
            keys = value if isinstance(value, Mapping) else range(len(value))
            total = 1 + sum(size((*path, str(key))) for key in keys)
        else:
            total = len(str(value)) + sum(map(size, _targets(config, str(value), path)))
        if total > MAX_VALUES:
            raise BadConfig(f"{'.'.join(path)}: its interpolations expand to more than {MAX_VALUES:,} characters")
        sizes[path] = total
        return total

    try:
        size(())
    except RecursionError:
        raise BadConfig("too many interpolations refer to one another") from None


def _targets(config: Mapping[str, Any], text: str, path: KeyPath) -> Iterator[KeyPath]:
    """Yields the paths of the values to which the interpolations in the text at `path` may refer."""
    while match := INNERMOST.search(text):
        text = text[: match.start()] + INNER + text[match.end() :]
        resolver, _, arguments = match[1].rpartition(":")
        for k, word in enumerate(WORD.findall(arguments)):
            up = len(word) - len(word.lstrip("."))
            keys = tuple(key for key in word.split(".") if key)
            fixed = tuple(takewhile(lambda key: INNER not in key, keys))
            if keys and not fixed and (not resolver or (k == 0 and resolver.strip() in BY_PATH)):
                raise BadConfig(f"{'.'.join(path)}: ${{${{...}}}} is refused, as it may be any part of the config")
            target = (*(path[: len(path) - up] if up else ()), *fixed)
            if fixed and _at(config, target) is not None:
                yield target


def _at(config: Any, path: KeyPath) -> Any:
    for key in path:
        if isinstance(config, Mapping):
            config = config.get(key)
        elif isinstance(config, list) and key.isdecimal() and int(key) < len(config):
            config = config[int(key)]
        else:
            return None
    return config
