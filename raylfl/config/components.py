"""Conversion of the plain values of a config to typed objects; an error for an unknown key names the nearest key."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from typing import Any, TypeVar

from raylfl.components.options import Arguments, arguments_of, doc_of, fitting, hints_of, words
from raylfl.components.registry import NAMING, Registry
from raylfl.errors import BadConfig, BadValue, did_you_mean, exits_as_errors

T = TypeVar("T")


def keys_of(cls: type) -> dict[str, str]:
    """A map from config keys to field names of a dataclass; they differ for a Python keyword (`eval.global`)."""
    return {f.metadata.get("key", f.name): f.name for f in dataclasses.fields(cls) if f.init}


def unknown_key(key: str, keys: Iterable[str], dotted_key: str = "") -> BadConfig:
    """The error for a key that is not one of `keys`, with the nearest known key, or a missing blank after a colon."""
    prefix = f"{dotted_key}." if dotted_key else ""
    names = sorted(keys)
    way_out = did_you_mean(key, names, f"known here: {', '.join(names) or 'nothing'}", place=prefix)
    if ":" in key:
        way_out = f"a blank is missing after the colon: {{{key.replace(':', ': ', 1)}}}"
    return BadConfig(f"unknown key {prefix}{key}; {way_out}")


def make_typed(cls: type[T], options: Mapping[str, Any], dotted_key: str = "") -> T:
    """An instance of a dataclass from config keys and values. Raises BadConfig that lists every mistake."""
    keys, hints = keys_of(cls), hints_of(cls)
    values, problems = convert_options({key: hints[name] for key, name in keys.items()}, options, dotted_key)
    options_of_cls = dataclasses.fields(cls)  # type: ignore[arg-type]
    required = [f.name for f in options_of_cls if f.init and f.default is f.default_factory is MISSING]
    problems += [
        f"{dotted_key}.{key} is missing: {doc_of(hints[name]) or words(hints[name])}"
        for key, name in keys.items()
        if name in required and key not in options
    ]
    if not problems:
        try:
            return cls(**{keys[key]: value for key, value in values.items()})
        except BadValue as error:
            problems = error.at(dotted_key).problems if dotted_key else error.problems
    raise BadConfig(problems)


def convert_options(
    hints: Mapping[str, Any], options: Mapping[str, Any], dotted_key: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """The options (key -> value) converted to their types, and messages for unknown keys and bad values."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in options.items():
        try:
            if key not in hints:
                raise unknown_key(str(key), hints, dotted_key)
            values[key] = _convert(hints[key], value, f"{dotted_key}.{key}" if dotted_key else key)
        except BadConfig as error:
            problems += error.problems
    return values, problems


def _convert(hint: Any, value: Any, dotted_key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise BadConfig(f"{dotted_key}={value}, but must be a group of keys")
        return make_typed(hint, value, dotted_key)  # type: ignore[arg-type]
    try:
        return fitting(hint, value)
    except ValueError as error:
        raise BadConfig(f"{dotted_key}={value}, but must be {error}") from None


def mistakes(registry: Registry[Any], component: Any, dotted_key: str) -> list[str]:
    """Messages for an unknown name of a model or data class, and for unknown keys and wrong types in its init_args.

    The arguments of a plug-in and of a class selected by class_path are checked when the object is made.
    """
    if component.class_path is not None or "." in component.name:
        return []
    try:
        entry = registry.get(component.name)
    except BadValue as error:
        return error.at(dotted_key).problems
    hints = entry.options() if component.init_args and not entry.origin else None
    return [] if hints is None else convert_options(hints, component.init_args, f"{dotted_key}.init_args")[1]


def options_of(component: Any) -> dict[str, Any]:
    """Config key -> plain value of every option of a dataclass instance, defaults included."""
    return {key: _plain(getattr(component, name)) for key, name in keys_of(type(component)).items()}


def constructor_options(component: Any, config_options: Mapping[str, Any]) -> dict[str, Any]:
    """The options from which an equal component can be made: `options_of`, unless the class changes its own options.

    If a class outside raylfl does so in `__post_init__`, they are the given options, converted to their types, and
    defaults.
    """
    options, cls = options_of(component), type(component)
    if cls.__module__.partition(".")[0] == "raylfl" or changed_option(component) is None:
        return options
    keys, hints = keys_of(cls), hints_of(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values, _ = convert_options(
        {key: hints[name] for key, name in keys.items()}, {k: config_options[k] for k in keys if k in config_options}
    )
    for key, name in keys.items():
        if key not in values:
            make = fields[name].default_factory
            values[key] = fields[name].default if make is MISSING else make()
    return {key: _plain(values[key]) for key in keys}


def changed_option(component: Any) -> str | None:
    """The key of an option that differs in a second instance made from the component's options; None if none does."""
    options, cls = options_of(component), type(component)
    try:
        again = options_of(cls(**{name: getattr(component, name) for name in keys_of(cls).values()}))
    except Exception:  # an option that was changed is out of its range
        return next(iter(options))
    return next((key for key in options if repr(again[key]) != repr(options[key])), None)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return options_of(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def build(registry: Registry[T], options: Mapping[str, Any], dotted_key: str) -> T:
    """The component that `name` or `class_path` selects, built with the other options. Raises BadConfig."""
    if all(options.get(key) is None for key in NAMING):
        raise BadConfig(f"{dotted_key}.name is missing; one of {', '.join(registry.names())}")
    component_options = {key: value for key, value in options.items() if key not in NAMING}
    return make_typed(registry.choose(options, dotted_key)[0], component_options, dotted_key)


def name_of(factory: Any) -> str:
    """The name of a class, a function or a `functools.partial` of either."""
    return str(getattr(factory, "__name__", None) or name_of(factory.func))


def check_arguments(
    cls: Callable[..., Any], init_args: Mapping[str, Any], dotted_key: str, complete: bool = True
) -> None:
    """Raises BadConfig for names in init_args that the class or function lacks and, if `complete`, for missing ones."""
    parameters = inspect.signature(cls).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in init_args:
            if key not in parameters:
                raise unknown_key(str(key), parameters, f"{dotted_key}.init_args")
    missing = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and name not in init_args
    ]
    if missing and complete:
        raise BadConfig(f"{dotted_key}.init_args.{missing[0]} is missing: {name_of(cls)} needs {', '.join(missing)}")


def construct(cls: Callable[..., Any], init_args: Mapping[str, Any], dotted_key: str) -> Any:
    """The object cls(**init_args). Raises BadConfig for unknown or missing arguments and for any error of the call."""
    check_arguments(cls, init_args, dotted_key)
    if isinstance(cls, type) and issubclass(cls, Arguments):
        init_args, problems = convert_options(arguments_of(cls), init_args, f"{dotted_key}.init_args")
        if problems:
            raise BadConfig(problems)
    try:
        with exits_as_errors():
            return cls(**init_args)
    except BadValue as error:
        raise error.at(f"{dotted_key}.init_args") from None
    except BadConfig:
        raise
    except Exception as error:
        text = ", ".join(f"{k}={v!r}" for k, v in init_args.items())
        call = f"{name_of(cls)}({text if len(text) < 200 else text[:197] + '...'})"
        raise BadConfig(f"{dotted_key}: {call} raised {type(error).__name__}: {error}") from error
