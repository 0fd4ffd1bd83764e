"""The content of a batch: tensors in nested tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from raylfl.replay.recorded.guards import Refused


def copy_content(content: Any) -> Any:
    """A copy of the tuples, lists and dicts in the content of a batch, with the same tensors."""
    if isinstance(content, dict):
        return {name: copy_content(part) for name, part in content.items()}
    return content if isinstance(content, Tensor) else type(content)(copy_content(part) for part in content)


def kind_of(content: Any) -> Any:
    """A key of the structure of a batch's content, equal for batches that one program can compute.

    Raises Refused for a content that holds anything but tensors in tuples, lists and dicts.
    """
    if isinstance(content, Tensor):
        return content.shape, content.stride(), content.dtype, content.requires_grad
    if type(content) is tuple or type(content) is list:
        return type(content), *[kind_of(part) for part in content]
    if type(content) is dict:
        return dict, *[(name, kind_of(part)) for name, part in content.items()]
    raise Refused(f"gets batches that hold more than tensors ({type(content).__name__})")


def leaves_of(content: Any) -> Sequence[Tensor]:
    """The tensors in the content of a batch (nested tuples, lists and dicts), in order."""
    if isinstance(content, Tensor):
        return [content]
    if type(content) is tuple and all(isinstance(part, Tensor) for part in content):
        return content
    parts = content.values() if isinstance(content, dict) else content
    return [leaf for part in parts for leaf in leaves_of(part)]
