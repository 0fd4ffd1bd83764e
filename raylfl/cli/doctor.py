"""`raylfl doctor`: checks of installation, data and folders, with the command that corrects each fault.

The state of a fault is `missing` if `raylfl run digits` fails because of it, and `note` otherwise.
"""

import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import raylfl
from raylfl.components.extras import EXTRAS, REQUIRED, install_command, installed
from raylfl.components.registry import plugins
from raylfl.config.groups.records import LoggingConfig
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.registries import KINDS
from raylfl.errors import BadConfig

State = Literal["ok", "note", "missing"]
DEFAULT_RUN = {*REQUIRED, "ray", "sklearn"}  # modules that `raylfl run digits` imports
DATA_FOLDERS = {  # data set -> its folder below the root
    "mnist": "MNIST/raw",
    "fashion_mnist": "FashionMNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "cinic10": "CINIC-10",
}
NVIDIA = Path("/proc/driver/nvidia/gpus")  # exists where the driver of a GPU runs
PORTS = {  # option of `ray start --head` -> its default
    "port": 6379,
    "dashboard-port": 8265,
    "ray-client-server-port": 10001,
    "dashboard-agent-listen-port": 52365,
}
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the output of `raylfl doctor`; remedy: the command or setting that corrects the fault, if known."""

    state: State
    subject: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.state:8} {self.subject:12} {self.text}{remedy}"


def findings() -> Iterator[Finding]:
    """The findings of all checks, in the order of `CHECKS`; a check that raises an error gives a note."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:
            name = check.__name__.strip("_").replace("_", " ")
            yield Finding("note", name, f"could not be looked at ({type(error).__name__}: {error})")


def _program() -> Iterator[Finding]:
    yield Finding("ok", "raylfl", f"{raylfl.__version__} in {Path(__file__).parents[1]}, {sys.executable}")
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.platform()}")


def _packages() -> Iterator[Finding]:
    distributions = metadata.packages_distributions()  # called once, because it searches every installed package
    modules = dict.fromkeys(REQUIRED, "")
    modules |= {module: f" (extra {extra})" for extra, own in EXTRAS.items() for module in own}
    for module, extra in modules.items():
        if installed(module):
            name = distributions.get(module, [module])[0]
            yield Finding("ok", module, f"{metadata.version(name)}{extra}")
        else:
            state: State = "missing" if module in DEFAULT_RUN else "note"
            yield Finding(state, module, f"is not installed{extra}", install_command(module))


def _gpus() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available() and NVIDIA.is_dir():
        cuda = torch.version.cuda or "is missing"
        problem = f"there is one, but torch {torch.__version__} cannot use it (CUDA {cuda})"
        yield Finding("note", "gpu", problem, "install torch's build for the driver's CUDA: https://pytorch.org")
    elif not torch.cuda.is_available():
        yield Finding("ok", "gpu", f"none; {os.cpu_count()} CPUs, torch computes on {torch.get_num_threads()}")
    for k in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(k)
        yield Finding("ok", "gpu", f"{about.name}, {about.total_memory / GIB:.0f} GiB; runtime.gpus_per_worker uses it")


def _ray() -> Iterator[Finding]:
    from raylfl.runtime.ray.connection import ray_folder, store_bytes

    if "RAY_ADDRESS" in os.environ:
        yield _cluster(os.environ["RAY_ADDRESS"])
        return
    size, notes = store_bytes(RuntimeConfig())
    yield Finding("ok", "ray cluster", f"each run starts its own; up to {size / GIB:.1f} GiB of objects in memory")
    for note in [*notes, *ray_folder()[1]]:
        yield Finding("note", "ray cluster", note)


def _ports() -> Iterator[Finding]:
    """Looks for a second Ray, or another program, on the ports that `ray start --head` uses by default."""
    from raylfl.runtime.ray.connection import listens, speaks_grpc

    taken = {option: port for option, port in PORTS.items() if listens(f"127.0.0.1:{port}", 1.0)}
    ports = ", ".join(str(port) for port in taken.values() or PORTS.values())
    if not taken:
        yield Finding("ok", "ray ports", f"{ports} are free for `ray start --head`")
        return
    head = f"127.0.0.1:{PORTS['port']}"
    answers = "port" in taken and speaks_grpc(head)
    ray = f"; a Ray answers at {head}, which runs join with RAY_ADDRESS={head}" if answers else ""
    options = " ".join(f"--{option}={port}" for option, port in zip(taken, free_ports(len(taken)), strict=True))
    yield Finding("note", "ray ports", f"{ports} in use here{ray}; to start another", f"ray start --head {options}")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def _cluster(address: str) -> Finding:
    """Joins the cluster in RAY_ADDRESS as a run does, because token and versions are checked only on joining."""
    from raylfl.runtime.ray.cluster import cluster_for
    from raylfl.runtime.ray.connection import check_address
    from raylfl.runtime.ray.resources import nodes_of_cluster

    try:
        check_address(RuntimeConfig())  # refuses an empty one
        with cluster_for(RuntimeConfig()) as cluster:
            cluster.ready()
            nodes = nodes_of_cluster()
    except BadConfig as error:
        return Finding("missing", "ray cluster", str(error), "unset RAY_ADDRESS, and each run starts its own Ray")
    cpus, gpus = (sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU"))
    have = f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {cpus:g} CPUs and {gpus:g} GPUs"
    return Finding("ok", "ray cluster", f"runs join {address}: {have}")


def _data() -> Iterator[Finding]:
    from raylfl.data.base import data_root

    root = data_root(None)
    there = [name for name, folder in DATA_FOLDERS.items() if (root / folder).is_dir()]
    absent = [name for name in DATA_FOLDERS if name not in there]
    yield Finding("ok", "data", f"{', '.join(there) or 'none'} in {root} (digits and synthetic data need no files)")
    if absent:
        remedy = "set RAYLFL_DATA to their folder, or data.init_args.download=true"
        yield Finding("note", "data", f"{', '.join(absent)} not found there", remedy)


def _folders() -> Iterator[Finding]:
    runs = LoggingConfig().folder
    for subject, folder, remedy in (
        ("runs", runs, "set RAYLFL_RUNS, or logging.dir, to a folder that can be written"),
        ("temporary", Path(tempfile.gettempdir()), "set TMPDIR"),
    ):
        place = next(place for place in (folder, *folder.parents) if place.exists())
        try:
            with tempfile.TemporaryFile(dir=place):
                yield Finding("ok", subject, f"{folder} can be written")
        except OSError as error:
            yield Finding("missing", subject, f"{folder} cannot be written ({error.strerror})", remedy)


def _plug_ins() -> Iterator[Finding]:
    for kind, registry in KINDS.items():
        for name in plugins(kind):
            entry = registry.get(name)
            try:
                if entry.origin:
                    _ = entry.cls
                    yield Finding("ok", "plug-in", f"{kind}/{name} of {entry.origin}")
            except BadConfig as error:
                yield Finding("note", "plug-in", f"{kind}/{name} cannot be used ({error})")


CHECKS = (_program, _packages, _gpus, _ray, _ports, _data, _folders, _plug_ins)
