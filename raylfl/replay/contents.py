"""The content of a batch: tensors in nested tuples, lists and dicts."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

NUMBERS = (bool, int, float, str, type(None))


class Refused(Exception):
    """The reason why a step is not recorded or captured, as the end of a sentence that begins with `training_step`."""


def kind_of(content: Any, numbers: bool = False) -> Any:
    """A key of the structure of a batch's content, equal for batches that one program can compute.

    numbers: whether the content may hold numbers and texts, which are then part of the key. Raises Refused for anything
    else but tensors in tuples, named tuples, lists and dicts.
    """
    if isinstance(content, Tensor):
        return content.shape, content.stride(), content.dtype, content.requires_grad
    if type(content) in (tuple, list) or hasattr(content, "_fields"):
        return type(content), *[kind_of(part, numbers) for part in content]
    if type(content) is dict:
        return dict, *[(name, kind_of(part, numbers)) for name, part in content.items()]
    if numbers and isinstance(content, NUMBERS):
        return repr(content)
    raise Refused(f"gets batches that hold more than tensors ({type(content).__name__})")


def leaves_of(content: Any) -> Sequence[Tensor]:
    """The tensors in the content of a batch, in order."""
    if type(content) is tuple and all(isinstance(part, Tensor) for part in content):
        return content
    return [leaf for leaf in tree_leaves(content) if isinstance(leaf, Tensor)]


def map_leaves(content: Any, change: Callable[[Tensor], Tensor] = lambda leaf: leaf) -> Any:
    """A copy of the tuples, lists and dicts in a batch's content, with `change` applied to each tensor in order."""
    return tree_map_only(Tensor, change, content)
