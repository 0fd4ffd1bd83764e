"""The server's vectors on the GPU of the only worker, where neither a broadcast nor a server step needs a copy.

The reference is the same function of the algorithm on the host. All values must be equal, tensors to the bit, but for
numbers that the algorithm logs, which must have half of the digits of float32. The first use of each function is
compared, and then every use whose number is a power of two.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import ServerState
from raylfl.core.client_rows import Table
from raylfl.core.transfer import all_to_host, to_device
from raylfl.errors import BadConfig, headline
from raylfl.replay.proof import ProofSchedule, same_bits

T = TypeVar("T")
NEAR = torch.finfo(torch.float32).eps ** 0.5  # for logged numbers, such as norms, whose sums have another order


class DeviceServer:
    """Keeps the vectors of a server state on a device, as long as results there are equal to the host's.

    device: None: they are on the host. refusal: why the server is on the host, None if it is on the device.
    """

    def __init__(self, device: torch.device | None):
        self.device, self.schedule = device, ProofSchedule()
        self.refusal = "no other place pays" if device is None else None

    @property
    def place(self) -> str | None:
        """Where the server's vectors are, with the reason, as a sentence for the user; None: no other place pays."""
        if self.device is None:
            return None
        if self.refusal is None:
            return "the server's vectors stay on the GPU"
        return f"the server is on the host: {self.refusal}"

    def placed(self, server: ServerState) -> ServerState:
        """The server state with all vectors that are as long as x on the device; tables of clients stay."""
        if self.refusal is None and any(isinstance(value, Table) for value in server.values()):
            self.refusal = "its server state has a table of rows"
        return server if self.refusal else {name: self._placed(value, server["x"]) for name, value in server.items()}

    def call(self, name: str, function: Callable[..., T], *arguments: ServerState) -> T:
        """The function's result for the server state (and for sums), on the device if that is proved.

        name: of the algorithm's method that the function calls. Raises BadConfig if a result differs after others on
        the device have been used.
        """
        if self.refusal is not None:
            return function(*map(on_host, arguments))
        x = arguments[0]["x"]
        there = [{key: self._placed(value, x) for key, value in each.items()} for each in arguments]
        expected = function(*map(on_host, arguments)) if self.schedule.due(name, 0) else None
        try:
            result = function(*there)
        except Exception as error:  # such as of numpy, which cannot read vectors on a GPU
            self.refusal = f"{name} raises {type(error).__name__} on the GPU: {headline(error)}"
            return function(*map(on_host, arguments)) if expected is None else expected
        if expected is None:
            return result
        if (difference := difference_of(expected, result)) is None:
            self.schedule.proved(name, 0)
            return result
        if (number := self.schedule.uses[name]) > 1:
            raise BadConfig(
                f"{name}: use number {number} on the GPU differs from the host's ({difference}), so that "
                "earlier ones may be wrong (set runtime.step=autograd)"
            )
        self.refusal = f"{name} has another result on the GPU: {difference}"
        return expected

    def _placed(self, value: Any, x: Tensor) -> Any:
        assert self.device is not None
        return to_device(value, self.device) if isinstance(value, Tensor) and value.shape == x.shape else value


def on_host(server: Mapping[str, Any]) -> dict[str, Any]:
    """The state or sums with all tensors on the host, with one wait for all copies."""
    vectors = {name: value for name, value in server.items() if isinstance(value, Tensor)}
    return {**server, **all_to_host(vectors)}


def difference_of(expected: Any, result: Any, name: str = "the result") -> str | None:
    """What differs between a result and the expected one, which is on the host; None if nothing does."""
    if isinstance(expected, Tensor):
        equal = isinstance(result, Tensor) and same_bits(expected, result.cpu())
    elif isinstance(expected, Mapping) and isinstance(result, Mapping) and expected.keys() == result.keys():
        each = (difference_of(value, result[key], f"`{key}`") for key, value in expected.items())
        return next((difference for difference in each if difference is not None), None)
    elif isinstance(expected, tuple) and isinstance(result, tuple) and len(expected) == len(result):
        pairs = zip(expected, result, strict=True)
        return next((d for a, b in pairs if (d := difference_of(a, b, name)) is not None), None)
    elif is_dataclass(expected) and type(expected) is type(result):
        return difference_of(vars(expected), vars(result))
    elif isinstance(expected, np.ndarray):
        equal = np.array_equal(expected, result, equal_nan=True)
    elif isinstance(expected, float):
        equal = math.isclose(expected, result, rel_tol=NEAR) or (math.isnan(expected) and math.isnan(result))
    else:
        equal = bool(expected == result)
    return None if equal else f"{name} differs"
