"""The choice of `runtime.placement`: whether each client has a worker, the only one that reads its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm


def obstacle(algorithm: Algorithm, merged: bool) -> str | None:
    """The reason why clients of this algorithm cannot be pinned; None if they can.

    merged: whether a single client trains on the data of all clients.
    """
    if algorithm.pattern.peers:
        return "the nodes of a graph work in blocks, and each block has a worker of its own"
    return "a single client trains on all data" if merged else None


def assigns_clients(runtime: RuntimeConfig, by_index: bool, apart: bool, impossible: str | None) -> bool:
    """Whether each client is pinned to one worker, whatever their number. Raises BadConfig if this is impossible.

    `placement: auto` pins clients whose samples are read by index, if pinning is possible. Clients whose samples are
    read by index are trained one by one, pinned or not: `auto` does not change the bits of a run.

    by_index: whether samples are read by index from files. apart: whether the clients' samples are on certain nodes
    only. impossible: the `obstacle` of the algorithm.
    """
    chosen = runtime.placement
    if chosen == "pinned":
        if impossible:
            raise BadConfig(f"runtime.placement=pinned, but {impossible}: use auto or shared")
        if runtime.vectorize == "always":
            raise BadConfig("runtime.placement=pinned runs clients one by one: runtime.vectorize must be auto or never")
        return True
    if apart and runtime.backend == "ray" and (chosen == "shared" or impossible):
        what = impossible or "runtime.placement=shared"
        raise BadConfig(f"{what}, but the clients' data are on certain nodes only: they must be pinned")
    return chosen == "auto" and by_index and not impossible and runtime.vectorize != "always"
