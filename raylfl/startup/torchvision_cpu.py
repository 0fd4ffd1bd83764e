"""Declares two operator schemas that torch lacks beside a torchvision wheel built for another kind of torch.

`import torchvision` attaches fake kernels to `torchvision::nms` and `torchvision::qnms`. Where its C++
library cannot be loaded (a CUDA wheel beside a CPU-only torch) nothing has registered them, and the import
fails with "operator torchvision::nms does not exist". Declaring the schemas first makes data sets, transforms
and models work; the operators themselves stay unavailable. torchmetrics, and so lightning, imports
torchvision. `install`, called when raylfl is imported, makes the declaration just before the first import of
torchvision; it does not import torch. `install_at_start_up` does the same for every Python of an environment, so
that the order of a user's imports does not matter.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

OPERATORS = ("nms", "qnms")
_library: Any = None  # torch.library.Library, kept alive: the declaration ends with it


class _BeforeTorchvision(MetaPathFinder):
    """Declares the operators when torchvision is about to be imported; finds no module itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            declare()
        return None


def install() -> None:
    """Have `declare` called before torchvision's first import; nothing where that has already happened."""
    if "torchvision" not in sys.modules and not any(map(_waits, sys.meta_path)):
        sys.meta_path.insert(0, _BeforeTorchvision())


def _waits(finder: object) -> bool:
    return isinstance(finder, _BeforeTorchvision)


def declare() -> bool:
    """Declare the schemas where nothing registers them; True where that was needed. Safe to call again.

    What decides is whether torchvision's library loads and brings its operators, not how either package was
    built. torchvision itself is not imported: without the schemas that is what fails.
    """
    global _library
    import torch

    sys.meta_path[:] = [f for f in sys.meta_path if not _waits(f)]  # the look-ups below would call it
    if hasattr(torch.ops.torchvision, "nms") or not _installed() or _operators_load():
        return False
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS:
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return True


def _installed() -> bool:
    return importlib.util.find_spec("torchvision") is not None


def _operators_load() -> bool:
    """Load torchvision's C++ library as its own import would; True where that registered the operators."""
    import torch

    package = importlib.util.find_spec("torchvision")
    assert package is not None
    library = PathFinder.find_spec("_C", package.submodule_search_locations)
    if library is None or library.origin is None:  # a build without C++ operators
        return False
    try:
        torch.ops.load_library(library.origin)
    except OSError:  # linked against libraries that this torch does not have
        return False
    return hasattr(torch.ops.torchvision, "nms")


def install_at_start_up() -> Path | None:
    """Have every Python of this environment call `install`, so that lightning may be imported before raylfl.

    Writes raylfl-torchvision.pth into site-packages, only where torchvision needs it; None elsewhere. Nothing less
    makes a bare `import lightning` work there: it imports torchvision by way of torchmetrics.
    """
    if not declare():
        return None
    path = Path(sysconfig.get_path("purelib")) / "raylfl-torchvision.pth"
    path.write_text("import raylfl.startup.torchvision_cpu; raylfl.startup.torchvision_cpu.install()\n")
    return path
