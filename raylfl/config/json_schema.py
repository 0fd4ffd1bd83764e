"""The JSON schema of a config file, from the annotations of its keys, for checks and completion in editors."""

from collections.abc import Mapping
from typing import Any

from raylfl.components.options import doc_of, hints_of, json_schema
from raylfl.config.components import keys_of
from raylfl.config.groups.local import PAPERS
from raylfl.config.groups.top import TopConfig
from raylfl.config.layers import NAMED
from raylfl.config.registries import REGISTRIES
from raylfl.config.schema import FIXED_GROUPS, NAMED_GROUPS
from raylfl.config.text import FORMAT, KEY

Schema = dict[str, Any]
REFERENCE = {"type": "string", "pattern": r"\$\{"}  # an interpolation such as `${seed}`, allowed for any value


def config_schema() -> Schema:
    """The schema of a whole config file. No key is required, because files are merged."""
    groups = {group: _schema_of_fixed(cls, group) for group, cls in FIXED_GROUPS.items()}
    groups |= {group: _schema_of_named(group) for group in NAMED_GROUPS}
    names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "raylfl config",
        **keys_schema(
            TopConfig,
            **groups,
            base={"description": "configs below this one, later ones win", **names},
            **{KEY: {"description": "the format of a saved config, which raylfl writes itself", "const": FORMAT}},
        ),
    }


def keys_schema(cls: type, **more: Schema) -> Schema:
    """The schema of a group of keys, from the fields of a dataclass, with further or other schemas by key (`more`)."""
    hints = hints_of(cls)
    return _object({key: hints[name] for key, name in keys_of(cls).items()}, (cls.__doc__ or "").strip(), **more)


def _object(hints: Mapping[str, Any], description: str, **more: Schema) -> Schema:
    return {
        "type": "object",
        "description": description.partition("\n")[0],
        "properties": {**{key: _value(hint) for key, hint in hints.items()}, **more},
        "additionalProperties": False,
    }


def _schema_of_fixed(cls: type, group: str) -> Schema:
    if group in ("model", "data"):
        return _schema_of_named(group, inner="init_args")
    hints = hints_of(cls)
    nested = [path[1] for path in NAMED if len(path) == 2 and path[0] == group]
    more = {key: {"anyOf": [{"type": "string"}, keys_schema(hints[key])]} for key in nested}
    if group == "local":
        lr = _value(hints["lr"])
        paper = {"type": "object", "properties": {"theory": {"enum": list(PAPERS)}}, "required": ["theory"]}
        more["lr"] = {**lr, "anyOf": [*lr["anyOf"], {**paper, "additionalProperties": False}]}
    return keys_schema(cls, **more)


def _schema_of_named(group: str, inner: str | None = None) -> Schema:
    """The schema of a group that selects a component, with its options beside the name or under the key `inner`."""
    forms: list[Schema] = [{"enum": REGISTRIES[group].names()}]
    for entry in REGISTRIES[group]:
        options = _object(entry.options() or {}, entry.summary)
        if "availability" in options["properties"]:
            options["properties"]["availability"] = {}
        if inner is not None:
            options = {**options, "properties": {inner: options}}
        options["properties"]["name"] = {"const": entry.name}
        forms.append(options)
    return {"anyOf": [*forms, {"type": "object", "required": ["class_path"]}]}


def _value(hint: Any) -> Schema:
    about = {"description": doc} if (doc := doc_of(hint)) else {}
    return {**about, "anyOf": [json_schema(hint), REFERENCE]}
