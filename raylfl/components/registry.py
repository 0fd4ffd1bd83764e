"""Registries from names to classes, one per kind (algorithms, partitions, links, topologies, models, data, ...).

A component is a dataclass whose fields are its options; one line above the class registers it:

    @PARTITIONS.register("dirichlet", paper="Yurochkin 2019")
    @dataclass
    class Dirichlet(Partition): ...

A new file in the registry's package is enough. Registrations are read from the source text, so that components are
listed without importing torch; a class is imported when it is first used. A class outside the package needs no
registration: its `class_path` selects it, or its name as a plug-in, which its package declares:

    [project.entry-points."raylfl.algorithms"]    # partitions, participation, links, topologies, models, data, ...
    fedcm = "fedcm_plugin:FedCM"

Only the metadata of packages are read. A class is imported when a config selects it or `raylfl list` shows it.
"""

import ast
import importlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from raylfl.components.options import options_of_class
from raylfl.errors import LIBRARIES, BadConfig, BadValue, did_you_mean, exits_as_errors, placed

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
OWN = f"{ROOT}/raylfl/"
PACKAGES = tuple(f"{sysconfig.get_path(kind)}/" for kind in ("purelib", "platlib"))
NAMING = ("name", "class_path")  # the keys of a group that select its class; the others are its options


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A class with a name in configs, its path `package.module.Class`, a one-line summary and its paper.

    origin: of a plug-in, an entry point, its package and version (`raylfl-cm 0.1`). load: imports a plug-in.
    """

    name: str
    path: str
    summary: str = ""
    paper: str = ""
    origin: str = ""
    load: Callable[[], type[T]] | None = None

    @property
    def cls(self) -> type[T]:
        """The registered class, imported on first use. Raises BadValue for a plug-in that cannot be used."""
        if self.load is not None:
            return self.load()
        module, _, name = self.path.rpartition(".")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def options(self) -> dict[str, Any] | None:
        """Option -> declared type; None if the class accepts any option, or is a plug-in that cannot be used."""
        try:
            return options_of_class(self.cls)
        except BadValue:
            return None

    def about(self) -> str:
        """The summary; for a plug-in that cannot be imported or used, the reason why."""
        try:
            return first_line(self.cls.__doc__) if self.origin else self.summary
        except BadConfig as error:
            return f"cannot be used: {error}"


def first_line(docstring: str | None) -> str:
    """The first line of a docstring without its full stop."""
    return (docstring or "").strip().partition("\n")[0].rstrip(".")


def registered(package: str) -> Iterator[Entry[Any]]:
    """The classes registered in the files of a package of raylfl, or of `papers` beside it, by the files' names."""
    for file in sorted(ROOT.joinpath(*package.split(".")).glob("*.py")):
        classes = (node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.ClassDef))
        for node in classes:
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "attr", None) == "register":
                    options = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
                    name, summary = ast.literal_eval(call.args[0]), first_line(ast.get_docstring(node))
                    yield Entry(name, f"{package}.{file.stem}.{node.name}", summary, options.get("paper", ""))


def plugins(kind: str) -> dict[str, list[Entry[Any]]]:
    """Name -> plug-ins of this kind (`algorithms`); a name has several if several packages declare it."""
    return _plugins(kind, tuple(sys.path))


@cache
def _plugins(kind: str, path: tuple[str, ...]) -> dict[str, list[Entry[Any]]]:
    entries: dict[str, list[Entry[Any]]] = {}
    for point in entry_points(group=f"raylfl.{kind}"):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
        entry: Entry[Any] = Entry(point.name, point.value.replace(":", "."), origin=origin)
        same = entries.setdefault(point.name, [])
        if entry not in same:  # a distribution may be found in two folders of sys.path
            same.append(entry)
    return entries


