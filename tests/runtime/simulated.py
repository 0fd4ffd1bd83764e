"""A simulated device that raises and waits as a GPU would, on a machine without one.

Its tensors are in the host's memory and are computed by the host's kernels, so the numbers equal a CPU's. An
operation on tensors of both devices raises an error as on a GPU. `waits` records each operation for which the host must
wait for the device, or the device for the host.
"""

import linecache
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import raylfl
from raylfl.core.partial_sums import SumPlan
from raylfl.runtime.round.device_server import DeviceServer
from raylfl.runtime.workers.forms import LocalForms
from raylfl.runtime.workers.worker import Worker
from tests.runtime import measured

aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default)
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
READS = (aten._local_scalar_dense.default, aten.equal.default, aten.masked_select.default, aten.nonzero.default)
waits: list[str] = []


class Simulated(Tensor):
    """A tensor of the device; its storage is the host's."""

    @staticmethod
    def __new__(cls, host: Tensor):
        return Tensor._make_subclass(cls, host, dispatch_device=True, device_for_backend_keys=device())

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return carry_out(function, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def host(self) -> Tensor:
        """The same memory as a tensor of the host."""
        empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(self.untyped_storage(), self.storage_offset(), self.size(), self.stride())


class Simulation(TorchDispatchMode):
    """A context in which `device()` works."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, and call it for each operation

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return carry_out(function, args, kwargs or {})

    def __enter__(self):
        self.pinned = mock.patch.object(Tensor, "pin_memory", pinned)
        self.pinned.start()
        torch.__future__.set_swap_module_params_on_conversion(True)
        waits.clear()
        return super().__enter__()

    def __exit__(self, *error):
        self.pinned.stop()
        torch.__future__.set_swap_module_params_on_conversion(False)
        return super().__exit__(*error)


def device() -> torch.device:
    """The device; the first call registers it with torch for the life of the process."""
    if torch._C._get_privateuse1_backend_name() != "simulated":
        _setup_privateuseone_for_python_backend("simulated")
    return torch.device("simulated:0")


def pinned(tensor: Tensor) -> Tensor:
    """A copy from which the device can read while the host continues."""
    copy = tensor.clone()
    copy.is_pinned_here = True
    return copy


def carry_out(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The operation on the host's memory, after the checks of a device."""
    if function is torch.ops.prim.device.default:
        return device()
    given: list[Tensor] = []
    converted((args, kwargs), Tensor, given.append)
    ours = [tensor for tensor in given if isinstance(tensor, Simulated)]
    there = torch.device(kwargs["device"]).type == "simulated" if kwargs.get("device") else bool(ours)
    if function is aten.copy_.default:
        there = isinstance(given[0], Simulated)
    if ours or there:
        watch(function, args, kwargs, given, there)
    on_host = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") else kwargs
    args_there, kwargs_there = converted((args, on_host), Simulated, lambda tensor: tensor.host)
    result = function(*args_there, **kwargs_there)
    if there:
        result = converted(result, Tensor, Simulated)
    return return_and_correct_aliasing(function, args, kwargs, result) if ours else result


def converted(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """The value with `convert` applied to all objects of a kind in it; several times as fast as torch's pytree."""
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, tuple | list):
        return type(value)([converted(part, kind, convert) for part in value])
    if isinstance(value, dict):
        return {name: converted(part, kind, convert) for name, part in value.items()}
    return value


def watch(function: Any, args: Sequence[Any], kwargs: dict[str, Any], given: Sequence[Tensor], there: bool) -> None:
    """Raises for tensors of both devices, and records the waits."""
    strangers = [tensor for tensor in given if not isinstance(tensor, Simulated) and tensor.dim() > 0]
    if function in MOVES:
        source = given[-1]
        quick = there and (kwargs.get("non_blocking") or args[2:3] == (True,)) and hasattr(source, "is_pinned_here")
        waited = isinstance(source, Simulated) != there and not quick
    elif function in INDEXED:
        waited = bool(strangers) or any(i is not None and i.dtype == torch.bool for i in args[1])
    elif strangers:
        shapes = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in given)
        raise RuntimeError(f"{function}: expected all tensors to be on the same device, but found {shapes}")
    else:
        waited = function in READS
    if waited:
        frames = frames_of_raylfl()
        if all(name != "_prove" for name, _ in frames):  # a comparison of a form with the reference waits
            waits.append(f"{function} in {': '.join(frames[0]) if frames else 'a test'}")


