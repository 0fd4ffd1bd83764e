"""raylfl: federated optimisation methods compared side by side, on PyTorch Lightning and Ray.

import raylfl
result = raylfl.run("conf/digits.yaml", ["algorithm.name=focus", "rounds=50"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylfl.errors import BadConfig, BadValue, RaylflError
    from raylfl.execution.comparison import compare
    from raylfl.execution.several import run
    from raylfl.python.api import Result, resume
    from raylfl.python.control import Callback, Progress, StopRun
    from raylfl.python.frames import Run, diff, evaluate, load, runs
    from raylfl.python.method import method
    from raylfl.python.streaming import Stream, stream
    from raylfl.report.page import write_report
    from raylfl.report.plot import plot
    from raylfl.tune.trainable import trainable

PLACES = {  # module -> its public names; it is imported when one of them is first used
    "python.api": ("Result", "resume"),
    "execution.comparison": ("compare",),
    "execution.several": ("run",),
    "python.control": ("Callback", "Progress", "StopRun"),
    "errors": ("BadConfig", "BadValue", "RaylflError"),
    "python.method": ("method",),
    "python.frames": ("Run", "diff", "evaluate", "load", "runs"),
    "report.page": ("write_report",),
    "report.plot": ("plot",),
    "python.streaming": ("Stream", "stream"),
    "tune.trainable": ("trainable",),
}
__all__ = [
    "BadConfig",
    "BadValue",
    "Callback",
    "Progress",
    "RaylflError",
    "Result",
    "Run",
    "StopRun",
    "Stream",
    "compare",
    "diff",
    "evaluate",
    "load",
    "method",
    "plot",
    "resume",
    "run",
    "runs",
    "stream",
    "trainable",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """A public name, loaded on first use: importing raylfl loads neither torch nor Ray. Raises AttributeError."""
    for module, names in PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"raylfl.{module}"), name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("raylfl")
        except PackageNotFoundError:  # a source tree that is not installed (ray job --working-dir)
            return "source"
    raise AttributeError(f"module 'raylfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for tab completion."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, "__version__"})
