"""Connections to Ray: starts a cluster for the run, or connects to a given one."""

import logging
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig

DIRECT = "RAY_max_direct_call_object_size"  # bytes up to which Ray sends values within calls and results
GCS_WAIT = "RAY_gcs_server_port_wait_time_s"
OWN_CLUSTER = {  # Ray's settings on a cluster started for a run, unless the environment sets them
    DIRECT: "1000000",  # Ray's default: 100 KiB; values are sent faster within calls than through the object store
    "RAY_worker_niceness": "0",  # Ray's default: 15, with almost no CPU time beside two busy processes
    "RAY_worker_register_timeout_seconds": "600",  # Ray's default: 60, too short for a start on a busy machine
    GCS_WAIT: "120",  # Ray's default: 20, too short for its head process on a busy machine
}
ATTACH_SECONDS = "5"  # attempts, one per second, to reach the head of a given cluster (Ray's default: 20)
ANSWER_SECONDS = 10.0  # limit for a first answer from the head of a given cluster
SHARED_MEMORY = Path("/dev/shm")  # Ray's object store on Linux
LEAST_STORE = 80 * 2**20  # bytes; Ray refuses less than 75 MiB
SOCKET_BYTES = 103 if sys.platform == "darwin" else 107  # the longest path of a Unix socket
# bytes that Ray appends to the path of its folder
SESSION_BYTES = len("/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store.1")
SLOW, START_SECONDS = "timed out during startup", 30  # words of Ray's error if its node is slow to start, its limit
OTHER_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "~")  # for Ray's files if TMPDIR is not usable
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def address_of(runtime: RuntimeConfig) -> str | None:
    """The address of the cluster to connect to, from the config or RAY_ADDRESS; None if the run starts a cluster."""
    return runtime.address or os.environ.get("RAY_ADDRESS") or None


def starts_ray(runtime: RuntimeConfig) -> bool:
    """Whether a run starts Ray on this machine: it has no address, and the caller is not connected to Ray."""
    ray = sys.modules.get("ray")
    return address_of(runtime) is None and not (ray is not None and ray.is_initialized())


def direct_bytes() -> int:
    """The bytes up to which Ray sends values within calls and results; larger values are separate objects."""
    return int(os.environ.get(DIRECT, 100 * 2**10))


# -- a given cluster -----------------------------------------------------------------------------------------------


def check_address(runtime: RuntimeConfig) -> None:
    """Checks the address of a given cluster, before anything is imported; raises BadConfig with the reason."""
    address = address_of(runtime)
    if address is None:
        if "" in (runtime.address, os.environ.get("RAY_ADDRESS")):  # as after `export RAY_ADDRESS=$(...)` that failed
            key, remedy = ("RAY_ADDRESS", "unset it") if runtime.address is None else ("runtime.address", "set null")
            raise BadConfig(
                f"{key} is empty: {remedy}, and the run starts a Ray of its own; or name a cluster's host:port"
            )
        return
    if address.startswith(("http://", "https://")):
        need = "host:port of the cluster's head, ray://host:port, or auto"
        hint = "an http address is that of the dashboard, to which `ray job submit` sends jobs"
        raise BadConfig(f"{_key(runtime, address)}, but must be {need} ({hint})")
    if not listens(address):
        raise BadConfig(f"{_key(runtime, address)}: no Ray cluster answers there (nothing listens at this address)")


def _key(runtime: RuntimeConfig, address: str) -> str:
    return f"runtime.address={address}" if runtime.address else f"RAY_ADDRESS={address}"


def join(runtime: RuntimeConfig, address: str) -> None:
    """Connects to the Ray cluster at this address; raises BadConfig with the reason if that fails."""
    import ray
    from ray.exceptions import RayError

    key = _key(runtime, address)
    check_address(runtime)
    if not speaks_grpc(address):  # Ray itself would try for many minutes
        raise BadConfig(f"{key}: no Ray cluster answers there (another program listens at this address)")
    try:
        with patch.dict(os.environ, {GCS_WAIT: os.environ.get(GCS_WAIT, ATTACH_SECONDS)}):
            ray.init(address=address, **QUIET)
    except (ConnectionError, RuntimeError, RayError) as error:
        raise BadConfig(f"{key}: {_reason(error)}") from error


