"""Copies between the host and a device, through pinned memory, which a GPU reads and writes without the host's help."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

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
    copies = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for name, t in tensors.items()}
    for name, tensor in tensors.items():
        copies[name].copy_(tensor, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return copies
