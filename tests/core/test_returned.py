"""Wrong values of an algorithm's methods and of `training_step` are refused with the value and what it must be."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.pattern import Peers, Star
from raylfl.core.reference import loss_of
from raylfl.core.returned import (
    broadcast_of,
    direction_of,
    finish_of,
    init_clients_of,
    local_steps_of,
    start_of,
    start_point_of,
    step_of,
    update_clients_of,
)
from raylfl.errors import BadConfig

X = torch.zeros(3, 5)
STAR = Star()


def always(value, pattern=STAR):
    """An algorithm whose methods return this value."""
    names = ("broadcast", "init_clients", "start", "start_point", "update_clients", "draw_local_steps")
    return SimpleNamespace(**dict.fromkeys((*names, "direction", "finish"), lambda *_: value), pattern=pattern)


ROUND = SimpleNamespace(cohort=[4, 5, 6])
DIRECTION = lambda a: direction_of(a, X, X, {})  # noqa: E731
FINISH = lambda a: finish_of(a, X, {}, {"h": X}, None)  # noqa: E731
STEP = lambda a: step_of(a, "server_step", a.direction(), X[0])  # noqa: E731
REFUSED = [
    (lambda a: broadcast_of(a, {}), X, "broadcast returned [3, 5] float32, but must return vectors by name"),
    (lambda a: init_clients_of(a, X[0], 1), {"h": X[0]}, "init_clients(x, 1) returned {h: [5] float32}, but must"),
    (lambda a: start_point_of(a, {}, {}, 3, 5), X[0, :4], "start_point returned [4] float32, but must return a tensor"),
    (lambda a: start_point_of(a, {}, {}, 3, 5), X[:2], "start_point returned [2, 5] float32, but must return"),
    (lambda a: start_of(a, {}, {}, None, 3), {"c": X[0]}, "start returned {c: [5] float32}, but must return the first"),
    (lambda a: start_of(a, {}, {}, None, 3), X, "start returned [3, 5] float32, but must return the first carry"),
    (lambda a: update_clients_of(a, {}, {}, {"h": X}, ROUND), {"g": X}, "update_clients returned {g: [3, 5] float32}"),
    (lambda a: update_clients_of(a, {}, {}, {"h": X}, ROUND), {"h": X[0]}, "h, each with 3 rows, or None"),
    (lambda a: update_clients_of(a, {}, {}, {"g": X, "h": X}, ROUND), {"h": X}, "but must return g, h, each with"),
    (lambda a: local_steps_of(a, None), 2.7, "draw_local_steps returned 2.7, but must return an int, at least 0, or"),
    (lambda a: local_steps_of(a, None), -1, "draw_local_steps returned -1, but must return an int"),
    (DIRECTION, X, "direction returned [3, 5] float32, but must return (v [3, 5], carry), one row of v per client"),
    (DIRECTION, (X.mean(0), {}), "direction returned ([5] float32, {}), but"),  # would be the same for all clients
    (DIRECTION, (X[:1], {}), "direction returned ([1, 5] float32, {}), but must return"),
    (DIRECTION, (None, {}), "direction returned (NoneType, {}), but must return"),
    (FINISH, {"update": X}, "finish returned {update: [3, 5] float32}, but must return (uploads, client states)"),
    (FINISH, ({"update": X[0]}, {}), "finish returned ({update: [5] float32}, {}), but must return"),
    (FINISH, ({"update": X}, {"h": X.sum()}), "{h: [] float32}), but must return (uploads, client states), tensors"),
    (FINISH, ({}, {"c": X, "h": X}), "finish returned the client states {c: [3, 5] float32, h: [3, 5] float32}, but"),
    (
        FINISH,
        ({}, {"h": X[:, :1]}),
        "finish returned the client states {h: [3, 1] float32}, but must return the states",
    ),
    (FINISH, ({}, {}), "client states {}, but must return the states that init_clients creates, {h: [3, 5] float32}"),
    (STEP, {"x": X[0]}, "server_step returned {x: [5] float32}, but must return (the new server state, a dict of"),
    (STEP, ({"x": X}, {}), "server_step returned {x: [3, 5] float32}, but must return a state whose x is a tensor [5]"),
    (STEP, ({"y": X[0]}, {}), "server_step returned {x: NoneType}, but must return a state whose x is a tensor [5]"),
    (STEP, ({"x": X[0]}, {"norm": X}), "server_step returned {norm: [3, 5] float32}, but must return one number for"),
]


@pytest.mark.parametrize(("call", "value", "says"), REFUSED)
def test_wrong_values_are_refused_with_what_they_must_be(call, value, says):
    with pytest.raises(BadConfig) as told:
        call(always(value))
    assert says in str(told.value)


def test_rows_that_stand_for_all_clients_and_drawn_steps_are_accepted():
    for point in (X[0], X[:1], X):
        assert start_point_of(always(point), {}, {}, 3, 5) is point
    for carry in ({}, {"c": X[:1]}, {"c": X, "n": X[:, 0]}):
        assert start_of(always(carry), {}, {}, None, 3) is carry
    assert [local_steps_of(always(k), None) for k in (None, 0, np.int64(3))] == [None, 0, 3]
    assert update_clients_of(always(None), {}, {}, {"h": X}, ROUND) is None
    assert update_clients_of(always({"h": X}), {}, {}, {"h": X}, ROUND) == {"h": X}


def test_uploads_that_workers_add_up_are_vectors():
    uploads = {"update": X, "moments": X[:, :, None], "count": X[:, 0]}

    class Mine(FedAvg):
        def finish(self, x, carry, client_state, work):
            return uploads, {}

    with pytest.raises(BadConfig) as told:
        finish_of(Mine(), X, {}, {}, None)
    assert "the uploads {moments: [3, 5, 1] float32, count: [3] float32}, but must return uploads with" in str(
        told.value
    )

    class Rows(Mine):
        def server_step(self, server, uploads, r):
            return server, {}

    assert finish_of(Rows(), X, {}, {}, None) == (uploads, {})


def test_right_values_are_returned_as_they_are():
    direction, finished, stepped = (X, {}), ({"update": X}, {"h": X}), ({"x": X[0]}, {"norm": X[0, 0], "seen": 3})
    assert direction_of(always(direction), X, X, {}) is direction
    assert finish_of(always(finished), X, {}, {"h": X}, None) is finished
    assert finish_of(always(({}, {}), Peers()), X, {}, {"h": X}, None) == ({}, {})
    assert step_of(always(None), "server_step", stepped, X[0]) == stepped


@pytest.mark.parametrize("returned", [torch.tensor(2.5), torch.tensor([2.5]), {"loss": torch.tensor([[2.5]]), "n": 1}])
def test_a_loss_is_one_number_or_the_entry_of_that_name(returned):
    assert torch.equal(loss_of(returned, nn.Module()), torch.tensor(2.5))


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (torch.ones(3, 2), "a tensor of shape (3, 2)"),
        (torch.ones(0), "a tensor of shape (0,)"),
        (None, "NoneType"),
        (2.5, "float"),
        ({"cost": torch.tensor(1.0)}, "NoneType"),
        ({"loss": torch.ones(2)}, "a tensor of shape (2,)"),
    ],
)
def test_any_other_loss_is_refused_with_what_it_is(returned, shown):
    with pytest.raises(BadConfig) as told:
        loss_of(returned, nn.Linear(1, 1))
    assert f"Linear.training_step returned {shown}, but must return the loss" in str(told.value)
    assert ("(to skip a batch, return a loss whose gradient is 0)" in str(told.value)) == (returned is None)