def listens(address: str, seconds: float = 5.0) -> bool:
    """Whether a process accepts connections at the address host:port.

    True for addresses of another form (`auto`, `ray://...`), which are not tested.
    """
    place = _host_and_port(address)
    if place is None:
        return True
    try:
        socket.create_connection(place, seconds).close()
    except OSError:
        return False
    return True


def speaks_grpc(address: str) -> bool:
    """Whether a gRPC server, such as Ray's head, listens at the address host:port.

    True if this cannot be tested: for addresses of another form, and if Ray encrypts its connections.
    """
    if _host_and_port(address) is None or os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return True
    import grpc

    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            return False
    return True


def _host_and_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if host and "/" not in host and port.isdigit() else None


def _reason(error: BaseException) -> str:
    """The reason why Ray did not connect, from an exception of Ray and the chain of its causes."""
    cause: BaseException | None = error
    while cause is not None:
        if "InvalidAuthToken" in str(cause) or "Unauthenticated" in str(cause):
            return (
                "the Ray cluster there refuses this token (InvalidAuthToken): set RAY_AUTH_TOKEN, or copy the "
                "cluster's ~/.ray/auth_token here; with RAY_AUTH_MODE=disabled no token is sent"
            )
        cause = cause.__cause__ or cause.__context__
    return f"no Ray cluster answers there ({' '.join(str(error).split())})"


# -- a Ray started for the run -------------------------------------------------------------------------------------


def start(runtime: RuntimeConfig) -> list[str]:
    """Starts Ray on this machine; returns lines for the user about it. Raises BadConfig if Ray cannot start."""
    import ray

    folder, notes = ray_folder()
    store, small = store_bytes(runtime)
    for attempt in (1, 2):
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=store,
                _temp_dir=None if folder is None else str(folder),
                **QUIET,
            )
            break
        except Exception as error:  # Ray raises a bare Exception if its node is slow to start
            ray.shutdown()
            reason = " ".join(str(error).split())
            slow = SLOW in reason
            if slow and attempt == 1:
                notes.append(f"Ray's start took more than {START_SECONDS} s: it is tried once more")
                continue
            way = "wait until the machine is less busy, or `ray start --head` beforehand and set RAY_ADDRESS"
            busy = f"; Ray's limit of {START_SECONDS} s is fixed: {way}" if slow else ""
            raise BadConfig(
                f"runtime.backend=ray: Ray cannot start here ({reason}){busy}; runtime.backend=local needs no Ray"
            ) from error
    return notes + small


def ray_folder() -> tuple[Path | None, list[str]]:
    """Chooses the folder for Ray's sockets and logs; returns it (None: Ray's default), and lines for the user about it.

    The default is not used if it cannot be written or is too long. Raises BadConfig if no folder can be used.
    """
    usual = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"
    problem = _unusable(usual)
    if problem is None:
        return None, []
    for base in OTHER_FOLDERS:
        folder = Path(base).expanduser() / "ray"
        if _unusable(folder) is None:
            return folder, [f"Ray's files go to {folder}: {usual} {problem}"]
    raise BadConfig(f"TMPDIR={usual.parent}: {usual} {problem}; set RAY_TMPDIR to a short path that can be written")


def _unusable(folder: Path) -> str | None:
    """The reason why Ray cannot keep its files in this folder; None if it can."""
    if len(os.fsencode(folder)) + SESSION_BYTES > SOCKET_BYTES:
        return f"is too long a path for Ray's sockets (at most {SOCKET_BYTES - SESSION_BYTES} bytes)"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"cannot be written ({error.strerror})"


def store_bytes(runtime: RuntimeConfig) -> tuple[int, list[str]]:
    """Returns the size of Ray's object store in bytes, and lines for the user if Ray must keep objects on disk.

    The default is 0.3 of the machine's memory, but at most 0.9 of the free shared memory.
    """
    import psutil

    free = psutil.disk_usage(str(SHARED_MEMORY)).free if SHARED_MEMORY.is_dir() else None
    wanted = None if runtime.object_store_mb is None else runtime.object_store_mb * 2**20
    if wanted is None:
        room = psutil.virtual_memory().total * 0.3
        wanted = max(int(room if free is None else min(room, free * 0.9)), LEAST_STORE)
    if free is None or free >= wanted:
        return wanted, []
    note = f"{SHARED_MEMORY} has only {free / 2**20:.0f} MiB free: Ray keeps objects in files on disk, which is slower"
    return wanted, [f"{note} (in a container: --shm-size)"]
