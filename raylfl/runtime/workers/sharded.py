"""A module that shards itself over the processes of a worker, by FSDP2 or tensor parallelism in `configure_model`.

    load       the first process scatters the parameters [d], of which each process gets its shard
    step       all processes carry out the module's step, on the same batch, with the same random numbers
    backward   all processes carry out the backward pass; the first one gathers the gradient [d]

The vectors of local work are whole, on the CPU of the first process. Methods, clipping and optimizers of vectors
therefore compute what they do for any module, and a step is the step on the client's batch: FSDP's mean of equal
gradients is the gradient, and tensor parallelism divides its computation.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from raylfl.core.buffers import travelling
from raylfl.core.flat import FlatModule
from raylfl.core.reference import loss_of
from raylfl.errors import BadConfig
from raylfl.experiment.parts import WorkerSetup
from raylfl.replay.contents import map_leaves
from raylfl.replay.effects import generator_states, set_generators
from raylfl.runtime.workers.attributes import Attributes
from raylfl.runtime.workers.hooks import overridden, overrides_hook
from raylfl.runtime.workers.logged import alone_in
from raylfl.runtime.workers.module import make_module

STEPS = ("training_step", "validation_step", "test_step")  # of the module, taken by all processes
CALLED = ("setup", "configure_model")  # hooks that all processes call


def make_sharded(setup: WorkerSetup, device: str) -> Any:
    """Creates the module of a worker's processes, which shards itself over its `device_mesh`.

    The mesh has the dimensions of Lightning's ModelParallelStrategy: data_parallel of size 1 and tensor_parallel with
    all processes or, if the module shards nothing then, the reverse. Raises BadConfig for a module that shards nothing.
    device: the type of the processes' devices.
    """
    count, names = setup.runtime.processes, ("data_parallel", "tensor_parallel")
    for shape in ((1, count), (count, 1)):
        mesh = init_device_mesh(device, shape, mesh_dim_names=names)
        module = make_module(setup.model, setup.seed, mesh)
        if any(_is_sharded(p) for p in module.parameters()):
            return module
    key = "processes_per_worker" if setup.runtime.processes_per_worker else "gpus_per_worker"
    raise BadConfig(
        f"runtime.{key}={count}, but model {type(module).__name__} shards none of its parameters: shard them in "
        f"configure_model over self.device_mesh (fully_shard, parallelize_module), or set runtime.{key}=1"
    )


def _is_sharded(parameter: Tensor) -> bool:
    if not isinstance(parameter, DTensor):
        return False
    sizes = parameter.device_mesh.shape
    return any(p.is_shard() and size > 1 for p, size in zip(parameter.placements, sizes, strict=True))


def refuse_settings(setup: WorkerSetup) -> None:
    """Raises BadConfig for settings that a sharded module cannot have."""
    runtime = setup.runtime
    wrong = {
        "local.optimizer=module": setup.optimizer == "module" and not setup.algorithm.own_step,
        f"runtime.compile={runtime.compile}": runtime.compile is not None,
        f"runtime.layout={runtime.layout}": runtime.layout not in ("auto", "contiguous"),
        "runtime.vectorize=always": runtime.vectorize == "always",
        "algorithm.cut (split learning)": setup.algorithm.cut is not None,
    }
    end = f"cannot be used with a model that is sharded over {runtime.processes} processes"
    if problems := [f"{setting} {end}" for setting, is_set in wrong.items() if is_set]:
        raise BadConfig(problems)


class ShardedModule(FlatModule):
    """The part of a sharded module in one process of a worker.

    In the first process it is used like any `FlatModule`. In the others its vectors are empty, and the first one calls
    `scatter`, `step`, `differentiate`, `set_buffers`, `restore` and `whole_state`, which all processes run together.
    """

    def __init__(
        self,
        module: nn.Module,
        setup: WorkerSetup,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[Any]],
        ranks: Any,
    ):
        """The part of this module on `device`; ranks: the other processes (`Ranks`), None in these."""
        if hooks := [name for name in overridden(module, "called") if name not in CALLED]:
            raise BadConfig(
                f"model {type(module).__name__} overrides {hooks[0]}, which a model that is sharded over processes "
                "cannot have: only its steps are taken by all of them"
            )
        self.ranks, self.autocast, self.device = ranks, autocast, device
        self.processes = setup.runtime.processes
        super().__init__(
            module, setup.torch_dtype, device, travels=travelling(module, setup.model.buffers, setup.whole_buffers)
        )
        for name, p in zip(self.names, self.parameters, strict=True):
            if isinstance(p, DTensor) and any(type(placement) not in (Shard, Replicate) for placement in p.placements):
                raise BadConfig(
                    f"model {type(module).__name__} shards its parameter {name} as {p.placements}: shard each "
                    "parameter once, by fully_shard or by parallelize_module"
                )
        alone_in(module)  # all processes measure all
        self._steps: dict[str, Callable[..., Any]] = {n: getattr(module, n) for n in STEPS if overrides_hook(module, n)}
        self._loss: Tensor | None = None  # of the newest step, with its graph
        self._attributes = Attributes(module) if ranks is None else None
        if ranks is not None:
            for name in self._steps:
                setattr(module, name, self._of_all(name))

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return bool(self.ranks.closed)

    def close(self) -> None:
        self.ranks.close()

    def _of_all(self, name: str) -> Callable[..., Any]:
        """The module's step of this name, taken by all processes."""

        @wraps(self._steps[name])
        def step(*args: Any) -> Any:
            modes = self.module.training, torch.is_grad_enabled()
            copies = map_leaves(args, torch.clone)  # pickle would send all of which a tensor is a view
            return self.ranks.together("step", name, copies, *modes, generator_states())

        return step

    # -- in the first process ----------------------------------------------------------------------------------

    def _vector(self, channels_last: bool) -> Tensor:
        with torch.no_grad():
            return self._joined(self.parameters)

    def load(self, vector: Tensor) -> None:
        super().load(vector)
        self.ranks.together("scatter")

    def backward(self, loss: Tensor, out: Tensor | None = None) -> Tensor:
        assert out is None, "clients run side by side on one GPU only"
        self._loss = loss
        gradient: Tensor = self.ranks.together("differentiate")
        return gradient

    def write_buffers(self, vector: Tensor | None = None) -> None:
        self.ranks.together("set_buffers", vector)

    def state_dict(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = self.ranks.together("whole_state")
        return tensors

    # -- in all processes --------------------------------------------------------------------------------------

    @torch.no_grad()
    def scatter(self) -> None:
        """Sets the parameters to the entries of the first process's vector `params`."""
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()
        first = self.ranks is not None
        values = self.views(self.params) if first else [self.params.new_empty(0)] * len(self.shapes)
        for p, value in zip(self.parameters, values, strict=True):
            entries = value.to(self.device) if first else value.new_empty(p.shape, device=self.device)
            if isinstance(p, DTensor):
                p.to_local().copy_(distribute_tensor(entries, p.device_mesh, p.placements).to_local())
            else:
                dist.broadcast(entries, 0)
                p.copy_(entries)

    def step(self, name: str, args: tuple[Any, ...], training: bool, differentiable: bool, generators: Any) -> Any:
        """The result of the module's step `name`, in this mode and with these states of the global generators."""
        of_torch, of_numpy, of_random, on_gpus = generators
        set_generators(of_torch, of_numpy, of_random, on_gpus[:1] * len(on_gpus))  # the first process draws on GPU 0
        if self.module.training != training:
            self.module.train(training)
        with torch.set_grad_enabled(differentiable), self.autocast():
            output = self._steps[name](*move_data_to_device(args, self.device))
            self._loss = loss_of(output, self.module) if differentiable else None
        return output

    def differentiate(self) -> Tensor:
        """The gradient [d] of the newest step's loss; empty in all processes but the first."""
        assert self._loss is not None
        loss, self._loss = self._loss, None
        gradient = super().backward(loss)
        self.take_back_buffers()
        return gradient

    def _joined(self, pieces: Any, out: Tensor | None = None) -> Tensor:
        return torch.cat([self._whole(piece).reshape(-1) for piece in pieces])

    def _whole(self, piece: Tensor) -> Tensor:
        """A copy of the whole tensor on the CPU; empty in all processes but the first."""
        full = piece.full_tensor() if isinstance(piece, DTensor) else piece
        return full.detach().to("cpu", copy=True) if self.ranks is not None else full.new_empty(0, device="cpu")

    def set_buffers(self, vector: Tensor | None) -> None:
        """Sets the buffers that travel, and resets all others (`write_buffers`)."""
        super().write_buffers(vector)

    def restore(self) -> None:
        """Restores the module's attributes in all processes but the first, where the worker does so."""
        if self._attributes is not None:
            self._attributes.restore()

    def whole_state(self) -> dict[str, Tensor]:
        """A copy of the module's state_dict on the CPU, in the first process."""
        return {name: self._whole(tensor) for name, tensor in self.module.state_dict().items()}
