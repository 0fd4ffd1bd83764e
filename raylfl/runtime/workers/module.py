"""Set-up functions of a worker: for the module, the memory layout of images, the device and the precision."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from raylfl.config.components import construct
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.groups.top import ModelConfig
from raylfl.core.buffers import matching
from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import private_randomness
from raylfl.core.samples import BatchSource
from raylfl.core.threads import limit_threads
from raylfl.core.torch_state import torch_defaults
from raylfl.errors import BadConfig
from raylfl.experiment.data_source import makes
from raylfl.experiment.parts import WorkerSetup
from raylfl.models import MODELS
from raylfl.replay.effects import StepState
from raylfl.replay.innermost.step import Innermost
from raylfl.replay.innermost.steps import InnermostSteps
from raylfl.replay.step_log import StepLog
from raylfl.runtime.workers.attributes import Attributes
from raylfl.runtime.workers.evaluate import Recorder
from raylfl.runtime.workers.hooks import LOCAL_WORK, overrides_hook, refuse
from raylfl.runtime.workers.training import TrainingLog


def make_module(model: ModelConfig, seed: int, mesh: Any = None) -> Any:
    """Creates the LightningModule of the config group `model`, or copies the module that is given there.

    The initial weights of a new module depend on the seed only. mesh: the `device_mesh` of a module that shards itself.
    Raises BadConfig or BadValue for a module that cannot be used.
    """
    from lightning.pytorch import LightningModule

    with torch_defaults():  # undoes torch settings that the module's file makes on import
        cls = model.target if model.target is not None else MODELS.find(vars(model), "model")
    with torch_defaults(), private_randomness(keyed_int(seed, "init")):
        if isinstance(cls, type) and not issubclass(cls, LightningModule):
            raise _no_module(model, cls)
        module = construct(cls, model.init_args, "model") if makes(cls) else copy.deepcopy(cls)
        if not isinstance(module, LightningModule):
            raise _no_module(model, type(module))
        module._device_mesh = mesh
        if overrides_hook(module, "setup"):
            module.setup("fit")
        if overrides_hook(module, "configure_model"):
            module.configure_model()
    if not overrides_hook(module, "training_step"):
        raise BadConfig(f"model {type(module).__name__} has no training_step, which returns the loss of a batch")
    if not module.automatic_optimization:
        raise BadConfig(
            f"model {type(module).__name__} uses manual optimization, which federated local steps cannot follow"
        )
    refuse(module)
    if model.trainable is not None:  # freezes the other parameters
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        need = f"names or patterns of what {type(module).__name__} trains"
        trained = matching(model.trainable, names, "model.trainable", need)
        for name, p in module.named_parameters():
            p.requires_grad_(p.requires_grad and name in trained)
    return module


def _no_module(model: ModelConfig, cls: type) -> BadConfig:
    other = any(base.__module__.startswith("pytorch_lightning.") for base in cls.__mro__)
    hint = " of lightning.pytorch (this one is of pytorch_lightning: import lightning.pytorch instead)" if other else ""
    return BadConfig(f"model.class_path={model.class_path or model.name}, but must be a LightningModule{hint}")


def innermost_step(steps: InnermostSteps, setup: WorkerSetup, recorder: Recorder) -> Innermost | None:
    """The module's step, translated so that the samples of a batch are the last dimension; traced on two samples.

    None if the step cannot be translated (`raylfl.replay.innermost`) or logs values.
    """
    if not steps.possible:
        return None
    module, dtype = steps.module, next(steps.module.parameters()).dtype
    log, attributes = TrainingLog(StepLog(), 1), Attributes(module, make=partial(make_module, setup.model, setup.seed))
    state = StepState(module, dict(module.named_parameters()))
    try:
        module.train()
        with private_randomness(keyed_int(setup.seed, "check")), recorder.into(log):
            step = steps.of(BatchSource(setup.train, torch.device("cpu"), dtype).batch(setup.probe_samples).content)
    except Exception:
        return None  # `check` reports the failure
    finally:
        attributes.restore()
        state.restore()
    return step if not log.step.values else None


def layout_for(
    module: torch.nn.Module, device: torch.device, setup: WorkerSetup, innermost: Callable[[], Innermost | None]
) -> str:
    """The memory layout of images and convolution weights under `runtime.layout`.

    contiguous: [n, c, h, w], torch's default; channels_last: [n, h, w, c]; batch_last: [c, h, w, n], for steps that can
    be translated to it (`raylfl.replay.innermost`). auto: for float32 on a CPU, batch_last for convolutions of few
    channels (of coloured images: in batches of at most 32) and channels_last otherwise; contiguous in all other cases.
    The choice never depends on a timing, because the layouts differ by rounding. The layout is always contiguous for a
    module without 2-D convolutions, with hooks on local work, or with its own optimizer.

    innermost: returns the translation of the module's step to batch_last, or None; called only if needed. Raises
    BadConfig for batch_last if there is no translation.
    """
    setting, quick = setup.runtime.layout, device.type == "cpu" and setup.dtype == "float32"
    moved_elsewhere = setup.optimizer == "module" or any(overrides_hook(module, name) for name in LOCAL_WORK)
    if moved_elsewhere or not any(isinstance(m, torch.nn.Conv2d) for m in module.modules()):
        return "contiguous"
    if setting in ("contiguous", "channels_last"):
        return setting
    if setting == "auto" and not quick:
        on_units = device.type == "cuda" and setup.runtime.precision in ("32-tf32", "bf16-mixed")
        return "channels_last" if on_units else "contiguous"  # which a GPU's matrix units read
    alone = device.type == "cpu" and setup.runtime.vectorize != "always"
    step = innermost() if alone else None
    if setting == "batch_last" and (step is None or not step.convolutions):
        raise BadConfig(
            f"runtime.layout=batch_last, but {type(module).__name__} here does not take steps that can be "
            "translated: cross-entropy of plain layers, one client at a time on a CPU, with convolutions without "
            "strides, dilation and groups (leave it at auto)"
        )
    batch_last = step is not None and (setting == "batch_last" or step.pays(setup.batch_size))
    return "batch_last" if batch_last else "channels_last"


def devices(setup: WorkerSetup) -> tuple[torch.device, Callable[[], AbstractContextManager[Any]]]:
    """(device, function that makes the precision context) of a worker; also sets torch's threads and GPU settings.

    Raises BadConfig if torch finds no GPU for a worker that has one.
    """
    limit_threads(setup.runtime.threads)
    precision, device = setup.runtime.precision, torch.device("cpu")
    if check_gpu(setup.runtime):
        device = torch.device("cuda" if torch.cuda.is_available() else "mps", 0)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("high" if precision == "32-tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "32-tf32"
    mixed = partial(torch.autocast, device.type, dtype=torch.bfloat16)
    return device, mixed if precision == "bf16-mixed" else nullcontext


def check_gpu(runtime: RuntimeConfig) -> bool:
    """Whether a worker in this process has a GPU. Raises BadConfig if it has one, but torch finds none."""
    share = runtime.on(torch.cuda.device_count()).gpus
    if share > 0 and not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        build = "is built without CUDA" if torch.version.cuda is None else "finds no GPU (see nvidia-smi)"
        raise BadConfig(
            f"runtime.gpus_per_worker={share:g}, but torch {torch.__version__} {build}: install torch's build for CUDA "
            "(https://pytorch.org/get-started), or set runtime.gpus_per_worker=0"
        )
    return share > 0
