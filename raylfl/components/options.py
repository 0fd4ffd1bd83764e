"""Options of components: annotated fields, checked by pydantic, with errors for the user.

    b1: Annotated[float, Ge(0), Lt(1), Doc("the decay of m")] = 0.9

A value outside the limits raises BadValue, in a config and in Python: `b1=1.0, but must be in [0, 1), the decay of m`.
Limits that involve several fields are checked in `__post_init__`, after `super().__post_init__()`. A subclass that
redeclares a field without limits (`b1: float = 0.0`) inherits its parent's limits. Models and data sets, which are not
dataclasses, annotate the arguments of their constructors in the same way (`Arguments`).
"""

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, reduce
from inspect import get_annotations, signature
from operator import or_
from typing import Annotated, Any, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge as Ge
from annotated_types import Gt as Gt
from annotated_types import Le as Le
from annotated_types import Lt as Lt
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import Doc as Doc

from raylfl.errors import BadValue

T = TypeVar("T")
OneOrMore = Annotated[list[T], BeforeValidator(lambda given: [given] if isinstance(given, (str, dict)) else given)]
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "null"}
LIMITS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}


@dataclass(frozen=True)
class Kind:
    """The name, for messages, of a type that Python cannot express: `Annotated[Any, Kind("a value per client")]`."""

    text: str


@dataclass(frozen=True)
class UsedWith:
    """Marks an option that is used only if another one has one of these values: `UsedWith("name", ("sqrt",))`."""

    option: str
    values: tuple[str, ...]

    def text(self, prefix: str = "") -> str:
        """The condition as text; prefix: of the option's key, such as `local.`."""
        return " or ".join(f"{prefix}{self.option}={value}" for value in self.values)


class Options:
    """The base class of dataclasses whose fields are checked and converted when an instance is created."""

    def __post_init__(self) -> None:
        hints = hints_of(type(self))
        for option in fields(self):  # type: ignore[arg-type]
            if option.init:
                key = option.metadata.get("key", option.name)
                setattr(self, option.name, _accepted(key, hints[option.name], getattr(self, option.name)))


class Arguments:
    """The base class of models and data sets: annotated arguments of `__init__` are checked before it is called."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        hints = arguments_of(cls)
        for name, value in signature(cls.__init__).bind_partial(made, *args, **kwargs).arguments.items():
            if name in hints:
                _accepted(name, hints[name], value)
        return made


def _cached(function: Callable[[Any], T]) -> Callable[[Any], T]:
    return cache(function)  # mypy takes a class with unhashable instances for unhashable


@_cached
def arguments_of(cls: Any) -> dict[str, Any]:
    """Argument -> declared type, for the constructor of a class."""
    hints = get_type_hints(cls.__init__, include_extras=True)
    return {name: nullable(hints.get(name, Any)) for name in list(signature(cls.__init__).parameters)[1:]}


def options_of_class(cls: type) -> dict[str, Any] | None:
    """Option -> declared type, for a dataclass or the constructor of a class; None if that accepts any option."""
    if is_dataclass(cls):
        hints = hints_of(cls)
        return {field.name: hints[field.name] for field in fields(cls) if field.init}
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in signature(cls).parameters.values())
    return None if accepts_any else arguments_of(cls)


def _accepted(key: str, hint: Any, value: Any) -> Any:
    try:
        return fitting(hint, value)
    except ValueError as need:
        raise BadValue(key, got=value, need=str(need)) from None


@_cached
def hints_of(cls: Any) -> dict[str, Any]:
    """Field -> declared type, for a dataclass; types include limits inherited from parent classes."""
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        if is_dataclass(owner):
            hints = get_type_hints(owner, include_extras=True)
            for name in get_annotations(cast(type, owner)):
                found[name] = inherited(nullable(hints[name]), found.get(name))
    return found


def inherited(hint: Any, before: Any) -> Any:
    """The type of a field that a subclass declares again: `hint`, or without limits of its own, with the parent's."""
    if any(get_origin(part) is Annotated for part in _parts(hint)):
        return hint
    limits = next((get_args(part)[1:] for part in _parts(before) if get_origin(part) is Annotated), ())
    if not limits:
        return hint
    plain = {get_args(part)[0] for part in _parts(before) if get_origin(part) is Annotated}
    numbers = plain | ({int, float} if plain & {int, float} else set())
    parts = [Annotated[(part, *limits)] if part in numbers else part for part in _parts(hint)]
    return reduce(or_, parts)


