"""torchmetrics as far as Lightning needs it, and the rest of it when somebody asks.

`import lightning` imports torchmetrics, whose package imports every metric there is, and with them scipy.signal and
torchvision: 0.9 s and 80 MB in every process, for two classes. Where `install` was called before, the package is
there with these two, and becomes whole at the first look at anything else in it. For processes of raylfl's own
(the command line, worker actors); a program that only imports raylfl is left alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NEEDED = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}


def install() -> None:
    """Have torchmetrics imported in parts; nothing where it was imported already."""
    if "torchmetrics" not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds torchmetrics once, with a loader that puts it off."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torchmetrics":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)
        return spec


class _Later(Loader):
    """Executes the package only when more than the needed classes is asked for."""

    def __init__(self, whole: Loader):
        self.whole = whole

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def look_up(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            if name in NEEDED:
                try:
                    import_module("torchmetrics.utilities")  # first, as in the package: the two import each other
                    return getattr(import_module(NEEDED[name]), name)
                except (ImportError, AttributeError):  # a version that is arranged otherwise
                    pass
            vars(module).pop("__getattr__", None)
            self.whole.exec_module(module)
            return getattr(module, name)

        vars(module).update(__getattr__=look_up, _logger=logging.getLogger(module.__name__))
