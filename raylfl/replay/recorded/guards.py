"""Detection of what a comparison of results cannot show: that a recorded step has taken values out of torch.

A step that reads a value may take another course with another batch, at a step that no comparison sees: `if
x.max() > 10` has one course in a hundred batches. The recording sees the reading itself.
"""

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from raylfl.errors import is_own

LOOKS = {  # methods that give values or memory to Python without an operator
    *("numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "typed_storage"),
    *("__cuda_array_interface__", "set_", "resize_", "share_memory_", "pin_memory", "apply_", "map_", "map2_"),
    *("__repr__", "__format__"),  # which suspend dispatch modes
}
RECORD = ("raylfl.replay.recorded.tape", "record")  # module and name of the function that carries out the step


class Watch(TorchFunctionMode):
    """A torch function mode that detects when a step reads a tensor's values or memory without an operator.

    reason: describes the first such use, as the end of a sentence that begins with `training_step`; None: there was
    none.
    """

    reason: str | None = None

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """The mode, also within backward passes: `torch.autograd` would suspend a mode that it asks about."""
        with self, patch.object(torch.autograd, "has_torch_function", lambda tensors: False, create=True):
            yield

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in LOOKS:
            self._refuse(f"takes a tensor's values or memory out of torch (`.{name}`)")
        elif name == "tensor_split" and any(isinstance(part, torch.Tensor) for part in args[1:]):
            self._refuse("splits a tensor at positions that depend on values (`tensor_split`)")
        elif name == "one_hot" and (made := _one_hot(*args, **kwargs)) is not None:
            return made
        return func(*args, **kwargs)

    def _refuse(self, reason: str) -> None:
        self.reason = self.reason or reason + line_of_step()


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor | None:
    """The result of torch's `one_hot`, but without its check of the labels, which reads their values.

    None if the labels are not int64, or if `num_classes` is not given: the largest label then determines the shape.
    """
    if num_classes <= 0 or tensor.dtype != torch.int64:
        return None
    zeros = torch.zeros(*tensor.shape, num_classes, dtype=tensor.dtype, device=tensor.device)
    return zeros.scatter(-1, tensor[..., None], 1)


def forbidden(op: Any, args: tuple[Any, ...], fixed: Callable[[torch.Tensor], bool]) -> str | None:
    """The reason why a recording of this call would not be valid for tensors with other values; None if it is valid.

    op, args: the called operator and its arguments. fixed: whether a tensor has the same entries in every step.
    The reason is the end of a sentence that begins with `training_step`.
    """
    tags, name, read = op.tags, op._schema.name.removeprefix("aten::"), args
    if name == "index":
        read = tuple(i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8))
    elif name == "masked_select":
        read = args[1:]
    varies = not all(fixed(part) for part in read if isinstance(part, torch.Tensor))
    if varies and torch.Tag.data_dependent_output in tags:
        shown = "`.item`, `int`, `float` or `if`" if name == "_local_scalar_dense" else f"`{name.lstrip('_')}`"
        return f"reads a tensor's values ({shown})"
    if varies and (torch.Tag.dynamic_output_shape in tags or name in VALUE_SHAPED):
        return f"makes tensors whose shapes depend on values (`{name}`)"
    if torch.Tag.inplace_view in tags and op not in AS_VIEWS:
        return f"changes a tensor's shape in place (`{name}`)"
    return None


_aten = torch.ops.aten
AS_VIEWS = {  # in-place operators on a tensor's shape, recorded as views; torch's own backward passes use some
    _aten.transpose_.default: _aten.transpose.int,
    _aten.t_.default: _aten.t.default,
    _aten.unsqueeze_.default: _aten.unsqueeze.default,
    _aten.squeeze_.default: _aten.squeeze.default,
    _aten.squeeze_.dim: _aten.squeeze.dim,
    _aten.as_strided_.default: _aten.as_strided.default,
    _aten.detach_.default: _aten.detach.default,
}
VALUE_SHAPED = {"_pack_padded_sequence", "_pad_packed_sequence"}  # although torch does not say so


def line_of_step() -> str:
    """The innermost line of the user's code in the running step, as the text `, in line 42 of model.py`.

    "" if there is none, as in gradients of torch's operators.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != RECORD:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if is_own(file):
            text = linecache.getline(file, line)
            logs = "; log the tensor itself" if ".log" in text and ".item()" in text else ""
            return f", in line {line} of {PurePath(file).name}{logs}"
        frame = frame.f_back
    return ""
