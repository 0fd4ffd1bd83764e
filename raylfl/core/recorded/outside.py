"""The variables outside a module that its training step may read: globals, class attributes, closures, defaults.

Only users' code is searched. The functions of Python, torch, raylfl and installed packages have no state that counts.
"""

from __future__ import annotations

import dis
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

FIRST = frozenset({"training_step", "forward"})  # the methods with which a step begins
UNUSED = frozenset({"__init__", "__new__", "__init_subclass__", "__class_getitem__"})  # special methods no step calls


class Outside(str):
    """The path of a variable that is not an attribute of the module, such as `mine.CONFIG['scale']`."""


class Variable(NamedTuple):
    """A variable outside the module: its path, and a function that returns its current value."""

    path: Outside
    value: Callable[[], Any]


@cache
def own(name: str | None) -> bool:
    """Whether the Python module of this name is a user's code, and not of Python, raylfl or an installed package."""
    root = (name or "").partition(".")[0]
    file = getattr(sys.modules.get(name or ""), "__file__", None) or ""
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return root != "raylfl" and root not in sys.stdlib_module_names and not installed


def variables(classes: Iterable[type], functions: Iterable[FunctionType]) -> list[Variable]:
    """The variables that `training_step` and `forward` of these classes read, directly or through other functions.

    The search goes by names: if the code of a function contains a name, the function is assumed to call every Python
    method of this name. functions: further functions that the step may call, such as hooks.
    """
    search = _Search()
    for cls in classes:
        search.add_class(cls)
    for function in functions:
        search.add(function)
    for name in FIRST:
        search.use(name)
    return search.found


class _Search:
    """A search for variables: `found`, and the classes and functions that it has seen."""

    def __init__(self) -> None:
        self.found: list[Variable] = []
        self.names: set[str] = set()
        self.members: dict[str, list[tuple[type, Any]]] = defaultdict(list)  # of all classes, by name
        self.seen: dict[int, Any] = {}  # kept alive, so that no other object gets the same id

    def new(self, thing: Any) -> bool:
        """Whether the search sees this class or function for the first time; from now on it has seen it."""
        known = id(thing) in self.seen
        self.seen[id(thing)] = thing
        return not known

    def add_class(self, cls: type) -> None:
        """Adds those members of a class and its bases whose names are marked as used, and all special methods."""
        for base in cls.__mro__:
            if not own(base.__module__) or not self.new(base):
                continue
            for name, member in vars(base).items():
                self.members[name].append((base, member))
                special = name.startswith("__") and bool(functions_of(member)) and name not in UNUSED
                if special or name in self.names:
                    self.add_member(base, name, member)

    def use(self, name: str) -> None:
        """Marks a name as used, and adds the members of this name of all classes seen so far."""
        if name not in self.names:
            self.names.add(name)
            for cls, member in self.members[name]:
                self.add_member(cls, name, member)

    def add_member(self, cls: type, name: str, member: Any) -> None:
        if found := functions_of(member):
            for function in found:
                self.add(function)
        elif not name.startswith("__"):
            self.keep(f"{cls.__module__}.{cls.__qualname__}.{name}", partial(getattr, cls, name, None))

    def keep(self, path: str, value: Callable[[], Any]) -> None:
        """Adds a variable, and searches its value: the value's functions, or its class if it has none."""
        self.found.append(Variable(Outside(path), value))
        now = value()
        if isinstance(now, type):
            self.add_class(now)
        elif found := functions_of(now):
            for function in found:
                self.add(function)
        else:
            self.add_class(type(now))

    def add(self, function: FunctionType) -> None:
        """Adds a function: adds the variables that it reads, and marks the names in its code as used."""
        if not self.new(function):
            return
        if own(function.__globals__.get("__name__")):
            for path, value in _variables_of(function):
                self.keep(path, value)
        for name in _names(function.__code__):
            self.use(name)


def _variables_of(function: FunctionType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(path, function that returns the value) of each variable that a function reads."""
    place = f"{function.__module__}.{function.__qualname__}"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            yield f"{place}.{name}", partial(_content, cell)
    for name in ("__defaults__", "__kwdefaults__", "__dict__"):
        if getattr(function, name):
            yield f"{place}.{name}", partial(getattr, function, name)
    names = _names(function.__code__)
    around = function.__globals__
    for name in sorted(_global_names(function.__code__) & around.keys()):
        value = around[name]
        if isinstance(value, ModuleType):
            if own(value.__name__):
                for part in sorted(names & vars(value).keys()):
                    yield f"{value.__name__}.{part}", partial(vars(value).get, part)
        else:
            yield f"{function.__module__}.{name}", partial(around.get, name)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def functions_of(member: Any) -> list[FunctionType]:
    """The Python functions in `member`: a function, method, property, partial object, or a wrapper of one of these."""
    found, todo = [], [member]
    while todo:
        thing = todo.pop()
        if isinstance(thing, FunctionType):
            found.append(thing)
        elif isinstance(thing, property):
            todo += [thing.fget, thing.fset]
        elif isinstance(thing, (partial, cached_property)):
            todo.append(thing.func)
        elif hasattr(thing, "__func__"):
            todo.append(thing.__func__)
        wrapped = getattr(thing, "__wrapped__", None)
        if wrapped is not None and wrapped not in found:
            todo.append(wrapped)
    return found


@cache
def _global_names(code: CodeType) -> frozenset[str]:
    """The names of globals in a function's code and in the functions inside it, without attributes of the same name."""
    found = [i.argval for i in dis.get_instructions(code) if "GLOBAL" in i.opname or i.opname == "LOAD_NAME"]
    return frozenset(found).union(*(_global_names(part) for part in code.co_consts if isinstance(part, CodeType)))


@cache
def _names(code: CodeType) -> frozenset[str]:
    """The names of globals and attributes in a function's code and in the functions inside it."""
    inside = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return frozenset(code.co_names).union(*inside)