class Registry(Generic[T]):
    """The classes that the key `name` can select in one group of the config.

    kind: the heading in `raylfl list`, such as `algorithms`. package: the package of the shipped classes. base: returns
    the base class of all entries, from which a class given by `class_path` must derive; None: any class.
    """

    def __init__(self, kind: str, package: str, base: Callable[[], type[T]] | None = None):
        self.kind, self.package, self.base = kind, package, base

    def register(self, name: str, paper: str = "") -> Callable[[type[T]], type[T]]:
        """A class decorator that marks a class of the registry's package: `registered` reads its arguments.

        Raises ValueError for a class of another package, which needs no registration.
        """

        def mark(cls: type[T]) -> type[T]:
            if not _module_of(cls).startswith(f"{self.package}."):
                raise ValueError(f"{cls.__qualname__} is not in {self.package}: class_path selects it")
            return cls

        return mark

    @cached_property
    def shipped(self) -> dict[str, Entry[T]]:
        """Name -> entry of every class registered in the package's files."""
        entries: dict[str, Entry[T]] = {}
        for entry in registered(self.package):
            if entry.name in entries:
                raise ValueError(f"two {self.kind} are called {entry.name}")
            entries[entry.name] = entry
        return entries

    @property
    def _all(self) -> dict[str, Entry[T]]:
        return {**{name: self._plugin(found) for name, found in plugins(self.kind).items()}, **self.shipped}

    def hidden(self) -> list[Entry[T]]:
        """Plug-ins with the name of a shipped class; a config can select them by `class_path` only."""
        return [plugin for name, found in plugins(self.kind).items() if name in self.shipped for plugin in found]

    def _plugin(self, found: list[Entry[T]]) -> Entry[T]:
        """The entry of plug-ins with one name, usually one; `load` raises BadValue for several and unusable ones."""
        name, origin = found[0].name, " and ".join(plugin.origin for plugin in found)

        def load() -> type[T]:
            if len(found) > 1:
                ways = " or ".join(f"class_path={plugin.path}" for plugin in found)
                raise BadValue("name", got=name, need="the name of one plug-in", hint=f"{origin} offer it: say {ways}")
            try:
                return self._derived(import_class(found[0].path, "", plugin=True), "class_path", found[0].path)
            except BadValue as error:
                reason = error.hint or f"{error.got} must be {error.need}"
                raise BadValue("name", got=name, need="a plug-in that works", hint=f"{origin}: {reason}") from error

        return Entry(name, found[0].path, origin=origin, load=load)

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(sorted(self._all.values(), key=lambda entry: entry.name))

    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def name_of(self, cls: type) -> str | None:
        """The name under which this class is registered; None if it is not registered."""
        path = f"{_module_of(cls)}.{cls.__qualname__}"
        return next((entry.name for entry in self.shipped.values() if entry.path == path), None)

    def get(self, name: str, key: str = "name") -> Entry[T]:
        """The entry of this name. Raises BadValue for `key`, with the nearest known name, if the name is unknown."""
        entries = self.shipped if name in self.shipped else self._all  # packages are searched for other names only
        if name not in entries:
            hint = did_you_mean(name, entries, f"`raylfl list {self.kind}` explains them")
            raise BadValue(key, got=name, need=f"one of {', '.join(self.names())}", hint=hint)
        return entries[name]

    def find(self, options: Mapping[str, Any], place: str) -> type[T]:
        """The class that `class_path` or `name` selects; a name with a dot is a class path. Raises BadValue."""
        name, path = options.get("name"), options.get("class_path")
        if path is None and "." not in str(name):
            with placed(place):
                return self._derived(self.get(str(name)).cls, "name", str(name))
        path = str(name if path is None else path)
        return self._derived(import_class(path, place), f"{place}.class_path", path)

    def choose(self, options: Mapping[str, Any], place: str) -> tuple[type[T], dict[str, str]]:
        """The class selected by `find`, and the keys (`name`, perhaps `class_path`) that select it in any process.

        With a class_path, `name` is only the label of the class in tables and legends. A class registered outside
        raylfl gets its import path as class_path. Raises BadValue.
        """
        name, path, cls = options.get("name"), options.get("class_path"), self.find(options, place)
        if path is None and "." not in str(name):
            outside = not cls.__module__.startswith("raylfl.")
            return cls, {"name": str(name)} | (
                {"class_path": f"{cls.__module__}.{cls.__qualname__}"} if outside else {}
            )
        label, path = (cls.__name__, name) if path is None else (str(name or cls.__name__), path)
        if label in self._all and self.get(label).cls is not cls:
            need = "left out, or a name that is not taken"
            raise BadValue(f"{place}.name", got=label, need=need, hint=f"the class is that of {place}.class_path")
        return cls, {"name": label, "class_path": str(path)}

    def _derived(self, cls: Any, key: str, value: str) -> type[T]:
        """The class, if it is a dataclass derived from `base`, without abstract methods. Raises BadValue."""
        if self.base is None:
            return cls  # type: ignore[no-any-return]
        base = self.base()
        if isinstance(cls, type) and is_dataclass(cls) and issubclass(cls, base):
            if not (missing := sorted(getattr(cls, "__abstractmethods__", ()))):
                return cls
            need = f"a class that defines {' and '.join(missing)}, as the docstrings of its base class say"
        else:
            need = f"a dataclass derived from {base.__module__}.{base.__qualname__}"
        raise BadValue(key, got=value, need=need)


