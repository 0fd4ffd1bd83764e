"""The problem, the rounds and the comparisons that the contract checks of `raylfl.testing.contract` share."""

import copy
import dataclasses
import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import Algorithm, ServerState, State
from raylfl.core.client_rows import Table
from raylfl.core.population import Population, Round
from raylfl.testing.simulation import Simulation, recorded_round

N, D = 6, 7  # clients and parameters; different, so that [N] and [d] cannot be confused
POPULATION = Population.of(np.array([5, 8, 3, 9, 4, 7]), "data_size")


class ContractBroken(AssertionError):
    """A failed check of an algorithm; the message says which method, state or round is wrong."""


def must(condition: bool, otherwise: str) -> None:
    """Raise ContractBroken with the message `otherwise` unless the condition holds."""
    if not condition:
        raise ContractBroken(otherwise)


def gradient(client: int, x: Tensor, r: int, t: int) -> Tensor:
    """The gradient [d] of a client's separable quadratic at x, plus deterministic noise.

    The objective is sum_k a_k (x_k - b_k)^2 / 2; a and b [d] depend on the client. The noise is a fixed function of
    client, round r and local step t.
    """
    k = torch.arange(1, D + 1, dtype=x.dtype)
    noise = 0.1 * torch.sin(k * (client + 2) + 3 * r + 5 * t)
    return (0.5 + k / D / (client + 1)) * (x - torch.cos(k * (client + 1))) + noise


def rounds_for(algorithm: Algorithm) -> list[Round]:
    """Four rounds: partial participation, a lost upload, no upload received, and full participation.

    The numbers of local steps K_i differ. An algorithm that assumes full participation gets four rounds with all
    clients and no lost upload; one that assumes equal steps gets K_i = 2.
    """
    cohorts = [[4, 1, 3], [0, 1, 5], [2, 3], [3, 5, 2, 0, 4, 1]]
    draws = [[1, 2, 1], [1, 1, 1], [1, 1], [1] * N]
    arrives = [[True] * 3, [True, False, True], [False] * 2, [True] * N]
    if algorithm.assumes_full:
        cohorts, draws, arrives = [list(range(N))] * 4, [[1] * N] * 4, [[True] * N] * 4
    return [
        recorded_round(
            r,
            cohorts[r],
            POPULATION,
            steps=2 if algorithm.assumes_equal_steps else 1 + (np.arange(N) + r) % 3,
            lr=0.1 * 0.9**r,
            draws=draws[r],
            received=arrives[r],
            failure=0.05 * np.arange(N),
            proximal=algorithm.proximal,
        )
        for r in range(4)
    ]


def simulation(algorithm: Algorithm, dtype: torch.dtype = torch.float64) -> Simulation:
    """A simulation of the algorithm on `gradient`, before its first round.

    dtype: the dtype of all vectors.
    """
    return Simulation(algorithm, gradient, torch.linspace(-1, 1, D, dtype=dtype), POPULATION)


def after_all(algorithm: Algorithm, dtype: torch.dtype = torch.float64) -> Simulation:
    """A simulation of the algorithm after all rounds of `rounds_for`."""
    run = simulation(algorithm, dtype)
    for r in rounds_for(algorithm):
        run.run_round(r)
    return run


def vectors(server: ServerState) -> State:
    """The entries of the server state whose last dimension is d, by name; tables as matrices [n, d]."""
    values = {k: v.matrix if isinstance(v, Table) else v for k, v in server.items()}
    return {k: v for k, v in values.items() if v.ndim and v.shape[-1] == D}


def all_but_counters(server: ServerState) -> State:
    """A copy of the server state without scalars and entries of shape [N], which may count rounds.

    Tables are returned as matrices [n, d].
    """
    values = {k: v.matrix if isinstance(v, Table) else v for k, v in server.items()}
    return {k: v.clone() for k, v in values.items() if v.shape not in ((), (N,))}


def reloaded(state: Any) -> Any:
    """The state after saving and loading it as in a checkpoint.

    state: a Tensor, a Table, or nested dicts of these; any other value raises ContractBroken.
    """
    if isinstance(state, dict):
        return {k: reloaded(v) for k, v in state.items()}
    must(isinstance(state, (Tensor, Table)), f"a state holds a {type(state).__name__}; only Tensors and Tables last")
    buffer = io.BytesIO()
    torch.save(state.state_dict() if isinstance(state, Table) else state.clone(), buffer)
    buffer.seek(0)
    back = torch.load(buffer, weights_only=True)
    return Table.from_state(back) if isinstance(state, Table) else back


def same(a: Any, b: Any) -> bool:
    """Whether two states, rounds or plain values are equal.

    Tensors must agree in dtype, shape and values; nan equals nan, and 0 equals -0.
    """
    if isinstance(a, Table) and isinstance(b, Table):
        return a.clients == b.clients and same(a.matrix, b.matrix)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.all((a == b) | ((a != a) & (b != b))))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        return all(same(getattr(a, entry.name), getattr(b, entry.name)) for entry in dataclasses.fields(a))
    return bool(a == b)


class Watched:
    """A wrapper of an algorithm that raises ContractBroken if a Python method of it changes an argument in place.

    Two methods have exceptions. `server_step` may change Tables. `direction` may change the gradients, and rows of the
    `carry` (the values kept between local steps) that are neither broadcast nor client state. No row of `carry` may
    share its memory with x.
    """

    __slots__ = ("_algorithm", "_given")  # `vars` gives the attributes of the algorithm, by `__getattr__`

    def __init__(self, algorithm: Algorithm):
        self._algorithm = algorithm
        self._given: set[str] = set()  # names of the carry's rows that are broadcast or client state

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._algorithm)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._algorithm, name)
        return (lambda *args: self._call(name, args)) if callable(value) else value

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        free = {1} if name == "direction" else set()  # g
        before = copy.deepcopy([self._fixed(name, arg) for arg in args])
        result = getattr(self._algorithm, name)(*args)
        for place, (old, arg) in enumerate(zip(before, args, strict=True)):
            must(
                place in free or same(old, self._fixed(name, arg)), f"{name} changed its argument {place + 1} in place"
            )
        if name == "start":
            given = {memory(rows) for state in args[:2] for rows in state.values()}
            self._given = {"x_start"} | {key for key, rows in result.items() if memory(rows) in given}
        if name == "direction":
            x, carry = args[0], result[1]
            must(carry.keys() == args[2].keys(), f"direction got {set(args[2])} to carry and returned {set(carry)}")
            self._given = {key for key in self._given & args[2].keys() if memory(carry[key]) == memory(args[2][key])}
            for key, rows in carry.items():
                aliased = memory(rows) == memory(x)
                must(not aliased, f"carry[{key!r}] is the solver's own memory of x, which is overwritten: clone it")
        return result

    def _fixed(self, name: str, arg: Any) -> Any:
        if name == "server_step" and isinstance(arg, dict):
            return {k: v for k, v in arg.items() if not isinstance(v, Table)}
        if name == "direction" and isinstance(arg, dict):
            return {k: rows for k, rows in arg.items() if k in self._given}
        return arg


def memory(rows: Tensor) -> int:
    """The address of the tensor's storage."""
    return rows.untyped_storage().data_ptr()
