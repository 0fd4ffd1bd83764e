"""Conversion of the plain values of a config to typed objects; an error for an unknown key names the nearest key."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from raylfl.components.options import Arguments, arguments_of, fitting, hints_of
from raylfl.components.registry import NAMING, Registry
from raylfl.errors import BadConfig, BadValue, did_you_mean, exits_as_errors

T = TypeVar("T")


def keys_of(cls: type) -> dict[str, str]:
    """A map from config keys to field names of a dataclass; they differ for a Python keyword (`eval.global`)."""
    return {f.metadata.get("key", f.name): f.name for f in dataclasses.fields(cls) if f.init}


def unknown_key(key: str, known: Iterable[str], place: str = "") -> BadConfig:
    """The error for a key that is not one of `known`, with the nearest known key.

    If the key contains a colon, such as `name:iid` in {name:iid}, the remedy is a blank after the colon.
    """
    prefix = f"{place}." if place else ""
    names = sorted(known)
    way_out = did_you_mean(key, names, f"known here: {', '.join(names) or 'nothing'}", place=prefix)
    if ":" in key:
        way_out = f"a blank is missing after the colon: {{{key.replace(':', ': ', 1)}}}"
    return BadConfig(f"unknown key {prefix}{key}; {way_out}")


def typed(cls: type[T], options: Mapping[str, Any], place: str = "") -> T:
    """An instance of the dataclass `cls` from config keys and values. Raises BadConfig that lists every mistake.

    place: the dotted key of the options in the config, for messages.
    """
    keys, hints = keys_of(cls), hints_of(cls)
    values, problems = converted({key: hints[name] for key, name in keys.items()}, options, place)
    if not problems:
        try:
            return cls(**{keys[key]: value for key, value in values.items()})
        except BadValue as error:
            problems = error.at(place).problems if place else error.problems
        except TypeError as error:  # a required option is missing
            problems = [f"{place}: {str(error).replace(cls.__name__ + '.__init__()', cls.__name__)}"]
    raise BadConfig(problems)


def converted(
    hints: Mapping[str, Any], options: Mapping[str, Any], place: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Converts options to their types; returns (converted options, error messages for unknown keys and bad values).

    hints: key -> type. place: the dotted key of the options in the config, for messages.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in options.items():
        try:
            if key not in hints:
                raise unknown_key(str(key), hints, place)
            values[key] = _converted(hints[key], value, f"{place}.{key}" if place else key)
        except BadConfig as error:
            problems += error.problems
    return values, problems


def _converted(hint: Any, value: Any, place: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise BadConfig(f"{place}={value}, but must be a group of keys")
        return typed(hint, value, place)  # type: ignore[arg-type]
    try:
        return fitting(hint, value)
    except ValueError as error:
        raise BadConfig(f"{place}={value}, but must be {error}") from None


def mistakes(
    registry: Registry[Any], choice: Mapping[str, Any], options: Mapping[str, Any], place: str, inner: str = ""
) -> list[str]:
    """Error messages for an unknown name, unknown keys and wrong types, found without importing the component's class.

    choice: a mapping with `name` or `class_path`. place: the component's dotted key in the config. inner: the key that
    contains the options, such as init_args; empty: the options are beside the name. A class given by class_path or a
    plug-in gives no messages here: its options are checked when the component is built.
    """
    name = str(choice.get("name"))
    if choice.get("class_path") is not None or "." in name:
        return []
    try:
        entry = registry.get(name)
    except BadValue as error:
        return error.at(place).problems
    known = None if entry.origin else entry.options()  # a plug-in is checked when it is built
    if known is None:
        return []
    keys = known if inner else {**known, **dict.fromkeys(NAMING, Any)}
    return converted(keys, options, f"{place}.{inner}" if inner else place)[1]


def options_of(component: Any) -> dict[str, Any]:
    """Config key -> plain value of every option of a dataclass instance, defaults included."""
    return {key: _plain(getattr(component, name)) for key, name in keys_of(type(component)).items()}


def given_options(component: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options from which an equal component can be made: `options_of`, unless the class changes its own options.

    If a class outside raylfl computes an option from itself in `__post_init__`, they are the given options, converted
    to their types, and defaults. given: config key -> value.
    """
    found, cls = options_of(component), type(component)
    if cls.__module__.partition(".")[0] == "raylfl" or changed_option(component) is None:
        return found
    keys, hints = keys_of(cls), hints_of(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values, _ = converted({key: hints[name] for key, name in keys.items()}, {k: given[k] for k in keys if k in given})
    defaults = {key: _default(fields[name]) for key, name in keys.items() if key not in values}
    return {key: _plain({**defaults, **values}[key]) for key in keys}


def changed_option(component: Any) -> str | None:
    """The config key of an option that a second instance, made from the component's options, has otherwise.

    None if the options of both are equal, as they should be.
    """
    found, cls = options_of(component), type(component)
    try:
        again = options_of(cls(**{name: getattr(component, name) for name in keys_of(cls).values()}))
    except Exception:  # an option that was changed is out of its range
        return next(iter(found))
    return next((key for key in found if repr(again[key]) != repr(found[key])), None)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return options_of(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def build(registry: Registry[T], options: Mapping[str, Any], place: str) -> T:
    """The component that `name` or `class_path` selects, built with the other options. Raises BadConfig."""
    if all(options.get(key) is None for key in NAMING):
        raise BadConfig(f"{place}.name is missing; one of {', '.join(registry.names())}")
    own = {key: value for key, value in options.items() if key not in NAMING}
    problems = mistakes(registry, options, own, place)
    if problems:
        raise BadConfig(problems)
    return typed(registry.choose(options, place).cls, own, place)


def name_of(factory: Any) -> str:
    """The name of a class, a function or a `functools.partial` of either."""
    return str(getattr(factory, "__name__", None) or name_of(factory.func))


def check_arguments(cls: Callable[..., Any], init_args: Mapping[str, Any], place: str, complete: bool = True) -> None:
    """Checks the names in init_args against the signature of the class or function.

    Raises BadConfig for unknown arguments and, if `complete`, for missing ones.
    """
    parameters = inspect.signature(cls).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in init_args:
            if key not in parameters:
                raise unknown_key(str(key), parameters, f"{place}.init_args")
    missing = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and name not in init_args
    ]
    if missing and complete:
        raise BadConfig(f"{place}.init_args.{missing[0]} is missing: {name_of(cls)} needs {', '.join(missing)}")


def construct(cls: Callable[..., Any], init_args: Mapping[str, Any], place: str) -> Any:
    """The object cls(**init_args). Raises BadConfig for unknown or missing arguments and for any error of the call."""
    check_arguments(cls, init_args, place)
    if isinstance(cls, type) and issubclass(cls, Arguments):
        init_args, problems = converted(arguments_of(cls), init_args, f"{place}.init_args")
        if problems:
            raise BadConfig(problems)
    try:
        with exits_as_errors():
            return cls(**init_args)
    except BadValue as error:
        raise error.at(f"{place}.init_args") from None
    except BadConfig:
        raise
    except Exception as error:
        raise BadConfig(
            f"{place}: {name_of(cls)}({_shown(init_args)}) raised {type(error).__name__}: {error}"
        ) from error


def _shown(init_args: Mapping[str, Any]) -> str:
    text = ", ".join(f"{k}={v!r}" for k, v in init_args.items())
    return text if len(text) < 200 else text[:197] + "..."
