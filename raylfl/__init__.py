"""raylfl: federated optimisation side by side, on PyTorch Lightning and Ray.

import raylfl
result = raylfl.run("conf/digits.yaml", ["algorithm.name=focus", "rounds=50"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raylfl.startup import torchvision_cpu

if TYPE_CHECKING:
    from raylfl.api import Result, compare, resume, run

__all__ = ["Result", "compare", "resume", "run"]

torchvision_cpu.install()


def __getattr__(name: str) -> Any:
    """The public names, loaded on first use, so that importing raylfl loads neither torch nor Ray."""
    if name in __all__:
        from raylfl import api

        return getattr(api, name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("raylfl")
        except PackageNotFoundError:  # a source tree that is not installed (ray job --working-dir)
            return "source"
    raise AttributeError(f"module 'raylfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for tab completion."""
    return sorted({*globals(), *__all__, "__version__"})
