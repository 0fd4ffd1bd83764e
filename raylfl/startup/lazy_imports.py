"""Lazy imports: Lightning without torchmetrics' metric classes and torch's compiler, which load on first use.

Saves seconds and memory in every process (`python -m benchmarks.startup`). RAYLFL_LAZY_IMPORTS=0 switches it off.
It applies to processes of raylfl itself (command line, actors), which call `install` first; a program that only imports
raylfl is not affected.

- torchmetrics imports all its metrics, which import scipy.signal and matplotlib. Lightning needs two classes of
  torchmetrics. At first the package contains these two classes only. The first access to another name executes the
  whole package; the first plot executes its plotting module.
- torch._dynamo (the compiler) imports sympy. Lightning needs one class for isinstance tests and one decorator, which a
  stand-in has while Lightning is imported. If Lightning needs more, it is imported once more, with the compiler.
"""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from raylfl.startup import is_enabled

SWITCH = "RAYLFL_LAZY_IMPORTS"
PACKAGE, PLOTS = "torchmetrics", "torchmetrics.utilities.plot"
LIGHTNING, COMPILER = "lightning", "torch._dynamo"
NEEDED = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}


def install() -> None:
    """Makes a later import of Lightning lazy; no effect if torchmetrics is imported already or the setting is off."""
    if is_enabled(SWITCH) and PACKAGE not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds Lightning, torchmetrics and torchmetrics' plotting module, once each, and then leaves sys.meta_path."""

    def __init__(self) -> None:
        self.ways = {LIGHTNING: _without_compiler, PACKAGE: _on_access, PLOTS: _on_access}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        way = self.ways.pop(fullname, None)
        if way is None:
            return None
        if not self.ways:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            own, spec.loader = spec.loader, Loader()
            spec.loader.exec_module = partial(way, own)  # type: ignore[method-assign]
        return spec


class _MaybeCompiled(type):
    """The metaclass of a stand-in for torch._dynamo.OptimizedModule.

    If the compiler is imported, isinstance with the stand-in tests the real class; otherwise isinstance is False.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        real = getattr(sys.modules.get(COMPILER), "OptimizedModule", cls)
        return real is not cls and isinstance(instance, real)


def _without_effect(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Replaces the decorator torch._dynamo.disable; Lightning uses it on a method that raylfl never compiles."""
    return (lambda function: function) if fn is None else fn


def _without_compiler(loader: Loader, module: ModuleType) -> None:
    """Executes Lightning with a stand-in for torch._dynamo, unless torch._dynamo is imported already."""
    module.__loader__ = loader
    import torch  # noqa: F401 - before the stand-in is in place

    stand_in: Any = ModuleType(COMPILER)
    stand_in.OptimizedModule, stand_in.disable = _MaybeCompiled("OptimizedModule", (), {}), _without_effect
    if sys.modules.setdefault(COMPILER, stand_in) is not stand_in:
        return loader.exec_module(module)
    try:
        loader.exec_module(module)
    except (ImportError, AttributeError):  # a version that needs more of the compiler
        for name in [COMPILER, *(name for name in sys.modules if name.startswith(f"{LIGHTNING}."))]:
            del sys.modules[name]
        loader.exec_module(module)
    finally:
        if sys.modules.get(COMPILER) is stand_in:
            del sys.modules[COMPILER]


def _on_access(loader: Loader, module: ModuleType) -> None:
    """Leaves torchmetrics or its plotting module empty at first; most names then execute it when they are accessed."""

    def load(name: str) -> Any:
        if vars(module).pop("__getattr__", None) is not None:
            loader.exec_module(module)
        return getattr(module, name)

    def look_up(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        if module.__name__ == PACKAGE and name in NEEDED:
            with suppress(ImportError, AttributeError):  # a version with another layout
                return getattr(import_module(NEEDED[name]), name)
        if module.__name__ == PLOTS and name.endswith("_TYPE"):  # used only in annotations
            return Any
        if module.__name__ == PLOTS and name.startswith("plot_"):
            return lambda *args, **kwargs: load(name)(*args, **kwargs)
        return load(name)

    vars(module).update(__getattr__=look_up, _logger=logging.getLogger(module.__name__))
    if module.__name__ == PACKAGE:
        with suppress(ImportError):  # a version with another layout
            import_module(f"{PACKAGE}.utilities")  # before any part: it and torchmetrics.metric import each other
