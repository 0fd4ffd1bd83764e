"""raylfl: federated optimisation methods compared side by side, on PyTorch Lightning and Ray.

import raylfl
result = raylfl.run("conf/digits.yaml", ["algorithm.name=focus", "rounds=50"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylfl.errors import BadConfig as BadConfig
    from raylfl.errors import BadValue as BadValue
    from raylfl.errors import RaylflError as RaylflError
    from raylfl.execution.several import compare as compare
    from raylfl.execution.several import run as run
    from raylfl.python.api import resume as resume
    from raylfl.python.control import Callback as Callback
    from raylfl.python.control import Progress as Progress
    from raylfl.python.control import StopRun as StopRun
    from raylfl.python.frames import Run as Run
    from raylfl.python.frames import diff as diff
    from raylfl.python.frames import evaluate as evaluate
    from raylfl.python.frames import ledger as ledger
    from raylfl.python.frames import load as load
    from raylfl.python.frames import runs as runs
    from raylfl.python.method import method as method
    from raylfl.python.result import Result as Result
    from raylfl.report.figures import plot as plot
    from raylfl.report.page import write_report as write_report
    from raylfl.tune.trainable import trainable as trainable

PLACES = {  # module -> its public names; it is imported when one of them is first used
    "python.api": ("resume",),
    "python.result": ("Result",),
    "execution.several": ("compare", "run"),
    "python.control": ("Callback", "Progress", "StopRun"),
    "errors": ("BadConfig", "BadValue", "RaylflError"),
    "python.method": ("method",),
    "python.frames": ("Run", "diff", "evaluate", "ledger", "load", "runs"),
    "report.page": ("write_report",),
    "report.figures": ("plot",),
    "tune.trainable": ("trainable",),
}
__all__ = sorted(name for names in PLACES.values() for name in names)


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
