"""Registries from names to classes, one per kind (algorithms, partitions, links, topologies, models, data, ...).

A component is a dataclass whose fields are its options; one line above the class registers it:

    @PARTITIONS.register("dirichlet", paper="Yurochkin 2019")
    @dataclass
    class Dirichlet(Partition): ...

A new file in the registry's package is enough: `raylfl.components.source` reads the registrations from the source text.
A class is imported when it is first used; mistakes in a config are found before torch is imported. A class outside the
package needs no registration: its `class_path` selects it, or its name as a plug-in, which its package declares:

    [project.entry-points."raylfl.algorithms"]    # partitions, participation, links, topologies, models, data, ...
    fedcm = "fedcm_plugin:FedCM"

Only the metadata of packages are read. A class is imported when a config selects it or `raylfl list` shows it.
"""

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

from raylfl.components import source
from raylfl.errors import LIBRARIES, BadConfig, BadValue, did_you_mean, exits_as_errors

T = TypeVar("T")
OWN = f"{Path(__file__).parents[1]}/"
PACKAGES = tuple(f"{sysconfig.get_path(kind)}/" for kind in ("purelib", "platlib"))
NAMING = ("name", "class_path")  # the keys of a group that select its class; the others are its options


@dataclass(frozen=True)
class Plugin:
    """An entry point: its name in configs, `package.module.Class`, and its package and version: `raylfl-cm 0.1`."""

    name: str
    path: str
    origin: str


def plugins(kind: str) -> dict[str, list[Plugin]]:
    """Name -> plug-ins of this kind (`algorithms`); a name has several if several packages declare it."""
    return _found(kind, tuple(sys.path))


@cache
def _found(kind: str, path: tuple[str, ...]) -> dict[str, list[Plugin]]:
    found: dict[str, list[Plugin]] = {}
    for entry in entry_points(group=f"raylfl.{kind}"):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
        plugin = Plugin(entry.name, entry.value.replace(":", "."), origin)
        same = found.setdefault(entry.name, [])
        if plugin not in same:  # a distribution may be found in two folders of sys.path
            same.append(plugin)
    return found


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered class: its name in configs, a one-line summary, and its paper.

    load: imports the class. options: returns option -> declared type, or None if the class accepts any option.
    origin: the package of a plug-in; empty for raylfl's own classes.
    """

    name: str
    summary: str
    paper: str
    load: Callable[[], type[T]]
    options: Callable[[], dict[str, Any] | None]
    origin: str = ""

    @property
    def cls(self) -> type[T]:
        """The registered class, imported on first use. Raises BadValue for a plug-in that cannot be used."""
        return self.load()

    def about(self) -> str:
        """The summary; for a plug-in that cannot be imported or used, the reason why."""
        try:
            return source.first_line(self.cls.__doc__) if self.origin else self.summary
        except BadConfig as error:
            return f"cannot be used: {error}"


class Registry(Generic[T]):
    """The classes that the key `name` can select in one group of the config.

    kind: the heading in `raylfl list`, such as `algorithms`. package: the package of the shipped classes. base: returns
    the base class of all entries, from which a class given by `class_path` must derive; None: any class.
    """

    def __init__(self, kind: str, package: str, base: Callable[[], type[T]] | None = None):
        self.kind, self.package, self.base = kind, package, base
        self._entries: dict[str, Entry[T]] = {}  # entries of imported classes

    def register(self, name: str, paper: str = "") -> Callable[[type[T]], type[T]]:
        """A class decorator that registers the class. Raises ValueError if the name is taken."""

        def add(cls: type[T]) -> type[T]:
            taken = name in self._entries and self._entries[name].cls.__qualname__ != cls.__qualname__
            if taken or (not _module_of(cls).startswith(f"{self.package}.") and name in self._listed):
                raise ValueError(f"two {self.kind} are called {name}")
            summary = source.first_line(cls.__doc__)
            self._entries[name] = Entry(name, summary, paper, lambda: cls, lambda: source.options_of_class(cls))
            return cls

        return add

    @cached_property
    def _listed(self) -> dict[str, Entry[T]]:
        """Name -> entry of every class registered in the package's files, from their source text."""
        found: dict[str, Entry[T]] = {}
        for declared in source.registered(self.package):
            if declared.name in found:
                raise ValueError(f"two {self.kind} are called {declared.name}")
            about = declared.summary, declared.paper, declared.load, declared.options
            found[declared.name] = Entry(declared.name, *about)
        return found

    @property
    def _own(self) -> dict[str, Entry[T]]:
        return {**self._entries, **self._listed}

    @property
    def _all(self) -> dict[str, Entry[T]]:
        return {**{name: self._plugin(found) for name, found in plugins(self.kind).items()}, **self._own}

    def hidden(self) -> list[Plugin]:
        """Plug-ins with the name of a shipped class; a config can select them by `class_path` only."""
        own = self._own
        return [plugin for name, found in plugins(self.kind).items() if name in own for plugin in found]

    def _plugin(self, found: list[Plugin]) -> Entry[T]:
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

        def options() -> dict[str, Any] | None:
            try:
                return source.options_of_class(load())
            except BadValue:
                return None

        return Entry(name, "", "", load, options, origin)

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(sorted(self._all.values(), key=lambda entry: entry.name))

    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def name_of(self, cls: type) -> str | None:
        """The name under which this class is registered; None if it is not registered."""
        return next((name for name, entry in self._entries.items() if entry.cls is cls), None)

    def get(self, name: str, key: str = "name") -> Entry[T]:
        """The entry of this name. Raises BadValue for `key`, with the nearest known name, if the name is unknown."""
        own = self._own
        entries = own if name in own else self._all  # installed packages are searched for other names only
        if name not in entries:
            hint = did_you_mean(name, entries, f"`raylfl list {self.kind}` explains them")
            raise BadValue(key, got=name, need=f"one of {', '.join(self.names())}", hint=hint)
        return entries[name]

    def find(self, options: Mapping[str, Any], place: str) -> type[T]:
        """The class that `class_path` or `name` selects; a name with a dot is a class path. Raises BadValue."""
        name, path = options.get("name"), options.get("class_path")
        if path is None and "." not in str(name):
            try:
                return self._derived(self.get(str(name)).cls, "name", str(name))
            except BadValue as error:
                raise error.at(place) from None
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
