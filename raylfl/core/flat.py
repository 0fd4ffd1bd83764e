"""A module's trainable parameters as views into one vector [d], with which server steps compute."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from raylfl.core.buffers import Packing, travelling
from raylfl.errors import BadConfig
from raylfl.replay.effects import storage_of

OF_TORCH = frozenset(vars(nn.Module()))  # attributes that torch itself keeps in a module


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

    Buffers that travel (BatchNorm statistics) form a second vector [b], gathered by `read_buffers` and scattered by
    `write_buffers`, which gives all other buffers their initial entries. Frozen parameters keep their initial values.
    The module is moved to the device and dtype in place, except that complex numbers, integers and truth values keep
    their dtypes, and its embeddings get dense gradients. Raises BadConfig for a module without trainable parameters,
    or with complex ones.

    channels_last: whether convolution weights [out, in, h, w] are stored as [out, h, w, in], which is faster on CPUs.
    These weights are then copies instead of views, and `load` updates them; `params` has the usual order. travels: the
    names of the buffers that travel; None: those that `travelling` gives.
    """

    without_gradient: frozenset[int] = frozenset()
    """The numbers of the parameters that have no gradient (None) in the newest step: its row has zeros for them."""
    processes = 1  # that hold the module
    closed = False  # whether the other processes were ended, so that the module cannot be used any more

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        channels_last: bool = False,
        travels: Sequence[str] | None = None,
    ):
        refuse_shared_memory(module)
        self.module = convert_module(module, dtype, device)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise BadConfig(f"model {type(module).__name__} has no trainable parameters: nothing to train")
        for name, p in named:
            if p.is_complex():
                raise BadConfig(
                    f"model {type(module).__name__}: its parameter {name} is complex, but parameters travel as real "
                    "numbers: store torch.view_as_real(w), and use torch.view_as_complex(self.w) in the forward pass"
                )
        self._frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.shapes = [p.shape for p in self.parameters]
        self.sizes = [p.numel() for p in self.parameters]
        self._copies: list[tuple[Tensor, Tensor]] = []  # (a weight in another memory order, its place in params)
        self._weights: list[Tensor] = []  # the memory of each parameter: its place in params, or the copy
        self.params = self._vector(channels_last)
        for part in module.modules():
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
                part.sparse = False  # gradients are rows of a dense matrix
        self.buffers = list(module.buffers())
        for b in self.buffers:
            if any(size > 1 and stride == 0 for size, stride in zip(b.shape, b.stride(), strict=True)):
                b.data = b.data.clone(memory_format=torch.contiguous_format)  # an expanded tensor cannot be written
        self._buffer_entries: list[
            tuple[str, dict[str, Tensor | None], str, Tensor]
        ] = []  # name, dict, key in it, buffer
        for name, buffer in module.named_buffers():
            path, _, key = name.rpartition(".")
            owner: Any = module.get_submodule(path)._buffers
            if not isinstance(owner, dict):
                raise BadConfig(
                    f"model {type(module).__name__}: its buffer {name} is in a scripted module, which keeps it out of "
                    "reach: use the module that torch.jit.script was given"
                )
            self._buffer_entries.append((name, owner, key, buffer))
        names = travelling(module) if travels is None else travels
        self.sent = [name in names for name, *_ in self._buffer_entries]
        self.packing = Packing(
            [name for (name, *_), sent in zip(self._buffer_entries, self.sent, strict=True) if sent],
            [b for b, sent in zip(self.buffers, self.sent, strict=True) if sent],
            self.params,
        )
        self.initial_buffers = [b.detach().clone() for b in self.buffers]
        tables: list[Any] = [part._buffers for part in module.modules()]  # a scripted module's is no dict, and fixed
        self._owners = [(table, dict(table)) for table in tables if isinstance(table, dict)]

    def _vector(self, channels_last: bool) -> Tensor:
        """The vector [d] of the parameters, which become views of it."""
        params = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        starts = [0, *itertools.accumulate(self.sizes)]
        for tensor, k, offset in views_in_attributes(self.module, self.parameters):
            tensor.data = params.as_strided(tensor.shape, tensor.stride(), starts[k] + offset)
        for p, view in zip(self.parameters, self.views(params), strict=True):
            p.data = in_channels_last(view) if channels_last and view.ndim == 4 else view
            if p.data_ptr() != view.data_ptr():
                self._copies.append((p.data, view))
            self._weights.append(p.data)
        return params

    @property
    def width(self) -> int:
        """The number of parameters d."""
        return self.params.numel()

    def views(self, vector: Tensor) -> list[Tensor]:
        """One view per parameter: [*shape] for a vector [d], [C, *shape] for rows [C, d]."""
        lead = vector.shape[:-1]
        pieces = torch.split(vector, self.sizes, dim=-1)
        return [piece.reshape((*lead, *shape)) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def take_back(self) -> None:
        """Makes the module's memory that of its parameters again, with the entries of what was assigned to `.data`.

        Raises BadConfig for entries of another shape.
        """
        for k, (p, weight) in enumerate(zip(self.parameters, self._weights, strict=False)):  # a sharded one has none
            if p.data_ptr() == weight.data_ptr() and p.stride() == weight.stride():
                continue
            if p.shape != weight.shape:
                raise BadConfig(
                    f"model {type(self.module).__name__}: its trained parameter {self.names[k]} of shape "
                    f"{list(weight.shape)} got entries of shape {list(p.shape)} during the run"
                )
            entries = p.detach().clone()  # which may be in this memory
            weight.copy_(entries)
            p.data = weight

    def load(self, vector: Tensor) -> None:
        """Sets the module's parameters to this vector [d], by a copy unless the vector is `params` itself."""
        self.take_back()
        if vector.data_ptr() != self.params.data_ptr():
            self.params.copy_(vector)
        for weight, view in self._copies:
            weight.copy_(view)

    def store(self, vector: Tensor) -> None:
        """Sets the vector [d] to the module's parameters, which a step may have changed in place."""
        with torch.no_grad():
            self.take_back()
            for weight, view in self._copies:
                view.copy_(weight)
            if vector.data_ptr() != self.params.data_ptr():
                vector.copy_(self.params)

    def trained_parameters(self) -> list[nn.Parameter]:
        """The trained parameters; raises BadConfig if one of them was frozen during the run, or another one was not."""
        frozen = next((n for n, p in zip(self.names, self.parameters, strict=True) if not p.requires_grad), None)
        thawed = next((name for name, p in self._frozen if p.requires_grad), None)
        if (name := frozen or thawed) is not None:
            kind, state, how = ("trained", "frozen", "freeze") if frozen else ("frozen", "unfrozen", "train")
            raise BadConfig(
                f"model {type(self.module).__name__}: its {kind} parameter {name} was {state} during the run; "
                f"{how} it in __init__, or by model.trainable"
            )
        return self.parameters

    def backward(self, loss: Tensor, out: Tensor | None = None) -> Tensor:
        """The gradient [d] that `loss.backward()` leaves in `.grad` of the parameters, dense; in `out` if given."""
        parameters = self.trained_parameters()
        for p in parameters:
            p.grad = None
        loss.backward()
        with torch.no_grad():
            gradients = [p.grad for p in parameters]
            pieces = [
                torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
                for p, g in zip(parameters, gradients, strict=True)
            ]
            for p in parameters:
                p.grad = None
            self.without_gradient = frozenset(k for k, g in enumerate(gradients) if g is None)
            return self._joined(pieces, out)

    def set_gradients(self, row: Tensor) -> list[Tensor]:
        """Sets `.grad` of the parameters to views of a gradient [d], or None (`without_gradient`); returns them."""
        views = self.views(row)
        for k, (p, view) in enumerate(zip(self.parameters, views, strict=True)):
            p.grad = None if k in self.without_gradient else view
        return views

    def _joined(self, pieces: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """The entries of one tensor per parameter as a vector [d]."""
        return torch.cat([piece.reshape(-1) for piece in pieces], out=out)

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """The gradient of each parameter, dense; None for parameters that the loss does not depend on."""
        gradients = torch.autograd.grad(loss, self.trained_parameters(), allow_unused=True)
        return [g.to_dense() if g is not None and g.is_sparse else g for g in gradients]

    def joined_gradients(self, loss: Tensor) -> Tensor:
        """The `gradients` as a vector [d], with 0 in place of None."""
        pairs = zip(self.gradients(loss), self.trained_parameters(), strict=True)
        return self._joined([torch.zeros_like(p) if g is None else g for g, p in pairs])

    def take_back_buffers(self) -> None:
        """Makes the original tensors the module's buffers again, with the entries of tensors that a step has assigned.

        An assigned tensor of another shape, dtype or device, or with a gradient, stays the buffer. Call this method
        after the backward pass, because the backward pass may need the original entries.
        """
        assigned = [
            (owner, key, first, new)
            for _, owner, key, first in self._buffer_entries
            if (new := owner[key]) is not first and new is not None and _may_hold(first, new)
        ]
        copy_together([(first, new) for *_, first, new in assigned])
        for owner, key, first, _ in assigned:
            owner[key] = first

    @property
    def buffer_names(self) -> list[str]:
        """The names of all buffers, in the order of `buffers`."""
        return [name for name, *_ in self._buffer_entries]

    def read_buffers(self) -> Tensor:
        """The buffers that travel as one vector [b]: the row of `Packing`."""
        now = [b[None] for b, sent in zip(self._buffers_now(), self.sent, strict=True) if sent]
        return self.packing.rows(now, 1)[0]

    def _buffers_now(self) -> Iterator[Tensor]:
        """The module's current buffers; a step may have replaced them by other tensors of the same shapes.

        Raises BadConfig for a buffer that travels and was replaced by None or by a tensor of another shape.
        """
        for (name, owner, key, first), sent in zip(self._buffer_entries, self.sent, strict=True):
            buffer = owner.get(key)
            if sent and (buffer is None or buffer.shape != first.shape):
                new = "None" if buffer is None else f"a buffer of shape {list(buffer.shape)}"
                raise BadConfig(
                    f"model {type(self.module).__name__}: a step replaced its buffer {name} by {new}; it must keep "
                    f"its shape {list(first.shape)}, as buffers are averaged (an ordinary attribute may be anything)"
                )
            yield first if buffer is None else buffer

    def write_buffers(self, vector: Tensor | None = None) -> None:
        """Sets the buffers that travel from a vector [b], the inverse of `read_buffers`, and resets all others.

        A tensor that a step has assigned to a buffer is replaced by the module's original tensor, and a buffer that a
        step has registered is removed. None: all buffers get their initial entries.
        """
        for now, first in self._owners:
            if len(now) > len(first):
                for key in now.keys() - first.keys():
                    del now[key]
            now.update(first)
        sent = iter(self.packing.split(vector[None]) if vector is not None else ())
        for buffer, initial, travels in zip(self.buffers, self.initial_buffers, self.sent, strict=True):
            buffer.copy_(next(sent)[0] if travels and vector is not None else initial)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the module's state_dict on the CPU; what is no tensor (`get_extra_state`) is copied deeply."""
        entries: dict[str, Any] = self.module.state_dict()
        return {
            name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)
            for name, value in entries.items()
        }

    def close(self) -> None:
        """Ends the other processes that hold parts of the module."""

    def changed_buffers(self) -> list[str]:
        """The names of the buffers that do not travel and now differ from their initial entries."""
        names = []
        for (name, owner, key, _), initial, sent in zip(
            self._buffer_entries, self.initial_buffers, self.sent, strict=True
        ):
            now = owner.get(key)
            if not sent and (now is None or now.shape != initial.shape or not same_entries(now, initial)):
                names.append(name)
        return names


def refuse_shared_memory(module: nn.Module) -> None:
    """Raises BadConfig if a trained parameter shares memory with another parameter or a buffer.

    In a run each of them has its own entries. One parameter under two names is one parameter.
    """
    named: list[tuple[str, Tensor]] = [(f"parameter {name}", p) for name, p in module.named_parameters()]
    earlier: dict[int, list[tuple[str, Tensor]]] = {}  # memory -> what is in it
    named += [(f"buffer {name}", b) for name, b in module.named_buffers()]
    for name, tensor in named:
        before = earlier.setdefault(storage_of(tensor), [])
        for other, held in before:
            if (tensor.requires_grad or held.requires_grad) and overlap(tensor, held):
                first, second = (name, other) if tensor.requires_grad else (other, name)
                raise BadConfig(
                    f"model {type(module).__name__}: its trained {first} shares memory with its {second}, which would "
                    "be lost: share the parameter itself (self.b.weight = self.a.weight), or compute the other one "
                    "from it in each forward pass (self.a.weight.t(), self.a.weight.detach())"
                )
        before.append((name, tensor))


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have entries in common; tensors of two dtypes in one memory count as such."""
    if not storage_of(a) or storage_of(a) != storage_of(b) or not (a.numel() and b.numel()):
        return False
    if a.dtype != b.dtype:
        return True
    spans = [1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) for t in (a, b)]
    starts = [int(t.storage_offset()) for t in (a, b)]
    if starts[0] >= starts[1] + spans[1] or starts[1] >= starts[0] + spans[0]:
        return False
    places = [
        start + torch.arange(span).as_strided(t.shape, t.stride())  # columns of one matrix lie between each other
        for t, start, span in zip((a, b), starts, spans, strict=True)
    ]
    return bool(torch.isin(*places).any())


def views_in_attributes(module: nn.Module, parameters: Sequence[Tensor]) -> list[tuple[Tensor, int, int]]:
    """The tensors in attributes of a module's parts that are views of one of these contiguous parameters.

    Returns (the view, number of the parameter, offset of the view's first entry in it).
    """
    known, views = set(map(id, module.parameters())), list[tuple[Tensor, int, int]]()
    values = [value for part in module.modules() for name, value in vars(part).items() if name not in OF_TORCH]
    for tensor in tree_leaves(values):
        if not isinstance(tensor, Tensor) or id(tensor) in known or tensor.requires_grad:
            continue
        for k, p in enumerate(parameters):
            if p.is_contiguous() and p.dtype == tensor.dtype and overlap(p, tensor):
                views.append((tensor, k, int(tensor.storage_offset() - p.storage_offset())))
    return views


def same_entries(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape have equal entries; NaN is equal to NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def convert_module(module: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The module, moved to the device in place, with its floating-point tensors in this dtype.

    Complex tensors keep their dtype: `Module.to` would drop their imaginary parts.
    """
    complex_tensors: list[tuple[dict[str, Any], str, Tensor]] = []
    for part in module.modules():
        tables: tuple[dict[str, Any], ...] = part._parameters, part._buffers
        for held in tables:
            complex_tensors += [(held, key, t) for key, t in held.items() if t is not None and t.is_complex()]
    for held, key, _ in complex_tensors:
        held[key] = None
    try:
        module.to(device=device, dtype=dtype)
    finally:
        moved = {id(t): t.data.to(device) for *_, t in complex_tensors}
        for held, key, t in complex_tensors:
            held[key] = t
            t.data = moved[id(t)]
    return module


def copy_together(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copies the second tensor of each pair into the first. All are read before any is written: pairs may overlap."""
    values = [new.detach().clone() for _, new in pairs]
    for (held, _), value in zip(pairs, values, strict=True):
        held.copy_(value)


def _may_hold(first: Tensor, new: Tensor) -> bool:
    """Whether a copy into the buffer `first` keeps all of the tensor `new`."""
    same = (first.shape, first.dtype, first.device) == (new.shape, new.dtype, new.device)
    return same and not new.requires_grad
