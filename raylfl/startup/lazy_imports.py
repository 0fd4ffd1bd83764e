"""Lightning without what it imports and nobody asked for; the rest of that when somebody does.

For processes of raylfl's own (the command line, actors), which call `install` before; a program that only imports
raylfl is left alone.

- torchmetrics, whose package imports every metric there is, and with them scipy.signal, torchvision and matplotlib:
  1.5 s and 110 MB, for two classes. The package is there with these two, and becomes whole at the first look at
  anything else in it; its plotting becomes so at the first plot.
- torch's compiler (torch._dynamo, and with it sympy): 1 to 2 s and 50 MB, for a class that Lightning tests modules
  against and a decorator that it marks one method with. Stand-ins take their place while Lightning is imported; the
  compiler itself is imported by whoever compiles.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

PACKAGE, PLOTS = "torchmetrics", "torchmetrics.utilities.plot"
LIGHTNING, COMPILER = "lightning", "torch._dynamo"
NEEDED = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}
Whole = Callable[[str], Any]  # an attribute of the module once it is executed


def install() -> None:
    """Have Lightning imported lean; nothing where torchmetrics was imported already."""
    if PACKAGE not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _of_package(name: str, whole: Whole) -> Any:
    if name in NEEDED:
        try:
            return getattr(import_module(NEEDED[name]), name)
        except (ImportError, AttributeError):  # a version that is arranged otherwise
            pass
    return whole(name)


def _of_plots(name: str, whole: Whole) -> Any:
    if name.endswith("_TYPE"):  # stands in annotations only
        return Any
    if name.startswith("plot_"):
        return lambda *args, **kwargs: whole(name)(*args, **kwargs)
    return whole(name)


class _MaybeCompiled(type):
    """An object is an OptimizedModule only if the compiler, which makes them, was imported."""

    def __instancecheck__(cls, instance: Any) -> bool:
        real = getattr(sys.modules.get(COMPILER), "OptimizedModule", cls)
        return real is not cls and isinstance(instance, real)


class _StandIn(ModuleType):
    """What Lightning needs of the compiler to be imported; whoever asks for more meanwhile gets the compiler."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.OptimizedModule = _MaybeCompiled("OptimizedModule", (), {})
        self.disable = _as_it_is
        self.__path__: list[str] = []  # a package, whose parts `_PartsOf` finds

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {COMPILER!r} has no attribute {name!r}")
        self.leave()
        return getattr(import_module(COMPILER), name)

    @property
    def there(self) -> bool:
        return sys.modules.get(COMPILER) is self

    def leave(self) -> None:
        """Make way for the compiler."""
        if self.there:
            del sys.modules[COMPILER]


class _PartsOf(MetaPathFinder):
    """Finds a submodule that a stand-in is asked for: the compiler's, imported on the way."""

    def __init__(self, substitute: _StandIn):
        self.substitute = substitute

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not (self.substitute.there and fullname.startswith(f"{COMPILER}.")):
            return None
        self.substitute.leave()
        return spec_from_loader(fullname, _There(import_module(fullname)))


def _as_it_is(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """In place of torch._dynamo.disable, for a method that nobody compiles here."""
    return (lambda function: function) if fn is None else fn


class _There(Loader):
    """Hands out a module that has been imported."""

    def __init__(self, module: ModuleType):
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


class _Finder(MetaPathFinder):
    """Finds each of the modules once, with a loader that leaves something out."""

    def __init__(self) -> None:
        self.parts: dict[str, Callable[[Any], Loader]] = {
            LIGHTNING: _Uncompiled,
            PACKAGE: lambda loader: _Later(loader, _of_package),
            PLOTS: lambda loader: _Later(loader, _of_plots),
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        part = self.parts.pop(fullname, None)
        if part is None:
            return None
        if not self.parts:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = part(spec.loader)
        return spec


class _Uncompiled(Loader):
    """Executes Lightning beside the stand-in for the compiler, unless that is there already."""

    def __init__(self, loader: Any):
        self.loader = loader

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        import torch  # noqa: F401 - not beside the stand-in

        substitute = _StandIn()
        parts = _PartsOf(substitute)
        sys.modules.setdefault(COMPILER, substitute)
        sys.meta_path.insert(0, parts)
        try:
            self.loader.exec_module(module)
        finally:
            sys.meta_path.remove(parts)
            substitute.leave()


class _Later(Loader):
    """Executes a module only when `part` asks for the whole of it."""

    def __init__(self, loader: Loader, part: Callable[[str, Whole], Any]):
        self.loader, self.part = loader, part

    def exec_module(self, module: ModuleType) -> None:
        def look_up(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return self.part(name, whole)

        def whole(name: str) -> Any:
            if vars(module).pop("__getattr__", None) is not None:
                self.loader.exec_module(module)
            return getattr(module, name)

        vars(module).update(__getattr__=look_up, _logger=logging.getLogger(module.__name__))
        if module.__name__ == PACKAGE:
            with suppress(ImportError):  # a version that is arranged otherwise
                import_module(f"{PACKAGE}.utilities")  # before any part: it and torchmetrics.metric import each other
