"""Torch's default settings for the duration of a run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any


@contextmanager
def torch_defaults() -> Iterator[None]:
    """A context with torch's defaults for dtype, device, autocast, grad mode, inference mode and matrix precision.

    A run therefore does not depend on the caller's values of these settings, which are restored on exit.
    """
    import torch  # late: the Python interface uses this before torch is needed

    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    grad = torch.is_grad_enabled()
    with ExitStack() as stack:  # a context only if needed: each takes as long as all the rest
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        with suppress(AttributeError):  # of torch 2.9 after set_default_device(None), which is the CPU
            if torch.get_default_device().type != "cpu":
                stack.enter_context(torch.device("cpu"))
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)
            torch.set_float32_matmul_precision(precision)


@contextmanager
def checks_without_symbols() -> Iterator[None]:
    """A context in which torch's internal checks return at once if they pass, so that torch does not import sympy.

    The import takes 0.4 s, and only symbolic shapes need sympy. A check that does not pass is left to torch's own
    function. A cross-entropy under vmap makes such a check.
    """
    import torch

    module: Any = torch
    check_with = module._check_with

    def check(error: type[Exception], condition: Any, message: Any) -> None:
        if condition is not True:
            check_with(error, condition, message)

    module._check_with = check
    try:
        yield
    finally:
        module._check_with = check_with
