"""Max-pools before activations: swaps a recorded ReLU and the max-pool of its result, backward pass included.

max(0, .) commutes with the maximum, and outputs and gradients keep their bits. After a pool of 2 x 2, the ReLU has a
quarter of the entries. If the maximum is not above 0, the pool may choose another entry, but its gradient is 0.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from raylfl.replay.recorded.calls import Call, Geometry

_aten = torch.ops.aten


class _Places(NamedTuple):
    """The positions of the four calls of a ReLU and the max-pool of its result in the list of calls."""

    relu: int
    pool: int
    pool_backward: int
    relu_backward: int


BEHIND = [  # the calls that use a ReLU's result: the pool, and the backward passes of pool and ReLU
    _aten.max_pool2d_with_indices.default,
    _aten.max_pool2d_with_indices_backward.default,
    _aten.threshold_backward.default,
]


def pools_first(
    calls: Sequence[Call], geometry: Mapping[int, Geometry], returned: set[int]
) -> tuple[list[Call], dict[int, Geometry]]:
    """(calls, geometry of their values) in which ReLUs and the max-pools of their results are swapped.

    A pair is swapped only if no other call uses the values between them. geometry: the memory layout of each value, by
    number. returned: the numbers of the values that the step returns, which keep their meaning.
    """
    out, layouts = list(calls), dict(geometry)
    users: dict[int, list[int]] = defaultdict(list)
    sharing: dict[int, set[int]] = defaultdict(set)  # the values that share memory
    for position, call in enumerate(calls):
        for k in call.slots():
            users[k].append(position)
        for k in (*call.slots(), *call.results()):
            sharing[geometry[k].base].add(k)
    for position, call in enumerate(calls):
        if call.op in (_aten.relu.default, _aten.relu_.default):
            (result,) = call.results()
            later = [k for k in users[result] if k > position]
            alone = len(sharing[geometry[result].base]) == 1 and result not in returned
            if alone and len(later) == 3 and _pair(positions := _Places(position, *later), calls, users):
                _swap(out, layouts, positions)
    return out, layouts


def _pair(positions: _Places, calls: Sequence[Call], users: Mapping[int, Sequence[int]]) -> bool:
    """Whether the calls at these positions are a ReLU, its max-pool and their backward passes.

    No other call may use the values between them. users: for each value, the positions of the calls that use it.
    """
    relu, *others = (calls[k] for k in positions)
    pool, pool_backward, relu_backward = others
    if [call.op for call in others] != BEHIND:
        return False
    g, indices = pool_backward.results()[0], pool.results()[1]
    return (
        users[g] == [positions.relu_backward]
        and users[indices] == [positions.pool_backward]
        and list(relu_backward.slots()) == [g, *relu.results()]
        and relu_backward.args[2] == 0
    )


def _swap(calls: list[Call], geometry: dict[int, Geometry], positions: _Places) -> None:
    relu, pool, pool_backward, relu_backward = (calls[k] for k in positions)
    x, pooled, g = relu.args[0], pool.result[0], pool_backward.result
    calls[positions.relu] = Call(pool.op, (x, *pool.args[1:]), pool.kwargs, pool.result)
    calls[positions.pool] = Call(_aten.relu_.default, (pooled,), {}, pooled)  # in place: the pool's result is new
    calls[positions.pool_backward] = Call(relu_backward.op, (pool_backward.args[0], pooled, 0), {}, g)
    calls[positions.relu_backward] = Call(
        pool_backward.op, (g, x, *pool_backward.args[2:]), pool_backward.kwargs, relu_backward.result
    )
    geometry[g.number] = geometry[pooled.number]._replace(base=g.number, offset=0)
