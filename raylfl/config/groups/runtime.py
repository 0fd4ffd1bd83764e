"""The keys of the config group `runtime`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from raylfl.components.options import Doc, Ge, Gt, Options
from raylfl.errors import BadConfig, BadValue

Vectorize = Literal["auto", "always", "never"]
Layout = Literal["auto", "contiguous", "channels_last", "batch_last"]  # memory order of images and convolutions
LAYOUTS: tuple[Layout, ...] = ("contiguous", "channels_last", "batch_last")


@dataclass
class RuntimeConfig(Options):
    """`runtime`: processes, devices and failures of a run.

    If nothing fails, these keys change speed, not results. Exceptions, by rounding only: `threads`, `micro_cohort`,
    `vectorize`, `layout`, `compile`, `processes_per_worker`, `placement=pinned`, the device.
    `precision=bf16-mixed` changes results.
    """

    backend: Annotated[Literal["ray", "local"], Doc("local: the same code in the calling process")] = "ray"
    workers: Annotated[
        int | None,
        Ge(1),
        Doc(
            "the largest number of worker actors; null: one per client. A run starts with as many as there is room "
            "for, and takes further ones when nodes join or become free"
        ),
    ] = None
    cpus_per_worker: Annotated[float, Gt(0), Doc("CPUs that each worker reserves; fractions are allowed")] = 1.0
    gpus_per_worker: Annotated[
        float | Literal["auto"],
        Doc(
            "the share of a GPU that each worker reserves: 1, or 0.25 if four workers share one; 2 and more: GPUs over "
            "which the model shards itself in `configure_model`; 0: workers compute on CPUs; auto: a whole GPU for "
            "each worker while there are enough, else equal shares, and 0 without GPUs"
        ),
    ] = "auto"
    processes_per_worker: Annotated[
        int | None,
        Ge(1),
        Doc(
            "processes of each worker, over which the model shards itself in `configure_model`: one on each GPU, "
            "or on CPUs; null: as many as GPUs, at least one"
        ),
    ] = None
    placement: Annotated[
        Literal["auto", "shared", "pinned"],
        Doc(
            "shared: any worker runs any client; pinned: each client has its worker, the only one that reads its "
            "samples, and clients run one by one; auto: pinned for data that are read by index, and with as "
            "many workers as clients, or CPUs on several nodes, where this changes no bit; else shared"
        ),
    ] = "auto"
    sums: Annotated[
        Literal["auto", "object_store", "nccl", "gloo"],
        Doc(
            "how Ray workers bring long sums of uploads together, with the same bits: through the object_store, or "
            "directly from worker to worker, nccl: between GPUs, gloo: between hosts; auto: nccl if each worker has a "
            "GPU of its own, else object_store"
        ),
    ] = "auto"
    wait: Annotated[
        float,
        Ge(0),
        Doc(
            "seconds that a run waits on a cluster without room for any worker, at its start or after the loss of "
            "nodes; 0: it ends at once, also if the cluster has no room for all `workers`"
        ),
    ] = 180.0
    address: Annotated[
        str | None, Doc("the address of a running cluster; null: `RAY_ADDRESS`, or else a new cluster")
    ] = None
    object_store_mb: Annotated[
        int | None,
        Ge(80),
        Doc(
            "megabytes of the object store (Ray's minimum is 75) on a cluster started for the run; "
            "null: 0.3 of the memory, allocated as it is used"
        ),
    ] = None
    threads: Annotated[int, Ge(1), Doc("threads of torch in a worker")] = 1
    precision: Annotated[
        str | None,
        Doc(
            "`32-true`, `64-true` or `bf16-mixed`, as in Lightning Fabric, or `32-tf32` (products and convolutions of "
            "19-bit numbers on a GPU's matrix units); null: the precision of dtype"
        ),
    ] = None
    micro_cohort: Annotated[
        int | None,
        Ge(1),
        Doc(
            "the most clients that one vectorised call trains; null: 32 (large models) to 128 (small ones) on a "
            "CPU, on a GPU as many as its memory holds; lower it if some workers stay idle"
        ),
    ] = None
    vectorize: Annotated[
        Vectorize,
        Doc(
            "whether several clients run in one vectorised call; auto: for models and devices that usually gain from it"
        ),
    ] = "auto"
    step: Annotated[
        Literal["auto", "recorded", "autograd"],
        Doc(
            "a client's local step: a replay of its recorded calls, with autograd's bits, or autograd; auto: recorded "
            "if possible; changes no result"
        ),
    ] = "auto"
    graphs: Annotated[
        Literal["auto", "never"],
        Doc("local steps on a GPU as CUDA graphs; auto: if these have the same bits; changes no result"),
    ] = "auto"
    compile: Annotated[
        str | None,
        Doc(
            "`inductor` or another backend of `torch.compile`, for `training_step`: clients run one at a time, by "
            "autograd; workers need seconds to import the compiler, and results differ from autograd's by rounding"
        ),
    ] = None
    layout: Annotated[
        Layout,
        Doc(
            "the memory order of images and convolutions: `channels_last` is up to twice as fast on a CPU, "
            "`batch_last` even faster for convolutions of few channels, as in LeNet-5; auto: chosen by the model's "
            "layers and the batch size"
        ),
    ] = "auto"
    client_retries: Annotated[int, Ge(0), Doc("further attempts at a client's work")] = 2
    on_client_error: Annotated[
        Literal["fail", "drop"],
        Doc("if a client's work fails in every attempt: end the run, or count its upload as lost"),
    ] = "fail"
    on_nonfinite: Annotated[
        Literal["fail", "drop"], Doc("if an upload is not finite: end the run, or count the upload as lost")
    ] = "fail"
    client_timeout: Annotated[
        float | None,
        Gt(0),
        Doc("the time limit of a worker in seconds; for its share of a round, and for each part of an evaluation"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.gpus_per_worker
        if share != "auto" and (share < 0 or (share > 1 and share != int(share))):
            hint = "several GPUs are for a model that shards itself; runtime.workers is the number of workers"
            raise BadValue("gpus_per_worker", got=share, need="auto, 0, at most 1, or a whole number", hint=hint)
        if share not in ("auto", 0) and self.processes_per_worker not in (None, max(1, share)):
            hint = f"a process has one GPU, and runtime.gpus_per_worker={share:g}"
            raise BadValue("processes_per_worker", got=self.processes_per_worker, need="null", hint=hint)
        if self.precision not in ("32-true", "32-tf32", "64-true", "bf16-mixed", None):
            raise BadValue(
                "precision",
                got=self.precision,
                need="one of 32-true, 32-tf32, 64-true, bf16-mixed or null",
                hint="16-mixed needs a gradient scaler, which federated local steps do not define",
            )

    def check_dtype(self, dtype: str) -> None:
        """Raises BadConfig if `precision` would not change the arithmetic of a run of this dtype."""
        fitting = ("64-true",) if dtype == "float64" else ("32-true", "32-tf32", "bf16-mixed")
        if self.precision not in (*fitting, None):
            raise BadConfig(
                f"runtime.precision={self.precision}, but must be null or {' or '.join(fitting)} with dtype={dtype}"
            )

    def on(self, gpus: float) -> RuntimeConfig:
        """These settings on a machine or cluster with this number of GPUs: `gpus_per_worker` is a number.

        >>> [RuntimeConfig(workers=w).on(2).gpus_per_worker for w in (None, 2, 3, 8)]
        [1.0, 1.0, 0.5, 0.25]
        >>> [RuntimeConfig(processes_per_worker=2).on(gpus).gpus_per_worker for gpus in (1, 2, 8)]
        [0.0, 2.0, 2.0]
        """
        if self.gpus_per_worker != "auto":
            return self
        workers = 1 if self.backend == "local" else self.workers or 1
        return self.sharing(0.0 if gpus < self.processes else 1.0 / math.ceil(workers / gpus))

    def sharing(self, share: float) -> RuntimeConfig:
        """These settings with this share of a GPU for each worker of one process, if `gpus_per_worker` is `auto`.

        A worker of several processes gets a GPU for each if the share is not 0.
        """
        share = float(self.processes) if share and self.processes > 1 else share
        return replace(self, gpus_per_worker=share) if self.gpus_per_worker == "auto" else self

    @property
    def gpus(self) -> float:
        """The GPUs of each worker, 0 if this is not decided yet (`on`)."""
        return 0.0 if self.gpus_per_worker == "auto" else self.gpus_per_worker

    @property
    def processes(self) -> int:
        """The processes of each worker; over several, its module shards itself."""
        return self.processes_per_worker or max(1, int(self.gpus))
