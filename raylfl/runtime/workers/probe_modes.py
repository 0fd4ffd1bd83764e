"""Contexts that note what a probe step does, beside its results."""

from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

REGISTERING = ("register_hook", "register_post_accumulate_grad_hook")


class Operators(TorchDispatchMode):
    """A context that notes the operators that are called in it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func)
        return func(*args, **(kwargs or {}))


class HooksOnTensors(TorchFunctionMode):
    """A context that notes whether a hook is registered on a tensor in it."""

    registered = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.registered |= getattr(func, "__name__", "") in REGISTERING
        return func(*args, **(kwargs or {}))
