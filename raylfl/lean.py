"""torchmetrics as far as Lightning needs it, and the rest of it when somebody asks.

`import lightning` imports torchmetrics, whose package imports every metric there is, and with them scipy.signal,
torchvision and matplotlib: 1.5 s and 110 MB in every process, for two classes. Where `install` was called before, the
package is there with these two, and becomes whole at the first look at anything else in it; its plotting becomes so at
the first plot. For processes of raylfl's own (the command line, actors); a program that only imports raylfl is left
alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

PACKAGE, PLOTS = "torchmetrics", "torchmetrics.utilities.plot"
NEEDED = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}
Whole = Callable[[str], Any]  # an attribute of the module once it is executed


def install() -> None:
    """Have torchmetrics imported in parts; nothing where it was imported already."""
    if PACKAGE not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _of_package(name: str, whole: Whole) -> Any:
    if name in NEEDED:
        try:
            import_module("torchmetrics.utilities")  # first, as in the package: the two import each other
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


class _Finder(MetaPathFinder):
    """Finds each of the modules once, with a loader that puts it off."""

    def __init__(self) -> None:
        self.parts = {PACKAGE: _of_package, PLOTS: _of_plots}

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
            spec.loader = _Later(spec.loader, part)
        return spec


class _Later(Loader):
    """Executes a module only when `part` asks for the whole of it."""

    def __init__(self, loader: Loader, part: Callable[[str, Whole], Any]):
        self.loader, self.part = loader, part

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

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
