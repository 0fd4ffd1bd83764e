"""What an option may be: declared types, read by pydantic, with refusals in the user's words."""

from __future__ import annotations

import types
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

OneOrMore = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}


def fitting(hint: Any, value: Any) -> Any:
    """The value as the declared type has it (`"1e-3"` is a number); raises ValueError: what it must be, in words."""
    if isinstance(value, bool) and bool not in _kinds(hint):
        raise ValueError(words(hint))
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError:
        raise ValueError(words(hint)) from None


@lru_cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(coerce_numbers_to_str=True))


def _kinds(hint: Any) -> set[Any]:
    """The plain types that a declared type allows; {bool, ...} for Any and for lists, which check their own."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _kinds(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return {kind for part in get_args(hint) for kind in _kinds(part)}
    return {hint} if hint in (int, float, str, type(None)) else {bool}


def words(hint: Any) -> str:
    """A declared type in words: `a whole number or null`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return words(args[0])
    if origin in (Union, types.UnionType):
        return " or ".join(words(part) for part in args)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (list, tuple):
        return "a list" if args[0] is Any else f"a list, each entry {words(args[0])}"
    if origin is dict:
        return "a group of keys"
    return WORDS.get(hint, getattr(hint, "__name__", str(hint)))
