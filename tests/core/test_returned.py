"""Wrong values of an algorithm's methods are refused with the method, the value and what it must be."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.pattern import Peers, Star
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


def returning(value, pattern=STAR):
    """An algorithm whose `direction` and `finish` return this value."""
    return SimpleNamespace(direction=lambda *_: value, finish=lambda *_: value, pattern=pattern)


def always(value):
    """An algorithm whose other methods return this value."""
    names = ("broadcast", "init_clients", "start", "start_point", "update_clients", "draw_local_steps")
    return SimpleNamespace(**dict.fromkeys(names, lambda *_: value))


ROUND = SimpleNamespace(cohort=[4, 5, 6])
OTHERS = [
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
]


@pytest.mark.parametrize(("call", "value", "says"), OTHERS)
def test_wrong_vectors_starts_states_and_steps_are_refused(call, value, says):
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


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (X, "direction returned [3, 5] float32, but must return (v [3, 5], carry), one row of v per client"),
        ((X.mean(0), {}), "direction returned ([5] float32, {}), but must return"),  # would be the same for all clients
        ((X[:1], {}), "direction returned ([1, 5] float32, {}), but must return"),
        ((None, {}), "direction returned (NoneType, {}), but must return"),
    ],
)
def test_a_direction_that_is_not_a_row_per_client_is_refused(value, says):
    with pytest.raises(BadConfig) as told:
        direction_of(returning(value), X, X, {})
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"update": X}, "finish returned {update: [3, 5] float32}, but must return (uploads, client states)"),
        (({"update": X[0]}, {}), "finish returned ({update: [5] float32}, {}), but must return"),
        (({"update": X}, {"h": X.sum()}), "{h: [] float32}), but must return (uploads, client states), tensors with 3"),
        (({}, {"c": X, "h": X}), "finish returned the client states {c: [3, 5] float32, h: [3, 5] float32}, but must"),
        (({}, {"h": X[:, :1]}), "finish returned the client states {h: [3, 1] float32}, but must return the states"),
        (({}, {}), "the client states {}, but must return the states that init_clients creates, {h: [3, 5] float32}"),
    ],
)
def test_uploads_and_states_that_are_not_a_row_per_client_are_refused(value, says):
    with pytest.raises(BadConfig) as told:
        finish_of(returning(value), X, {}, {"h": X}, None)
    assert says in str(told.value)


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


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"x": X[0]}, "server_step returned {x: [5] float32}, but must return (the new server state, a dict of"),
        (({"x": X}, {}), "server_step returned {x: [3, 5] float32}, but must return a state whose x is a tensor [5]"),
        (({"y": X[0]}, {}), "server_step returned {x: NoneType}, but must return a state whose x is a tensor [5]"),
        (({"x": X[0]}, {"norm": X}), "server_step returned {norm: [3, 5] float32}, but must return one number for"),
    ],
)
def test_a_server_step_without_a_model_or_with_a_metric_that_is_no_number_is_refused(value, says):
    with pytest.raises(BadConfig) as told:
        step_of(returning(None), "server_step", value, X[0])
    assert says in str(told.value)


def test_right_values_are_returned_as_they_are():
    direction, finished, stepped = (X, {}), ({"update": X}, {"h": X}), ({"x": X[0]}, {"norm": X[0, 0], "seen": 3})
    assert direction_of(returning(direction), X, X, {}) is direction
    assert finish_of(returning(finished), X, {}, {"h": X}, None) is finished
    assert finish_of(returning(({}, {}), Peers()), X, {}, {"h": X}, None) == ({}, {})
    assert step_of(returning(None), "server_step", stepped, X[0]) == stepped
