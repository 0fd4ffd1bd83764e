"""Copies between the host and a device, through pinned memory, which a GPU reads and writes without the host's help."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from raylfl.core.deferred import Deferred

K = TypeVar("K")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device: the tensor itself if it is there, else a copy from pinned memory, without a wait."""
    return tensor if tensor.device.type == device.type else tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """The tensor on the host, the tensor itself if it is there; waits for the copy."""
    return all_to_host({"": tensor})[""]


def all_to_host(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """The tensors on the host, with one wait for all copies."""
    if all(tensor.device.type != "cuda" for tensor in tensors.values()):
        return {name: tensor.cpu() for name, tensor in tensors.items()}
    copies = {name: _pinned_copy(tensor) for name, tensor in tensors.items()}
    torch.cuda.current_stream().synchronize()
    return copies


def begin_to_host(tensor: Tensor) -> Deferred[Tensor]:
    """The tensor on the host; the copy begins now, and the result does not wait for later work of the device."""
    if tensor.device.type != "cuda":
        return Deferred.of(tensor.cpu())
    stream = _stream(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(stream):
        copy, copied = _pinned_copy(tensor), stream.record_event()
    tensor.record_stream(stream)  # its memory is not used again before the copy has ended

    def result() -> Tensor:
        copied.synchronize()
        return copy

    return Deferred(result)


def _pinned_copy(tensor: Tensor) -> Tensor:
    """A copy on the host of a tensor on a GPU, which the current stream makes while the host continues."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
