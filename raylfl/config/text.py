"""Yaml text to plain values, for files and for `key=value` overrides, and plain values to yaml text.

The dialect is YAML 1.1, except that `1e-3` is a number, and that dates, `1:30` and `010` (90 and 8 in YAML 1.1) are
texts. Duplicate keys, aliases that expand to more than a million values and nesting deeper than 50 levels are refused.

The files of a run or a sweep have a format number, which grows if they could be misread (docs/formats.md).
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from raylfl.errors import BadConfig

FORMAT = 2  # in config.yaml and sweep.yaml as `format`, in a checkpoint's manifest as `version`
KEY = "format"
MAX_DEPTH = 50  # nested lists and mappings
MAX_VALUES = 1_000_000  # in a whole text, with aliases expanded
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
