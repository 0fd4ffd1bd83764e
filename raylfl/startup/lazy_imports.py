"""Lazy imports: Lightning without torchmetrics' metric classes and torch's compiler, which load on first use.

Saves seconds and memory in every process (`python -m benchmarks.startup`). RAYLFL_LAZY_IMPORTS=0 switches it off.
It applies to processes of raylfl itself (command line, actors), which call `install` first; a program that only imports
raylfl is not affected.

- torchmetrics imports all its metrics, which import scipy.signal, torchvision and matplotlib. Lightning needs two
  classes of torchmetrics. At first the package contains these two classes only. The first access to another name
  executes the whole package; the first plot executes its plotting module.
- torch._dynamo (the compiler) imports sympy. Lightning needs one class for isinstance tests and one decorator. A
  stand-in replaces torch._dynamo while Lightning is imported; the real module is imported on its first use.

If a version of these libraries has another layout, the real modules are imported: slower, with the same result.
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

from raylfl.startup import is_enabled

SWITCH = "RAYLFL_LAZY_IMPORTS"
PACKAGE, PLOTS = "torchmetrics", "torchmetrics.utilities.plot"
LIGHTNING, COMPILER = "lightning", "torch._dynamo"
NEEDED = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}
Whole = Callable[[str], Any]  # executes the module and returns its attribute of that name


def install() -> None:
    """Makes a later import of Lightning lazy; no effect if torchmetrics is imported already or the setting is off."""
    if is_enabled(SWITCH) and PACKAGE not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _of_package(name: str, load: Whole) -> Any:
    """An attribute of torchmetrics: a class of `NEEDED` from its own module, any other from the whole package."""
    if name in NEEDED:
        with suppress(ImportError, AttributeError):  # a version with another layout
            return getattr(import_module(NEEDED[name]), name)
    return load(name)


def _of_plots(name: str, load: Whole) -> Any:
    """An attribute of torchmetrics' plotting module; a `plot_*` function executes the module only when called."""
    if name.endswith("_TYPE"):  # used only in annotations
        return Any
    if name.startswith("plot_"):
        return lambda *args, **kwargs: load(name)(*args, **kwargs)
    return load(name)


class _MaybeCompiled(type):
    """The metaclass of a stand-in for torch._dynamo.OptimizedModule.

    If the compiler is imported, isinstance with the stand-in tests the real class; otherwise isinstance is False.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        real = getattr(sys.modules.get(COMPILER), "OptimizedModule", cls)
        return real is not cls and isinstance(instance, real)


class _StandIn(ModuleType):
    """A stand-in for torch._dynamo with the two names that Lightning needs while it is imported.

    The first access to another name imports the real module.
    """

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.OptimizedModule = _MaybeCompiled("OptimizedModule", (), {})
        self.disable = _without_effect
        self.__path__: list[str] = []  # a package; `_SubmodulesOf` finds its submodules

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {COMPILER!r} has no attribute {name!r}")
        self.leave()
        return getattr(import_module(COMPILER), name)

    @property
    def active(self) -> bool:
        """Whether this stand-in is the imported torch._dynamo."""
        return sys.modules.get(COMPILER) is self

    def leave(self) -> None:
        """Removes the stand-in from sys.modules; the next import finds the real module."""
        if self.active:
            del sys.modules[COMPILER]


class _SubmodulesOf(MetaPathFinder):
    """A finder that replaces the stand-in by the real torch._dynamo when one of its submodules is imported."""

    def __init__(self, substitute: _StandIn):
        self.substitute = substitute

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not (self.substitute.active and fullname.startswith(f"{COMPILER}.")):
            return None
        self.substitute.leave()
        return spec_from_loader(fullname, _Imported(import_module(fullname)))


def _without_effect(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Replaces the decorator torch._dynamo.disable; Lightning uses it on a method that raylfl never compiles."""
    return (lambda function: function) if fn is None else fn


class _Imported(Loader):
    """A loader that returns a module which has been imported already."""

    def __init__(self, module: ModuleType):
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


class _Finder(MetaPathFinder):
    """A finder for Lightning, torchmetrics and torchmetrics' plotting module, with loaders that leave parts out.

    It finds each of these three modules once, and then removes itself from sys.meta_path.
    """

    def __init__(self) -> None:
        self.parts: dict[str, Callable[[Any], Loader]] = {
            LIGHTNING: _WithoutCompiler,
            PACKAGE: lambda loader: _OnAccess(loader, _of_package),
            PLOTS: lambda loader: _OnAccess(loader, _of_plots),
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


class _WithoutCompiler(Loader):
    """A loader that executes Lightning with a stand-in for torch._dynamo, unless torch._dynamo is imported already."""

    def __init__(self, loader: Any):
        self.loader = loader

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        import torch  # noqa: F401 - before the stand-in is in place

        substitute = _StandIn()
        submodules = _SubmodulesOf(substitute)
        sys.modules.setdefault(COMPILER, substitute)
        sys.meta_path.insert(0, submodules)
        try:
            self.loader.exec_module(module)
        finally:
            sys.meta_path.remove(submodules)
            substitute.leave()


class _OnAccess(Loader):
    """A loader that leaves a module empty at first; each access to an attribute then calls `part`.

    part(name, whole) returns the attribute of this name; it calls whole(name) only if the whole module is needed.
    """

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
            with suppress(ImportError):  # a version with another layout
                import_module(f"{PACKAGE}.utilities")  # before any part: it and torchmetrics.metric import each other
