"""Max-pools before activations: swaps a recorded ReLU and the max-pool of its result, backward pass included.

max(0, .) commutes with the maximum, and outputs and gradients keep their bits. After a pool of 2 x 2, the ReLU has a
quarter of the entries. If the maximum is not above 0, the pool may choose another entry, but its gradient is 0.
"""

from collections import Counter, defaultdict
from dataclasses import replace

import torch

from raylfl.replay.recorded.calls import Call, Recording

_aten = torch.ops.aten
USES = [  # of a ReLU's result: the pool, and the backward passes of pool and ReLU
    _aten.max_pool2d_with_indices.default,
    _aten.max_pool2d_with_indices_backward.default,
    _aten.threshold_backward.default,
]


def pools_first(plan: Recording) -> Recording:
    """The plan with each ReLU and the max-pool of its result swapped, if no other call uses the values between them."""
    calls, geometry, results = plan.calls, plan.geometry, plan.results
    out, layouts = list(calls), dict(geometry)
    users: dict[int, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        for k in call.slots:
            users[k].append(position)
    values = {k for call in calls for k in (*call.slots, *call.results)}
    sharing = Counter(geometry[k].base for k in values)  # how many values share a memory
    for position, relu in enumerate(calls):
        if relu.op not in (_aten.relu.default, _aten.relu_.default):
            continue
        (active,) = relu.results
        places = [k for k in users[active] if k > position]
        if [calls[k].op for k in places] != USES or sharing[geometry[active].base] > 1 or active in results:
            continue
        pool, pool_backward, relu_backward = (calls[k] for k in places)
        pooled, indices = pool.result
        x, g = relu.args[0], pool_backward.result
        if (users[indices.number], users[g.number]) != (places[1:2], places[2:]):
            continue
        if relu_backward.args != (g, relu.result, 0):
            continue
        # in place, as the pool's result is new
        out[position] = Call(pool.op, (x, *pool.args[1:]), pool.kwargs, pool.result)
        out[places[0]] = Call(_aten.relu_.default, (pooled,), {}, pooled)
        out[places[1]] = Call(relu_backward.op, (pool_backward.args[0], pooled, 0), {}, g)
        out[places[2]] = Call(pool_backward.op, (g, x, *pool_backward.args[2:]), {}, relu_backward.result)
        layouts[g.number] = geometry[pooled.number]._replace(base=g.number, offset=0)
    return replace(plan, calls=out, geometry=layouts)
