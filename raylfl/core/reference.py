"""The reference step: one client's local step as PyTorch makes it, on the user's own module.

    loss = module.training_step(batch, batch_idx);  .grad <- None;  loss.backward();  gradient = .grad

The step is called in the ordinary way on the module itself. Whatever autograd, modules and tensors then do counts:
hooks of every kind, changes in place, Python state, any dtype. Every faster form of a step is compared with this one
(`replay/proof.py`) before it is used.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from raylfl.core.flat import FlatModule
from raylfl.errors import BadConfig
from raylfl.replay.contents import map_leaves
from raylfl.replay.effects import StepState
from raylfl.replay.proof import Outcome
from raylfl.replay.step_log import StepLog

TF32 = 2.0**-10  # eps of the numbers to which a GPU may round the factors of float32 products


class ReferenceStep:
    """The reference step of the module `flat.module`.

    autocast: makes the precision context of the forward pass. training_step: the module's method, or its compiled form.
    """

    def __init__(self, flat: FlatModule, autocast: Callable[[], AbstractContextManager[object]] = nullcontext):
        self.flat, self.autocast = flat, autocast
        self.module: Any = flat.module
        self.training_step: Callable[..., Any] = lambda *args: self.module.training_step(*args)

    @property
    def eps(self) -> float:
        """The distance of 1 from the next number in the dtype of the forward pass."""
        device = self.flat.params.device.type
        with self.autocast():
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.flat.params.dtype
        short = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
        return TF32 if device == "cuda" and short and dtype == torch.float32 else float(torch.finfo(dtype).eps)

    def __call__(self, content: Any, batch_idx: int = 0, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(loss, gradient [d]) of a batch at the module's parameters; the gradient is 0 where a parameter has none.

        content: the batch. batch_idx: the number of the local step. out: memory for the gradient; None: new memory. The
        module's buffers change as in the step.
        """
        loss = self.loss(content, batch_idx)
        row = self.flat.backward(loss, out)
        self.flat.take_back_buffers()
        return loss.detach().to(row.device), row

    def outcome(self, x: Tensor, content: Any, batch_idx: int, log: StepLog) -> Outcome:
        """The outcome of a step at the parameters x [d], with all buffers; log: receives what the step logs.

        The step gets a copy of the batch, which it may change in place: a comparison takes it several times.
        """
        self.flat.load(x)
        log.take()
        loss, row = self(map_leaves(content, torch.clone), batch_idx)
        buffers = dict(zip(self.flat.buffer_names, [b.clone() for b in self.flat.buffers], strict=True))
        return Outcome(loss, row, sorted(log.take().items()), buffers)

    @contextmanager
    def aside(self, log: StepLog) -> Iterator[None]:
        """A context for comparisons, at whose end all that a step may change is as before; `log` begins empty."""
        flat, values = self.flat, log.take()
        live = {str(k): tensor for k, tensor in enumerate([flat.params, *flat.parameters, *flat.buffers])}
        state = StepState(flat.module, live)
        try:
            yield
        finally:
            state.restore()
            log.values = values

    def loss(self, content: Any, batch_idx: int = 0) -> Tensor:
        """The scalar loss of `training_step`, with its autograd graph."""
        with self.autocast():
            return loss_of(self.training_step(content, batch_idx), self.module)


def loss_of(output: Any, module: nn.Module) -> Tensor:
    """The scalar loss in `output`, the return value of `training_step`: the value itself, or its entry `loss`.

    Raises BadConfig for any other value. module: is named in the error message.
    """
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        skip = " (to skip a batch, return a loss whose gradient is 0)" if output is None else ""
        raise BadConfig(
            f"{type(module).__name__}.training_step returned {shown}, "
            f"but must return the loss (a scalar tensor) or a dict with `loss`{skip}"
        )
    return loss.reshape(())
