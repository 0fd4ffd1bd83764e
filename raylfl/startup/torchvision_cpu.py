"""A workaround for a torchvision whose binary does not fit torch, such as a CUDA wheel beside a CPU-only torch.

`import torchvision` attaches fake kernels to `torchvision::nms` and `torchvision::qnms`. If its C++ library cannot be
loaded, these operators do not exist, and the import fails with "operator torchvision::nms does not exist"; so does
`import lightning`, which imports torchvision through torchmetrics. Declaring the two operators first makes data sets,
transforms and models work; the operators themselves remain unavailable. If the library loads, nothing is declared.

The better remedy is a torchvision of the same build (https://pytorch.org/get-started/locally). RAYLFL_TORCHVISION=0
switches this workaround off. `install`, called when raylfl is imported, arranges that the operators are declared just
before the first import of torchvision; it does not import torch itself. `install_at_start_up` (`make setup`) does the
same in every Python process of the environment: lightning may then be imported before raylfl. It changes nothing if
torchvision works.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from raylfl.startup import is_enabled

SWITCH = "RAYLFL_TORCHVISION"
OPERATORS = ("nms", "qnms")
_library: Any = None  # torch.library.Library; the declaration lasts as long as this object


class _BeforeTorchvision:
    """A finder that declares the operators when torchvision is about to be imported; it finds no module itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            declare()
        return None


def install() -> None:
    """Arranges that `declare` runs before the first import of torchvision.

    No effect if torchvision is imported already or the setting is off.
    """
    if is_enabled(SWITCH) and "torchvision" not in sys.modules and not any(map(_waits, sys.meta_path)):
        sys.meta_path.insert(0, _BeforeTorchvision())


def _waits(finder: object) -> bool:
    return isinstance(finder, _BeforeTorchvision)


def declare() -> bool:
    """Declares `OPERATORS` if torchvision's C++ library does not register them; returns whether it did so.

    The library is loaded for this test, torchvision itself is not imported. Nothing is declared if torchvision is not
    installed or the setting is off. Repeated calls are safe.
    """
    global _library
    import torch

    sys.meta_path[:] = [f for f in sys.meta_path if not _waits(f)]  # else imports below would call `declare`
    if not is_enabled(SWITCH) or hasattr(torch.ops.torchvision, "nms"):
        return False
    if importlib.util.find_spec("torchvision") is None or operators_load():
        return False
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS:
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return True


def operators_load() -> bool:
    """Loads torchvision's C++ library, as importing torchvision does; returns whether it registered the operators."""
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
    """Makes every Python process of this environment call `install`; lightning can then be imported before raylfl.

    Writes raylfl-torchvision.pth into site-packages and returns its path, if torchvision needs the operators declared;
    otherwise None. No smaller change makes a bare `import lightning` work in such an environment.
    """
    if not declare():
        return None
    path = Path(sysconfig.get_path("purelib")) / "raylfl-torchvision.pth"
    path.write_text("import raylfl.startup.torchvision_cpu; raylfl.startup.torchvision_cpu.install()\n")
    return path
