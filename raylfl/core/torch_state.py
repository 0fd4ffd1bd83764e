"""Torch's settings as a new process has them, for as long as a run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def torch_defaults() -> Iterator[None]:
    """While inside, what the caller has set in torch does not count, so that a run has the same bits everywhere.

    Default dtype and device, autocast, no_grad and inference_mode, precision of matrix products; put back afterwards.
    """
    import torch  # late: the Python interface uses this before torch is needed

    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))  # only where it is needed: it slows every call down
        stack.callback(torch.set_default_dtype, dtype)
        stack.callback(torch.set_float32_matmul_precision, precision)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        yield
