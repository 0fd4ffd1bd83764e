"""A module's trainable parameters as views into one vector [d], with which server steps compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from raylfl.errors import BadConfig


def in_channels_last(images: Tensor) -> Tensor:
    """The images [n, channels, h, w], stored in the order [n, h, w, channels]; a copy only if their order differs.

    The strides are set explicitly, because for a single channel torch cannot distinguish the two orders.
    """
    _, channels, height, width = images.shape
    moved = images.permute(0, 2, 3, 1).contiguous()
    return moved.as_strided(
        images.shape, (height * width * channels, 1, width * channels, channels), moved.storage_offset()
    )


class FlatModule:
    """A module whose trainable parameters are views into `params` [d], in `named_parameters` order.

    Buffers (BatchNorm statistics) form a second vector [b], gathered by `read_buffers` and scattered by
    `write_buffers`. Frozen parameters keep their initial values. The module is moved to the device and dtype in place,
    and its embeddings get dense gradients. Raises BadConfig for a module without trainable parameters.

    channels_last: whether convolution weights [out, in, h, w] are stored as [out, h, w, in], which is faster on CPUs.
    These weights are then copies instead of views, and `load` updates them; `params` has the usual order.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: torch.device, channels_last: bool = False):
        self.module = module.to(device=device, dtype=dtype)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise BadConfig(f"model {type(module).__name__} has no trainable parameters: nothing to train")
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.shapes = [p.shape for p in self.parameters]
        self.sizes = [p.numel() for p in self.parameters]
        self.params = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self._copies: list[tuple[Tensor, Tensor]] = []  # (a weight in another memory order, its place in params)
        for p, view in zip(self.parameters, self.views(self.params), strict=True):
            p.data = in_channels_last(view) if channels_last and view.ndim == 4 else view
            if p.data_ptr() != view.data_ptr():
                self._copies.append((p.data, view))
        for part in module.modules():
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
                part.sparse = False  # gradients are rows of a dense matrix
        self.buffers = list(module.buffers())
        self._places: list[tuple[str, dict[str, Tensor | None], str, Tensor]] = []  # name, dict, key in it, buffer
        for name, buffer in module.named_buffers():
            path, _, key = name.rpartition(".")
            self._places.append((name, module.get_submodule(path)._buffers, key, buffer))

    @property
    def width(self) -> int:
        """The number of parameters d."""
        return self.params.numel()

    def views(self, vector: Tensor) -> list[Tensor]:
        """One view per parameter: [*shape] for a vector [d], [C, *shape] for rows [C, d]."""
        lead = vector.shape[:-1]
        pieces = torch.split(vector, self.sizes, dim=-1)
        return [piece.reshape((*lead, *shape)) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def load(self, vector: Tensor) -> None:
        """Sets the module's parameters to this vector [d], by a copy unless the vector is `params` itself."""
        if vector.data_ptr() != self.params.data_ptr():
            self.params.copy_(vector)
        for weight, view in self._copies:
            weight.copy_(view)

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient d loss / d params as a new vector [d]; 0 for parameters that the loss does not depend on."""
        pairs = zip(self.gradients(loss), self.parameters, strict=True)
        return torch.cat([p.new_zeros(p.numel()) if g is None else g.reshape(-1) for g, p in pairs])

    def store(self, vector: Tensor) -> None:
        """Sets the vector [d] to the module's parameters, which a step may have changed in place."""
        with torch.no_grad():
            for weight, view in self._copies:
                view.copy_(weight)
            if vector.data_ptr() != self.params.data_ptr():
                vector.copy_(self.params)

    def trained(self) -> list[nn.Parameter]:
        """The trained parameters; raises BadConfig if one of them was frozen during the run."""
        for name, p in zip(self.names, self.parameters, strict=True):
            if not p.requires_grad:
                raise BadConfig(
                    f"model {type(self.module).__name__}: its trained parameter {name} was frozen during the run; "
                    "freeze it in __init__, or by model.trainable"
                )
        return self.parameters

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """The gradient of each parameter, dense; None for parameters that the loss does not depend on."""
        found = torch.autograd.grad(loss, self.trained(), allow_unused=True)
        return [g.to_dense() if g is not None and g.is_sparse else g for g in found]

    def take_back_buffers(self) -> None:
        """Makes the original tensors the module's buffers again, with the entries of tensors that a step has assigned.

        An assigned tensor of another shape, dtype or device, or with a gradient, stays the buffer. Call this method
        after the backward pass, because the backward pass may need the original entries.
        """
        assigned = [
            (owner, key, first, new)
            for _, owner, key, first in self._places
            if (new := owner[key]) is not first and new is not None and _may_hold(first, new)
        ]
        copy_together([(first, new) for *_, first, new in assigned])
        for owner, key, first, _ in assigned:
            owner[key] = first

    def read_buffers(self) -> Tensor:
        """All buffers as one vector [b] in the parameters' dtype (integer counters become floats)."""
        if not self.buffers:
            return self.params.new_empty(0)
        return torch.cat([b.detach().reshape(-1).to(self.params) for b in self._buffers_now()])

    def _buffers_now(self) -> Iterator[Tensor]:
        """The module's current buffers; a step may have replaced them by other tensors of the same shapes.

        Raises BadConfig for a buffer that was replaced by None or by a tensor of another shape.
        """
        for name, owner, key, first in self._places:
            buffer = owner[key]
            if buffer is None or buffer.shape != first.shape:
                found = "None" if buffer is None else f"a buffer of shape {list(buffer.shape)}"
                raise BadConfig(
                    f"model {type(self.module).__name__}: a step replaced its buffer {name} by {found}; it must keep "
                    f"its shape {list(first.shape)}, as buffers are averaged (an ordinary attribute may be anything)"
                )
            yield buffer

    def write_buffers(self, vector: Tensor) -> None:
        """Sets all buffers from one vector [b]: the inverse of `read_buffers`; integer buffers are rounded.

        A tensor that a step has assigned to a buffer is replaced by the module's original tensor.
        """
        at = 0
        for _, owner, key, buffer in self._places:
            owner[key] = buffer
            piece = vector[at : at + buffer.numel()].reshape(buffer.shape)
            buffer.copy_(piece if buffer.is_floating_point() else piece.round())
            at += buffer.numel()


def copy_together(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copies the second tensor of each pair into the first. All are read before any is written: pairs may overlap."""
    values = [new.detach().clone() for _, new in pairs]
    for (held, _), value in zip(pairs, values, strict=True):
        held.copy_(value)


def _may_hold(first: Tensor, new: Tensor) -> bool:
    """Whether a copy into the buffer `first` keeps all of the tensor `new`."""
    same = (first.shape, first.dtype, first.device) == (new.shape, new.dtype, new.device)
    return same and not new.requires_grad
