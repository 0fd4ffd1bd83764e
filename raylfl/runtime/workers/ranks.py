"""The processes of a worker that computes on several devices; the worker's own process is the first of them.

The first process sends each call of the sharded module to the others, and makes it as well. What the processes exchange
in a call goes through torch.distributed: NCCL on GPUs, gloo on CPUs. If the worker ends, or is killed, the sockets
close and the others end. If one of the others ends, a worker actor ends as well, and Ray starts both again; in the
calling process the run ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from raylfl.core.batchnorm import allow_single_samples
from raylfl.core.torch_state import torch_defaults
from raylfl.errors import BadConfig, RanksLost, RaylflError, headline
from raylfl.experiment.parts import WorkerSetup
from raylfl.runtime.workers.evaluate import Recorder
from raylfl.runtime.workers.module import devices
from raylfl.runtime.workers.sharded import ShardedModule, make_sharded, refuse_settings
from raylfl.startup import process

FAILED = ("", ())  # sent in place of a call to say that the newest call has failed
GRACE_SECONDS = 20.0  # until the other processes must have failed in the same call
UNUSED = (
    "algorithm",
    "rule",
    "inner",
    "population",
    "shards",
    "train",
    "test",
    "val",
)  # parts of the setup for the first process


class Ranks:
    """The other processes of a worker, for its first one; a process has at most one such group."""

    current: ClassVar[Ranks | None] = None

    def __init__(self, setup: WorkerSetup, lost: Callable[[], object]):
        """Starts the processes, and waits until they can build the module.

        lost: called, in a thread, when one of them has ended unexpectedly.
        """
        if Ranks.current is not None:
            Ranks.current.close()
        if dist.is_initialized():
            raise RaylflError("a model cannot be sharded over processes here: torch.distributed is in use already")
        self.closed, self._lost = False, lost
        self.flat: ShardedModule | None = None
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._children = [process.start_child(__name__, {}) for _ in range(1, setup.runtime.processes)]
        Ranks.current = self
        nothing: dict[str, Any] = dict.fromkeys(UNUSED)
        try:
            for rank, (_, connection) in enumerate(self._children, 1):
                connection.send_bytes(pickle.dumps((replace(setup, **nothing), rank, self.store.port)))
            for rank, (_, connection) in enumerate(self._children, 1):
                if (error := connection.recv()) is not None:
                    raise BadConfig(
                        f"process {rank} of a worker cannot read the model, which must be importable: {error}"
                    )
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise BadConfig(f"a sharded model must be importable by other processes: {headline(error)}") from error
        except BaseException:
            self.close()
            raise
        for child, _ in self._children:
            threading.Thread(target=self._watch, args=[child], daemon=True, name="raylfl rank").start()

    @staticmethod
    def module(setup: WorkerSetup, lost: Callable[[], object]) -> ShardedModule:
        """Starts the other processes of a worker; returns its sharded module. lost: as above."""
        refuse_settings(setup)
        ranks = Ranks(setup, lost)
        try:
            flat = ranks.flat = _build(setup, 0, ranks.store, ranks)
        except BaseException:
            ranks.close()
            raise
        return flat

    def together(self, method: str, *args: Any) -> Any:
        """Calls a method of the sharded module in all processes; returns its result in this one.

        An exception is raised here if all processes have raised one. Otherwise they cannot go on together: raises
        RanksLost.
        """
        try:
            message = pickle.dumps((method, args))
            for _, connection in self._children:
                connection.send_bytes(message)
            return getattr(self.flat, method)(*args)
        except BaseException as error:
            if self.closed or not self._all_failed():
                self._lost()
                codes = [child.poll() for child, _ in self._children]
                self.close()
                ended = [f"process {rank} ended ({code})" for rank, code in enumerate(codes, 1) if code is not None]
                raise RanksLost(
                    f"the {1 + len(codes)} processes of a worker, over which the model is sharded, cannot go on "
                    f"together: {ended[0] if ended else headline(error)}; is the memory used up?"
                ) from error
            raise

    def _all_failed(self) -> bool:
        try:
            for _, connection in self._children:
                connection.send_bytes(pickle.dumps(FAILED))
            return all(connection.poll(GRACE_SECONDS) and connection.recv() for _, connection in self._children)
        except (EOFError, OSError):
            return False

    def _watch(self, child: Any) -> None:
        child.wait()
        if not self.closed:
            self._lost()

    def close(self) -> None:
        """Ends the other processes; may be called twice."""
        if self.closed:
            return
        self.closed, Ranks.current = True, None
        for child, connection in self._children:
            connection.close()
            child.kill()
            child.wait()
        if dist.is_initialized():
            dist.destroy_process_group()


def _build(setup: WorkerSetup, rank: int, store: Any, ranks: Ranks | None) -> ShardedModule:
    """The part of the module in the process number `rank`; all processes build theirs together."""
    device, autocast = devices(setup)
    if device.type == "cuda":
        if torch.cuda.device_count() < setup.runtime.processes:
            raise BadConfig(
                f"runtime.gpus_per_worker={setup.runtime.processes}, but torch finds {torch.cuda.device_count()} GPUs"
            )
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=setup.runtime.processes
    )
    module = make_sharded(setup, device.type)
    allow_single_samples(module)
    Recorder().attach(module)  # which drops what the steps log; the worker attaches its own
    return ShardedModule(module, setup, device, autocast, ranks)


@torch_defaults()
def serve(handle: int) -> None:
    """Makes the calls that the first process sends through this socket, until it closes."""
    process.set_up()
    connection, messages = Connection(handle), queue.SimpleQueue[bytes]()

    def receive() -> None:
        try:
            while True:
                messages.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=receive, daemon=True, name="raylfl first").start()
    try:
        setup, rank, port = pickle.loads(messages.get())
    except Exception as error:
        connection.send(headline(error))
        messages.get()  # until the first process has read this
    connection.send(None)
    flat = _build(setup, rank, TCPStore("127.0.0.1", port), None)
    while True:
        method, args = pickle.loads(messages.get())
        try:
            getattr(flat, method)(*args)
        except BaseException:
            connection.send(True)
            if pickle.loads(messages.get(timeout=GRACE_SECONDS)) != FAILED:
                os._exit(1)
