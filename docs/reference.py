"""The tables of docs/config.md, made from the annotations of options and the docstrings of their classes.

    python docs/reference.py

writes the tables between `<!-- keys: GROUP -->` (or `<!-- options: GROUP -->`) and `<!-- end -->`; all other text of
the page stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, get_annotations, getdoc, getsource, signature
from pathlib import Path
from typing import Any

import yaml

from raylfl.components import source
from raylfl.components.options import doc_of, hints_of, words
from raylfl.config.groups.top import TopConfig
from raylfl.config.registries import REGISTRIES
from raylfl.config.schema import FIXED_GROUPS
from raylfl.tune.schedulers import Asha
from raylfl.tune.schema import Stage, SweepConfig

PAGE = Path(__file__).with_name("config.md")
HEAD = ("key", "default", "takes", "meaning")
GROUPS = {"top": TopConfig, **FIXED_GROUPS, "sweep": SweepConfig, "stage": Stage, "asha": Asha}
MARKED = re.compile(r"(<!-- (keys|options): (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with all of its tables made anew."""

    def made(marked: re.Match[str]) -> str:
        kind, name = marked[2], marked[3]
        head = HEAD if kind == "keys" else (HEAD[0], "of", *HEAD[1:])
        table = markdown(head, keys(GROUPS[name]) if kind == "keys" else options(name))
        return f"{marked[1]}\n{table}\n{marked[4]}"

    return MARKED.sub(made, text)


def markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def keys(cls: type, prefix: str = "") -> Iterator[tuple[str, ...]]:
    """A row for each key of a fixed group; the keys of a group inside it follow."""
    for field in (field for field in fields(cls) if field.init):
        hint, key = hints_of(cls)[field.name], prefix + field.metadata.get("key", field.name)
        if is_dataclass(hint):
            yield f"`{key}`", str(_default(field).name), "a name, or a group of keys", "the keys below"
            yield from keys(hint, f"{key}.")  # type: ignore[arg-type]
        else:
            yield f"`{key}`", _text(_default(field)), _kind(hint), doc_of(hint)


def _default(field: Field[Any]) -> Any:
    if "default" in field.metadata:
        return field.metadata["default"]
    return field.default if field.default_factory is MISSING else field.default_factory()


def options(group: str) -> list[tuple[str, ...]]:
    """A row for each option of the components of a group, with the names of the components that share it."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for entry in REGISTRIES[group]:
        hints = source.options_of_class(entry.cls) or {}
        told, parameters = explained(entry.cls, list(hints)), signature(entry.cls).parameters
        for key, hint in hints.items():
            meaning = "; ".join(filter(None, (doc_of(hint), told.get(key), comment(entry.cls, key))))
            row = f"`{key}`", _text(parameters[key].default), _kind(hint), meaning
            rows.setdefault(row, []).append(f"`{entry.name}`")
    return sorted((row[0], ", ".join(names), *row[1:]) for row, names in rows.items())


def explained(cls: type, names: list[str]) -> dict[str, str]:
    """Option -> what the docstrings of the class and its parents say of it: `alpha: ...`, `mean, std: ...`."""
    found: dict[str, str] = {}
    one = "|".join(map(re.escape, names)) or "$^"
    line = re.compile(r"\n[a-z_]\w*(?:, \w+)*(?:\([^)]*\))?: ")  # an attribute that is no option
    start = re.compile(rf"(?:^|(?<=[.;] ))((?:{one})(?:, (?:{one}))*)(?: \([^)]*\))?: ", re.MULTILINE)
    for owner in reversed([parent for parent in cls.__mro__ if parent.__module__.startswith("raylfl.")]):
        for paragraph in (getdoc(owner) or "").split("\n\n") if owner.__doc__ else ():
            starts = list(start.finditer(paragraph))
            ends = [*(match.start() for match in starts), len(paragraph)][1:]
            for match, end in zip(starts, ends, strict=bool(starts)):
                said = " ".join(line.split(paragraph[match.end() : end], maxsplit=1)[0].split()).rstrip(".;")
                found |= dict.fromkeys(match[1].split(", "), said)
    return found


def comment(cls: type, key: str) -> str:
    """The comment on the line of a dataclass's field, or above it."""
    owner = next((parent for parent in cls.__mro__ if key in get_annotations(parent)), None)
    lines = getsource(owner).splitlines() if owner is not None else []
    at = next((k for k, line in enumerate(lines) if line.startswith(f"    {key}: ")), 0)
    above = lines[at - 1].strip().removeprefix("# ") if at and lines[at - 1].strip().startswith("# ") else ""
    return above or (lines[at].partition("  # ")[2] if at else "")


def _kind(hint: Any) -> str:
    """A declared type in words; `a value per client` with a link to its section."""
    return words(hint, docs=False).replace("value per client", "[value per client](config.md#values-per-client)")


def _text(value: Any) -> str:
    """A default as yaml has it."""
    if value in (MISSING, Parameter.empty):
        return ""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(_lists(plain), default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()


def _lists(value: Any) -> Any:
    return [_lists(part) for part in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
