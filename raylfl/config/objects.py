"""Objects passed from Python instead of named in a config: `raylfl.run(config, model=Net, algorithm=FedCM(mu=0.1))`.

Where possible, an object is written into the config: an importable class or function by its `class_path`, an instance
of a dataclass by its class and options. Other objects (classes of a notebook or of `__main__`, lambdas, instances of
models and data) get a made-up class path, which `registry.standing_for` maps to the object.
"""

import functools
import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from types import CodeType
from typing import Any, TypedDict

from raylfl.components.registry import import_class, library_of
from raylfl.config.components import changed_option, name_of, options_of
from raylfl.config.registries import REGISTRIES
from raylfl.config.schema import NAMED_GROUPS
from raylfl.errors import BadConfig, BadValue

Layer = dict[str, Any]


class Objects(TypedDict, total=False):
    """Keyword arguments of the Python interface, one for each component of a run.

    Each is a class, a factory function, an instance, or a value as in a config (a name or a mapping).
    """

    model: Any
    data: Any
    partition: Any
    participation: Any
    availability: Any
    link: Any
    topology: Any
    algorithm: Any


GROUPS = tuple(Objects.__annotations__)


@dataclass(frozen=True)
class ObjectLayer:
    """Objects passed from Python as a config layer; objects: class path -> object that no other process can import."""

    layer: Layer = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)


def object_layer(objects: Mapping[str, Any], paths: Mapping[str, str] | None = None) -> ObjectLayer:
    """Converts objects (config group -> object) to a config layer; a string or a mapping is used as it is.

    paths: for a resumed run, config group -> class path of the group's object in the saved config. Raises BadConfig for
    an unknown group or an object that no config entry can represent.
    """
    out = ObjectLayer()
    for group in objects:
        if group not in GROUPS:
            raise BadConfig(f"unknown argument {group}; known here: {', '.join(GROUPS)}")
    for group in GROUPS:
        value = objects.get(group)
        if value is None:
            continue
        entry = value
        if not isinstance(value, (str, Mapping)):
            entry = _entry_of(group, value, out.objects, (paths or {}).get(group))
        if group == "availability":
            if not isinstance(out.layer.get("participation", {}), dict):
                raise BadConfig("availability: give participation as an object or a mapping beside it, not as a name")
            out.layer.setdefault("participation", {})["availability"] = entry
        else:
            out.layer[group] = entry
    return out


def _entry_of(group: str, value: Any, objects: dict[str, Any], path: str | None) -> Layer:
    """The config entry of an object, added to `objects` if not importable; path: its class path before a resume."""
    if group not in NAMED_GROUPS and group != "availability":
        return _entry_by_name(group, value, objects, path)
    config_group = "participation" if group == "availability" else group
    if is_factory(value):
        try:
            value = value()
        except Exception as error:
            raise BadConfig(f"{group}: {name_of(value)}() raised {type(error).__name__}: {error}") from error
    if isinstance(value, type):
        return _entry_by_name(config_group, value, objects, path)
    base = REGISTRIES[config_group].base
    assert base is not None
    if not (is_dataclass(value) and isinstance(value, base())):
        raise BadValue(group, got=repr(value), need=f"a class, an instance or a factory of {base().__qualname__}")
    options = options_of(value)
    if (changed := changed_option(value)) is not None:
        raise BadConfig(
            f"{group}: {name_of(type(value))} changes its option {changed} when it is made, so that no config can "
            f"repeat this instance: give the class, and its options in the config ({config_group}.{changed}=...)"
        )
    if group == "availability":
        del options["on_empty"]  # an option of the component that draws empty cohorts again, not of participation
    return {**_entry_by_name(config_group, type(value), objects, path), **options}


def _entry_by_name(group: str, value: Any, objects: dict[str, Any], path: str | None) -> Layer:
    """The config entry {name: ...} or {class_path: ...} of an object; arguments as of `_entry_of`."""
    name = REGISTRIES[group].name_of(value) if isinstance(value, type) else None
    if name is not None:
        return {"name": name}
    if path is not None or not importable(value):
        objects[path or path_of(value)] = value
    return {"class_path": path or path_of(value)}


def is_factory(value: Any) -> bool:
    """Whether the object is a factory function or a `functools.partial`; classes and callable instances are not."""
    return inspect.isroutine(value) or isinstance(value, functools.partial)


def path_of(value: Any) -> str:
    """The class path of an object in a config; with a digest of the content for those that share names."""
    if inspect.isfunction(value) and "<" in value.__qualname__:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        content = code_content(value.__code__), cells, value.__defaults__, value.__kwdefaults__
        return f"{value.__module__}.{value.__qualname__}@{_digest(content)}"
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, functools.partial):
        return f"{path_of(value.func)}@{_digest(value)}"
    return f"{type(value).__module__}.{type(value).__qualname__}@{_digest(value)}"


def code_content(code: CodeType) -> tuple[Any, ...]:
    """What a function's code does, without its place in a file."""
    sets = (sorted(map(repr, c)) if isinstance(c, frozenset) else c for c in code.co_consts)  # in one order
    constants = tuple(code_content(c) if isinstance(c, CodeType) else c for c in sets)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _digest(value: Any) -> str:
    """Eight hex digits that distinguish instances of one class; `instance` if the object cannot be pickled."""
    import cloudpickle

    try:
        return hashlib.sha256(cloudpickle.dumps(value)).hexdigest()[:8]
    except Exception:
        return "instance"


def importable(value: Any) -> bool:
    """Whether another process can import this class or function by its module and name."""
    if not (isinstance(value, type) or inspect.isroutine(value)) or value.__module__ == "__main__":
        return False
    if library_of(value) is not None:  # refused as a class path
        return False
    module = sys.modules.get(value.__module__)
    return getattr(module, "__spec__", None) is not None and getattr(module, value.__qualname__, None) is value


def can_import(path: str, group: str) -> bool:
    try:
        import_class(path, group)
    except BadValue:
        return False
    return True


def passing(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Class path -> class or object, for the components (by config group) that other processes cannot import."""
    objects: dict[str, Any] = {}
    for group in NAMED_GROUPS:
        components = [parts[group], getattr(parts[group], "_process", None)]
        objects |= {path_of(type(c)): type(c) for c in components if c is not None and not importable(type(c))}
    for group in ("model", "data"):
        target = parts[group].target
        if target is not None and not importable(target):
            objects[str(parts[group].class_path)] = target
    return objects