def frames_of_raylfl() -> list[tuple[str, str]]:
    """The function and the line of each of its calls in progress, innermost first."""
    frame, frames = sys._getframe(), []
    while frame := frame.f_back:
        code = frame.f_code
        if "/raylfl/" in code.co_filename:
            frames.append((code.co_name, linecache.getline(code.co_filename, frame.f_lineno).strip()))
    return frames


@contextmanager
def there() -> Iterator[None]:
    """A context in which workers compute on the device."""
    place = device()  # before autograd starts its threads, one a device
    with mock.patch("raylfl.runtime.workers.worker.devices", return_value=(place, nullcontext)), Simulation():
        yield


def rounds_of(config: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """A run in this process, as values that can be sent to another one."""
    run = measured.rounds_of(config, overrides)
    return {"params": run.params.numpy(), "metrics": run.metrics, "place": run.place}


def run_on_both(config: Any, overrides: Sequence[str], launched: bool) -> tuple[dict[str, Any], ...]:
    """The rounds on the host and on the device.

    launched: whether local work is launched and awaited later; `launches` has the waits during each launch.
    """
    device()
    launches, launch = list[list[str]](), Worker._launch

    def watched(self: Worker, *arguments: Any) -> Any:
        before = len(waits)
        deferred = launch(self, *arguments)
        launches.append(waits[before:])
        return deferred

    on_host = rounds_of(config, overrides)
    alone = mock.patch.object(LocalForms, "computes_alone", True) if launched else nullcontext()
    with mock.patch.object(Worker, "_launch", watched), alone, there():
        return on_host, {**rounds_of(config, overrides), "launches": launches}


def server_on_both(config: Any, overrides: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """The rounds on the device, with the server on the host and on the device."""
    with mock.patch("raylfl.runtime.round.dispatch.DeviceServer", return_value=DeviceServer(None)):
        on_host = rounds_there(config, overrides)
    return on_host, rounds_there(config, overrides)


def rounds_there(config: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """The rounds on the device, whose local work is launched and awaited later."""
    with mock.patch.object(LocalForms, "computes_alone", True), there():
        return rounds_of(config, overrides)


def resumed_there(config: Any, overrides: Sequence[str], then: Sequence[str]) -> tuple[Any, list[str]]:
    """(parameters, lines of log.txt on the server) of a run on the device that is resumed with further overrides."""
    with mock.patch.object(LocalForms, "computes_alone", True), there():
        result = raylfl.resume(raylfl.run(config, overrides).run_dir, then)
    log = (result.run_dir / "log.txt").read_text()
    return result.params.numpy(), [line.partition(" ")[2] for line in log.splitlines() if " the server" in line]


def mixed_sums() -> list[list[float]]:
    """The sum of four uploads as two parts, one of them on the device, and on the host alone."""
    rows, clients = torch.arange(12.0).reshape(4, 3), np.arange(4)
    plan = SumPlan.of(clients, {"total": ("up", np.array([1.0, 2.0, 3.0, 4.0]))}, torch.float32)
    place = device()
    with Simulation():
        there = plan.parts([0, 2], [{"up": rows[[0, 2]].to(place)}], stay=True)
        mixed = plan.sums([there, plan.parts([1, 3], [{"up": rows[[1, 3]]}])])["total"]
    return [mixed.tolist(), plan.sums([plan.parts([0, 1, 2, 3], [{"up": rows}])])["total"].tolist()]


def gpu_rows() -> list[dict[str, str]]:
    """The rows of `benchmarks.gpu` on the device, with a few short runs and a tiny workload."""
    from benchmarks import gpu
    from benchmarks.workloads import Workload

    device()
    tiny = Workload("tiny", "", "logistic", (1, 8, 8), 40, 4, 2, 1, 4)
    short = {"work/one by one": {**gpu.cases()["work/one by one"], "rounds": 2, "eval": {"every": 0}}}
    place = gpu.Device(torch.device("cpu"), {}, there)
    with mock.patch.dict(gpu.LONG, tiny=3):
        return list(gpu.rows(place, {"tiny": tiny}, short))


def mix() -> str:
    """The error of a sum of tensors on both devices."""
    with Simulation():
        try:
            torch.ones(2) + torch.ones(2, device=device())
        except RuntimeError as error:
            return next(part for part in re.split(": |, but", str(error)) if part.startswith("expected"))
    return "nothing"


def look() -> list[str]:
    """The waits of copying two numbers to the device, one of them pinned, and of reading their sum."""
    with Simulation():
        there = torch.ones(2).to(device()) + torch.ones(2).pin_memory().to(device(), non_blocking=True)
        assert float(there.sum()) == 4.0
    return list(waits)
