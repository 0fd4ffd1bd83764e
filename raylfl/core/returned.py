"""Checks of the values that an algorithm's methods return.

Without them a wrong shape is broadcast, and a client state with an unknown name is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from raylfl.core.summing import rows_reason
from raylfl.errors import BadConfig

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
    from raylfl.core.population import Round


def broadcast_of(algorithm: Algorithm, server: ServerState) -> State:
    """algorithm.broadcast(server); raises BadConfig unless it is a dict of tensors."""
    returned = algorithm.broadcast(server)
    if not isinstance(returned, Mapping) or not all(isinstance(vector, Tensor) for vector in returned.values()):
        raise _bad(algorithm, "broadcast", returned, "vectors by name, such as {x: ...}")
    return returned


def init_clients_of(algorithm: Algorithm, x: Tensor, count: int) -> State:
    """algorithm.init_clients(x, count); raises BadConfig unless each state has a row per client."""
    returned = algorithm.init_clients(x, count)
    if not _has_rows(returned, count):
        raise _bad(algorithm, f"init_clients(x, {count})", returned, f"states by name, each with rows [{count}, ...]")
    return returned


def start_point_of(algorithm: Algorithm, broadcast: State, client_state: State, count: int, width: int) -> Tensor:
    """algorithm.start_point(broadcast, client_state); raises BadConfig unless it is [d], [1, d] or [C, d].

    count, width: C and d.
    """
    returned = algorithm.start_point(broadcast, client_state)
    if not isinstance(returned, Tensor) or list(returned.shape) not in ([width], [1, width], [count, width]):
        raise _bad(algorithm, "start_point", returned, f"a tensor [{width}], or [{count}, {width}], one row per client")
    return returned


def start_of(algorithm: Algorithm, broadcast: State, client_state: State, work: Work, count: int) -> State:
    """algorithm.start(broadcast, client_state, work); raises BadConfig unless each tensor has one row or `count`."""
    returned = algorithm.start(broadcast, client_state, work)
    if not _has_rows(returned, 1, count):
        need = f"the first carry, tensors by name with {count} rows (or 1, the same for all clients)"
        raise _bad(algorithm, "start", returned, need)
    return returned


def direction_of(algorithm: Algorithm, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
    """Returns algorithm.direction(x, g, carry), a pair (v, next carry); raises BadConfig unless v has x's shape."""
    returned = algorithm.direction(x, g, carry)
    if not _is_pair(returned) or not isinstance(returned[0], Tensor) or returned[0].shape != x.shape:
        raise _bad(algorithm, "direction", returned, f"(v {list(x.shape)}, carry), one row of v per client")
    return returned


def finish_of(algorithm: Algorithm, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
    """Returns algorithm.finish(x, carry, client_state, work), a pair (uploads, new client states), after a check.

    Raises BadConfig unless each tensor of the pair has one row per client, and the new states have the names and shapes
    of `client_state`. Uploads of which workers send the sums must be matrices [C, d]. The new states may be empty for
    decentralised algorithms, whose states change after the exchange.
    """
    returned = algorithm.finish(x, carry, client_state, work)
    count = x.shape[0]
    if not _is_pair(returned) or not _has_rows(returned[0], count) or not _has_rows(returned[1], count):
        raise _bad(algorithm, "finish", returned, f"(uploads, client states), tensors with {count} rows by name")
    uploads, new = returned
    odd = {name: rows for name, rows in uploads.items() if rows.ndim != 2}
    if odd and not rows_reason(algorithm):
        need = "uploads with vectors as rows, of which workers send the sums: use flatten(1)"
        raise _bad(algorithm, "finish", f"the uploads {_text(odd)}", need)
    alike = new.keys() == client_state.keys() and all(new[name].shape == client_state[name].shape for name in new)
    if not alike and (new or not algorithm.pattern.peers):
        need = f"the states that init_clients creates, {_text(client_state)}"
        raise _bad(algorithm, "finish", f"the client states {_text(new)}", need)
    return returned


def local_steps_of(algorithm: Algorithm, rng: np.random.Generator) -> int | None:
    """algorithm.draw_local_steps(rng); raises BadConfig unless it is None or a whole number, at least 0."""
    returned = algorithm.draw_local_steps(rng)
    if returned is None or (isinstance(returned, (int, np.integer)) and returned >= 0):
        return returned
    raise _bad(algorithm, "draw_local_steps", repr(returned), "an int, at least 0, or None")


def update_clients_of(
    algorithm: Algorithm, server: ServerState, uploads: State, client_state: State, r: Round
) -> State | None:
    """algorithm.update_clients(...); raises BadConfig unless it is None or states like `client_state`."""
    returned = algorithm.update_clients(server, uploads, client_state, r)
    if returned is None or (_has_rows(returned, len(r.cohort)) and returned.keys() == client_state.keys()):
        return returned
    need = f"{', '.join(client_state) or 'no state'}, each with {len(r.cohort)} rows, or None"
    raise _bad(algorithm, "update_clients", returned, need)


def step_of(algorithm: Algorithm, method: str, returned: Any, x: Tensor) -> tuple[ServerState, Info]:
    """Returns `returned`, the value of a server step, after a check: a pair (new server state, metrics to log).

    Raises BadConfig unless the state's entry "x" has the shape of x [d] and each metric is a number. method: the name
    of the method that returned the value, for the message.
    """
    if not _is_pair(returned) or not all(isinstance(part, Mapping) for part in returned):
        raise _bad(algorithm, method, returned, "(the new server state, a dict of numbers to log)")
    server, info = returned
    new = server.get("x")
    if not isinstance(new, Tensor) or new.shape != x.shape:
        raise _bad(algorithm, method, {"x": new}, f"a state whose x is a tensor {list(x.shape)}")
    try:
        for value in info.values():
            float(value)
    except (TypeError, ValueError, RuntimeError):
        raise _bad(algorithm, method, info, "one number for each metric algo/<name>") from None
    return server, info


def _is_pair(returned: Any) -> bool:
    return isinstance(returned, tuple) and len(returned) == 2


def _has_rows(state: Any, *counts: int) -> bool:
    return isinstance(state, (dict, Mapping)) and all(
        isinstance(rows, Tensor) and rows.ndim and rows.shape[0] in counts for rows in state.values()
    )


def _bad(algorithm: Algorithm, method: str, returned: Any, need: str) -> BadConfig:
    return BadConfig(f"{type(algorithm).__name__}.{method} returned {_text(returned)}, but must return {need}")


def _text(value: Any) -> str:
    """A short description of a value: shapes and dtypes for tensors, the entries of tuples and dicts."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_text(entry)}" for name, entry in value.items()) + "}"
    return value if isinstance(value, str) else type(value).__name__
