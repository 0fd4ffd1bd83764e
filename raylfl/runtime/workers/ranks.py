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
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from raylfl.core.batchnorm import allow_single_samples
from raylfl.core.torch_state import torch_defaults
from raylfl.errors import BadConfig, RanksLost, RaylflError, exits_as_errors, headline
from raylfl.experiment.parts import WorkerSetup
from raylfl.runtime.workers.evaluate import Recorder
from raylfl.runtime.workers.module import devices
from raylfl.runtime.workers.sharded import ShardedModule, make_sharded, refuse_settings
from raylfl.startup import process

FAILED = ("", ())  # sent in place of a call: the newest call has failed in the first process
GRACE_SECONDS = 20.0  # in which all processes end a call that has failed in one of them
TIMEOUT = timedelta(minutes=10)  # of an exchange of tensors, in which all processes take part at about the same time
UNUSED = ["algorithm", "rule", "inner", "population", "shards", "train", "test", "val"]  # by the other processes


class Ranks:
    """The other processes of a worker, for its first one; a process has at most one such group."""

    current: ClassVar[Ranks | None] = None

    def __init__(self, setup: WorkerSetup, lost: Callable[[], object]):
        """Starts the processes and builds the module; lost: called, in a thread, when one has ended unexpectedly."""
        refuse_settings(setup)
        if Ranks.current is not None:
            Ranks.current.close()
        if dist.is_initialized():
            raise RaylflError("a model cannot be sharded over processes here: torch.distributed is in use already")
        self.closed, self._lost = False, lost
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._children = [process.start_child(__name__, {}) for _ in range(1, setup.runtime.processes)]
        Ranks.current = self
        try:
            self._send_setup(setup, store.port)
            for child, _ in self._children:
                threading.Thread(target=self._watch, args=[child], daemon=True, name="raylfl rank").start()
            self.flat = _build(setup, 0, store, self)
        except BaseException:
            self.close()
            raise

    def _send_setup(self, setup: WorkerSetup, port: int) -> None:
        """Sends the processes what they need, and waits until they have it; raises BadConfig if they cannot read it."""
        error: str | None = None
        try:
            nothing: dict[str, Any] = dict.fromkeys(UNUSED)
            for rank, (_, connection) in enumerate(self._children, 1):
                connection.send_bytes(pickle.dumps((replace(setup, **nothing), rank, port)))
            for _, connection in self._children:
                error = error or connection.recv()
        except (pickle.PicklingError, AttributeError, TypeError, EOFError, OSError) as failure:
            error = headline(failure)
        if error is not None:
            raise BadConfig(
                f"model {setup.model.name or setup.model.class_path} is sharded over processes, which must be able to "
                f"import it (from a module, not a script): {error}"
            )

    def together(self, method: str, *args: Any) -> Any:
        """Calls a method of the sharded module in all processes; returns its result in this one.

        Raises the exception of this process if the others have ended the call as well; otherwise RanksLost.
        """
        try:
            with exits_as_errors():
                message = pickle.dumps((method, args))
                for _, connection in self._children:
                    connection.send_bytes(message)
                return getattr(self.flat, method)(*args)
        except Exception as error:
            if self.closed or not self._all_wait():
                self._lost()
                codes = [child.poll() for child, _ in self._children]
                self.close()
                ended = [f"process {rank} ended ({code})" for rank, code in enumerate(codes, 1) if code is not None]
                raise RanksLost(
                    f"the {1 + len(codes)} processes of a worker, over which the model is sharded, cannot go on "
                    f"together: {ended[0] if ended else headline(error)}; is the memory used up?"
                ) from error
            raise
        except BaseException:  # the others may wait in the call
            self.close()
            raise

    def _all_wait(self) -> bool:
        """Whether the other processes have ended the newest call, too."""
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
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT, store=store, rank=rank, world_size=setup.runtime.processes)
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
    try:
        flat = _build(setup, rank, TCPStore("127.0.0.1", port), None)
    except Exception:
        with suppress(queue.Empty):
            messages.get(timeout=GRACE_SECONDS)  # the same error ends the first process, which reports it
        raise
    failed = False  # whether the newest call has failed here, as it then must in the first process
    while True:
        try:
            method, args = pickle.loads(messages.get(timeout=GRACE_SECONDS if failed else None))
        except queue.Empty:
            os._exit(1)
        if (method, args) == FAILED:
            failed = False
            connection.send(True)
        elif failed:
            os._exit(1)
        else:
            try:
                getattr(flat, method)(*args)
            except BaseException:
                failed = True
