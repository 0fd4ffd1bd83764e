"""The rule by which clients are pinned: each to one worker, the only one that reads the client's samples."""

from __future__ import annotations

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig


def assigns_clients(runtime: RuntimeConfig, by_index: bool, apart: bool, impossible: str | None) -> bool:
    """Whether each client is pinned to one worker. Raises BadConfig if pinning is required, but impossible.

    `placement: auto` pins clients whose samples are read by index, if pinning is possible. Clients whose samples are
    read by index are trained one by one, pinned or not: `auto` does not change the bits of a run.

    by_index: whether samples are read by index from files. apart: whether the clients' samples are on certain nodes
    only. impossible: the reason why the algorithm cannot have pinned clients; None if pinning is possible.
    """
    chosen = runtime.placement
    if chosen == "pinned":
        if runtime.backend == "local":
            raise BadConfig(
                "runtime.placement=pinned, but runtime.backend=local has one worker for all clients: use auto or shared"
            )
        if impossible:
            raise BadConfig(f"runtime.placement=pinned, but {impossible}: use auto or shared")
        if runtime.vectorize == "always":
            raise BadConfig("runtime.placement=pinned runs clients one by one: runtime.vectorize must be auto or never")
        return True
    if apart and runtime.backend == "ray" and (chosen == "shared" or impossible):
        what = impossible or "runtime.placement=shared"
        raise BadConfig(f"{what}, but the clients' data are on certain nodes only: they must be pinned")
    return chosen == "auto" and by_index and not impossible and runtime.vectorize != "always"
