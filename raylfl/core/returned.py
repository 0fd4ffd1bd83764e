"""Checks of the values that an algorithm's methods return.

Without them a wrong shape is broadcast, and a client state with an unknown name is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from raylfl.errors import BadConfig

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work


def direction_of(algorithm: Algorithm, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
    """Returns algorithm.direction(x, g, carry), a pair (v, next carry); raises BadConfig unless v has x's shape."""
    returned = algorithm.direction(x, g, carry)
    if not _is_pair(returned) or not isinstance(returned[0], Tensor) or returned[0].shape != x.shape:
        raise _bad(algorithm, "direction", returned, f"(v {list(x.shape)}, carry), one row of v per client")
    return returned


def finish_of(algorithm: Algorithm, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
    """Returns algorithm.finish(x, carry, client_state, work), a pair (uploads, new client states), after a check.

    Raises BadConfig unless each tensor of the pair has one row per client, and each name of a new state is also a name
    in `client_state`.
    """
    returned = algorithm.finish(x, carry, client_state, work)
    if not _is_pair(returned) or not all(_has_rows(state, len(x)) for state in returned):
        raise _bad(algorithm, "finish", returned, f"(uploads, client states), tensors with {len(x)} rows by name")
    if unknown := sorted(returned[1].keys() - client_state.keys()):
        need = f"states that init_clients creates; it creates {', '.join(client_state) or 'none'}"
        raise _bad(algorithm, "finish", f"the client states {', '.join(unknown)}", need)
    return returned


def step_of(algorithm: Algorithm, method: str, returned: Any, x: Tensor) -> tuple[ServerState, Info]:
    """Returns `returned`, the value of a server step, after a check: a pair (new server state, metrics to log).

    Raises BadConfig unless the state's entry "x" has the shape of x [d] and each metric is a number. method: the name
    of the method that returned the value, for the message.
    """
    if not _is_pair(returned) or not all(isinstance(part, Mapping) for part in returned):
        raise _bad(algorithm, method, returned, "(the new server state, a dict of numbers to log)")
    after, info = returned
    new = after.get("x")
    if not isinstance(new, Tensor) or new.shape != x.shape:
        raise _bad(algorithm, method, {"x": new}, f"a state whose x is a tensor {list(x.shape)}")
    try:
        for value in info.values():
            float(value)
    except (TypeError, ValueError, RuntimeError):
        raise _bad(algorithm, method, info, "one number for each metric algo/<name>") from None
    return after, info


def _is_pair(returned: Any) -> bool:
    return isinstance(returned, tuple) and len(returned) == 2


def _has_rows(state: Any, count: int) -> bool:
    return isinstance(state, Mapping) and all(
        isinstance(rows, Tensor) and rows.dim() and len(rows) == count for rows in state.values()
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
