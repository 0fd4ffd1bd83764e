"""A module's buffers: which of them travel between server and clients, and as which numbers.

The buffers that travel form one vector [b]. All other buffers belong to the module: they have their initial entries at
the start of every client's work and of every measurement, like its Python attributes.
"""

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from raylfl.errors import BadConfig, BadValue

LARGEST = 2**48  # of an integer that travels: sums of float64 numbers up to it are exact enough to be rounded


def travelling(module: nn.Module, patterns: Sequence[str] | None = None, all_persistent: bool = False) -> list[str]:
    """The names of the buffers that travel.

    By default these are the persistent floating-point buffers, and the counters of BatchNorm layers with
    `momentum=None`, which are the weights of a running mean. all_persistent: all persistent buffers, for clients
    that keep theirs. patterns: names of buffers or of layers, with wildcards, that replace the default. Raises
    BadValue for a pattern that matches no buffer.
    """
    buffers = dict(module.named_buffers())
    if patterns is not None:
        need = f"names or patterns of buffers of {type(module).__name__}"
        chosen = matching(patterns, buffers, "model.buffers", need)
        return [name for name in buffers if name in chosen]
    counters = {
        f"{path}.num_batches_tracked".lstrip(".")
        for path, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.momentum is None
    }
    transient = {
        f"{path}.{key}".lstrip(".") for path, part in module.named_modules() for key in part._non_persistent_buffers_set
    }
    sent = [name for name, b in buffers.items() if all_persistent or b.is_floating_point() or name in counters]
    return [name for name in sent if name not in transient]


class Packing:
    """The conversion of buffers to the rows of one matrix [C, b], and back.

    A complex number is two entries of a row. Rows have the dtype of the parameters if all buffers are floating-point
    numbers, otherwise float64, in which integers, truth values and complex numbers are exact.
    """

    def __init__(self, names: Sequence[str], like: Sequence[Tensor], params: Tensor):
        """A packing of the buffers `like`, with these names, of a module whose parameters are like `params`."""
        self.names, self.like = list(names), list(like)
        plain = all(b.is_floating_point() for b in self.like)
        self.device, self.dtype = params.device, params.dtype if plain else torch.float64
        self.sizes = [b.numel() * (2 if b.is_complex() else 1) for b in self.like]

    def rows(self, buffers: Sequence[Tensor], count: int) -> Tensor:
        """The buffers [C, *shape] of C = `count` modules as rows [C, b].

        Raises BadConfig for an integer beyond 2^48.
        """
        pieces = [torch.empty(count, 0, dtype=self.dtype, device=self.device)]
        for name, b in zip(self.names, buffers, strict=True):
            values = torch.view_as_real(b.detach().resolve_conj()) if b.is_complex() else b.detach()
            pieces.append(values.reshape(count, -1).to(self.device, self.dtype))
            if b.dtype in (torch.int64, torch.uint64) and b.numel() and float(pieces[-1].abs().max()) > LARGEST:
                raise BadConfig(
                    f"the buffer {name} travels (model.buffers, local.buffers) and has an integer beyond 2^48, which "
                    "a mean would change: leave it out of model.buffers"
                )
        return torch.cat(pieces, dim=1)

    def split(self, rows: Tensor) -> list[Tensor]:
        """The buffers [C, *shape] in rows [C, b], in their own dtypes; integers are rounded."""
        buffers = []
        for piece, b in zip(rows.split(self.sizes, dim=1), self.like, strict=True):
            if b.is_complex():
                piece = torch.view_as_complex(piece.reshape(len(rows), *b.shape, 2).contiguous())
            elif not b.is_floating_point():
                piece = piece.round()
            buffers.append(piece.reshape(len(rows), *b.shape).to(b.dtype))
        return buffers


def matching(patterns: Sequence[str], names: Iterable[str], key: str, need: str) -> set[str]:
    """The names that a pattern matches; the name of a layer matches everything in it.

    Raises BadValue for the option `key` if a pattern matches no name. need: what a pattern must be, for the message.
    """
    names, matches = list(names), set[str]()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        if not matched:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
            hint = f"the nearest are {', '.join(near)}" if near else "there are none"
            raise BadValue(key, got=pattern, need=need, hint=hint)
        matches |= matched
    return matches