_given: ContextVar[Mapping[str, Any]] = ContextVar("objects by the class paths that they stand for")


@contextmanager
def standing_for(objects: Mapping[str, Any]) -> Iterator[None]:
    """A context in which `import_class` returns these objects (class path -> object) instead of importing them."""
    token = _given.set(objects)
    try:
        yield
    finally:
        _given.reset(token)


def given_for(path: str) -> bool:
    return path in _given.get({})


def import_class(path: str, place: str, plugin: bool = False) -> Any:
    """The object at `package.module.Class`, or the object that `standing_for` maps to this path.

    plugin: whether a package has registered the object. Otherwise objects of Python's own modules, and functions of
    raylfl and of installed packages, are refused: a config would call them with arguments of its choice. Raises
    BadValue with the key `<place>.class_path` and the reason if the object is refused or cannot be imported.
    """
    if given_for(path):
        return _given.get()[path]
    module_name, _, name = path.rpartition(".")

    def refusal(reason: str) -> BadValue:
        return BadValue(f"{place}.class_path", got=path, need="the path of an importable class", hint=reason)

    if not module_name:
        raise refusal("such as package.module.Class")
    try:
        with exits_as_errors():
            module = importlib.import_module(module_name)
    except ImportError as error:
        raise refusal(
            f"cannot import {module_name}: {error}; looked for in the working directory and on PYTHONPATH"
        ) from error
    except Exception as error:
        raise refusal(f"importing {module_name} raised {error!r}") from error
    if not hasattr(module, name):
        hint = did_you_mean(name, dir(module))
        raise refusal(f"{module_name} has no {name}" + (f"; {hint}" if hint else ""))
    value = getattr(module, name)
    if not plugin and (library := library_of(value)) is not None:
        what = "a function" if inspect.isroutine(value) else "a class"
        raise refusal(f"{path} is {what} of {library}; call it in a function or class of your own module")
    return value


def library_of(value: Any) -> str | None:
    """The library of a function of raylfl or an installed package, or of a function or class of Python; else None."""
    if isinstance(value, partial):
        return library_of(value.func)
    if not (isinstance(value, type) or inspect.isroutine(value)):
        return None
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    file = str(getattr(module, "__file__", None) or "")
    installed = file.startswith(LIBRARIES)
    if not file or (installed and not file.startswith((OWN, *PACKAGES))):
        return "Python"
    return str(value.__module__).partition(".")[0] if installed and inspect.isroutine(value) else None


def _module_of(cls: type) -> str:
    """The name of the module of a class; also right for a module that is run as a command (`python -m`)."""
    spec = getattr(sys.modules.get(cls.__module__), "__spec__", None)
    return cls.__module__ if spec is None else str(spec.name)