def nullable(hint: Any) -> Any:
    """`Annotated[T | None, ...]` as `Annotated[T, ...] | None`, whose limits are those of T; other types unchanged."""
    if get_origin(hint) is not Annotated or type(None) not in (parts := _parts(get_args(hint)[0])):
        return hint
    return Annotated[(reduce(or_, [part for part in parts if part is not type(None)]), *get_args(hint)[1:])] | None


def without_effect(options: Options, group: str) -> list[str]:
    """A line for each option that is set and not used: `local.b1=0.5 has no effect: it is used with ...`.

    group: the dotted key of these options.
    """
    lines = []
    for option in fields(options):  # type: ignore[arg-type]
        value, used = getattr(options, option.name), _extra(hints_of(type(options))[option.name], UsedWith)
        if used is not None and value != option.default and getattr(options, used.option) not in used.values:
            lines.append(f"{group}.{option.name}={value} has no effect: it is used with {used.text(f'{group}.')}")
    return lines


def _parts(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union type; (hint,) for any other type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def fitting(hint: Any, value: Any) -> Any:
    """The value converted to the declared type (`"1e-3"` to a number). Raises ValueError with the type in words."""
    if is_dataclass(hint) and isinstance(value, hint):  # type: ignore[arg-type]
        return value  # a group of keys, which has been checked already
    if isinstance(value, bool) and bool not in _kinds(hint):
        raise ValueError(words(hint))
    if isinstance(value, float) and str in (kinds := _kinds(hint)) and not kinds & {int, float}:
        raise ValueError(f"""{words(hint)}, in quotes if it looks like a number: '"1e3"'""")
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        raise ValueError(words(hint, bare=all(found["type"] in LIMITS for found in error.errors()))) from None


def json_schema(hint: Any) -> dict[str, Any]:
    """The JSON schema of a declared type; {}, which allows any value, for a dataclass."""
    return {} if is_dataclass(hint) else _adapter(hint).json_schema()


def words(hint: Any, bare: bool = False, docs: bool = True) -> str:
    """A declared type in words: `a number in [0, 1), the decay of m`.

    bare: whether the kind (`a number`) of a type with limits is left out. docs: whether the text of its `Doc` is added,
    up to the first semicolon.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        named = [part.text for part in args[1:] if isinstance(part, Kind)]
        limits = _limits(args[1:])
        kind = "" if bare and limits else named[0] if named else words(args[0], bare, docs)
        said = [doc_of(hint).partition(";")[0]] if docs and limits and doc_of(hint) else []
        return ", ".join([" ".join(filter(None, (kind, limits))), *said])
    if origin in (Union, types.UnionType):
        said = [words(part, bare, docs) for part in args]
        return (", or " if any(", " in part for part in said) else " or ").join(said)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (list, tuple):
        return "a list" if args[0] is Any else f"a list, each entry {words(args[0], docs=docs)}"
    if origin is dict:
        return "a group of keys"
    return WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def doc_of(hint: Any) -> str:
    """The text of the `Doc` in a declared type, and what the option is used with; "" if it has none."""
    doc, used = _extra(hint, Doc), _extra(hint, UsedWith)
    return ("" if doc is None else doc.documentation) + ("" if used is None else f"; used with `{used.text()}`")


def _extra(hint: Any, kind: type[T]) -> T | None:
    """The annotation of this kind in a declared type; None if it has none."""
    extras = [extra for part in _parts(hint) for extra in getattr(part, "__metadata__", ())]
    return next((extra for extra in extras if isinstance(extra, kind)), None)


def _limits(metadata: Sequence[Any]) -> str:
    """The limits of a type as text, from its annotations: `in [0, 1)`, `> 0`; "" if there are none."""
    low = next((part for part in metadata if isinstance(part, (Ge, Gt))), None)
    high = next((part for part in metadata if isinstance(part, (Le, Lt))), None)
    least = None if low is None else low.ge if isinstance(low, Ge) else low.gt
    most = None if high is None else high.le if isinstance(high, Le) else high.lt
    if low is not None and high is not None:
        return f"in {'[' if isinstance(low, Ge) else '('}{least}, {most}{']' if isinstance(high, Le) else ')'}"
    if low is not None:
        return f"{'>=' if isinstance(low, Ge) else '>'} {least}"
    return "" if high is None else f"{'<=' if isinstance(high, Le) else '<'} {most}"


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(
        hint, config=ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    )


def _kinds(hint: Any) -> set[Any]:
    """The plain types (int, float, str, None) that a declared type allows; bool leaves any other to pydantic."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _kinds(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return {kind for part in get_args(hint) for kind in _kinds(part)}
    return {hint} if hint in (int, float, str, type(None)) else {bool}
