"""Checks that every algorithm must pass, shipped or your own.

Each check runs the algorithm on a small separable problem over a few rounds with lost uploads, unequal numbers of local
steps K_i, repeated draws of a client, and a round in which no upload is received. An algorithm that assumes full
participation or equal steps is not given rounds that violate the assumption. Each check raises ContractBroken if the
algorithm fails.
"""

import copy
import pickle
import sys
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import cast, get_args

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import Algorithm, State, Work
from raylfl.core.arrays import Floats
from raylfl.core.client_rows import Table
from raylfl.core.draws import Law
from raylfl.core.unchanged import ChangedItself
from raylfl.errors import BadConfig
from raylfl.testing.bench import (
    ContractBroken,
    D,
    N,
    Watched,
    after_all,
    all_but_counters,
    must,
    reloaded,
    rounds_for,
    same,
    simulation,
    vectors,
)


def check_contract(algorithm: Algorithm) -> None:
    """Run all `CHECKS` on the algorithm; raises one ContractBroken that names every failed check."""
    problems = []
    for name, check in CHECKS.items():
        try:
            check(algorithm)
        except ContractBroken as error:
            problems.append(f"{name}: {error}")
        except BadConfig as error:  # a method returns something else than its interface says: no check can pass
            problems.append(str(error))
            break
    if problems:
        raise ContractBroken("\n".join(problems))


def documented(algorithm: Algorithm) -> None:
    """Check that the algorithm is a dataclass, and that a shipped one documents its states, traffic and assumptions.

    The docstring of its module or of one of its classes must have lines that begin with State, Sent and Assumes. No
    docstring is asked of an algorithm outside the package raylfl.
    """
    must(is_dataclass(algorithm), "an algorithm is a dataclass whose fields are its options")
    if type(algorithm).__module__.partition(".")[0] != "raylfl":
        return
    texts = [cls.__doc__ or "" for cls in type(algorithm).__mro__ if issubclass(cls, Algorithm)]
    texts += [sys.modules[type(algorithm).__module__].__doc__ or ""]
    lines = [line for text in texts for line in text.splitlines()]
    for word in ("State", "Sent", "Assumes"):
        said = any(line.strip().startswith(word) for line in lines)
        must(said, f"the docstring of its module has no line that begins with {word}")


def keeps_nothing_on_itself(algorithm: Algorithm) -> None:
    """Check that a run leaves the algorithm's fields unchanged, and that they can be pickled."""
    before = pickle.dumps(vars(algorithm))
    try:
        after_all(algorithm)
    except ChangedItself as error:
        raise ContractBroken(str(error)) from error
    must(
        pickle.dumps(vars(algorithm)) == before, "a run changed its fields: keep state in the server and client states"
    )


def survives_a_checkpoint(algorithm: Algorithm) -> None:
    """Check that a run continues with the same bits if its states are saved and loaded after every round.

    After each load a new copy of the algorithm is used.
    """
    rounds = rounds_for(algorithm)
    straight, stopped = simulation(algorithm), simulation(algorithm)
    for r in rounds:
        straight.run_round(r)
        stopped.run_round(r)
        stopped.restart(copy.deepcopy(algorithm), reloaded(stopped.server), reloaded(stopped.clients))
        must(
            same(stopped.server, straight.server) and same(stopped.clients, straight.clients),
            f"round {r.index} after a reload is not the same round",
        )


def an_empty_round_moves_no_vector(algorithm: Algorithm) -> None:
    """Check that a round without a received upload changes no vector or table of the server and no client state."""
    run = after_all(algorithm)
    before, clients = all_but_counters(run.server), copy.deepcopy(run.clients)
    r = rounds_for(algorithm)[-1]
    run.run_round(replace(r, index=r.index + 1, received=np.zeros(len(r.cohort), dtype=bool)))
    after = all_but_counters(run.server)
    for name, value in before.items():
        must(name in after and same(value, after[name]), f"server[{name!r}] moved in an empty round")
    must(same(clients, run.clients), "a client's state changed in an empty round")


def leaves_its_inputs_alone(algorithm: Algorithm) -> None:
    """Check that no Python method of the algorithm changes an argument in place, except as `Watched` allows."""
    after_all(cast(Algorithm, Watched(algorithm)))


def rows_do_not_depend_on_neighbours(algorithm: Algorithm) -> None:
    """Check that a client's upload and new state do not depend on the other clients of the cohort.

    Not checked for methods in which a client starts from results of other clients.
    """
    run, r = after_all(algorithm), rounds_for(algorithm)[0]
    if algorithm.pattern.sequential or (isinstance(algorithm, GraphAlgorithm) and algorithm.exchanges_first):
        return
    r = replace(r, received=np.ones(len(r.cohort), dtype=bool))
    together = run.uploads(r)
    for k, client in enumerate(r.cohort):
        alone = run.uploads(replace(r, received=r.cohort == client).received_view)
        for whole, single in zip(together, alone, strict=True):
            for name, rows in single.items():
                alike = same(rows[0], whole[name][k])
                must(alike, f"row {name!r} of client {client} changes with its neighbours")


def a_lost_upload_leaves_no_trace(algorithm: Algorithm) -> None:
    """Check that a lost upload changes neither the client's state nor its row in a `Table` of the server.

    Not checked for methods that assume full participation or train all data as one client.
    """
    if algorithm.assumes_full or simulation(algorithm).merged:
        return
    run, r = simulation(algorithm), rounds_for(algorithm)[0]
    run.run_round(r)
    before, client_state = copy.deepcopy(run.server), copy.deepcopy(run.clients)
    lost = int(r.cohort[1])
    run.run_round(replace(r, index=r.index + 1, received=r.cohort != lost))
    must(same(client_state.get(lost), run.clients.get(lost)), f"the state of client {lost} moved")
    for name, value in run.server.items():
        if isinstance(value, Table):
            kept = same(value.rows([lost]), before[name].rows([lost]))
            must(kept, f"the row of client {lost} in {name!r} moved")


def its_sums_have_the_bits_of_its_rows(algorithm: Algorithm) -> None:
    """Check that a round has the same bits whether workers add up the uploads or the server receives each upload."""
    sums, rows = simulation(algorithm), simulation(algorithm)
    rows.federation.dispatch.rows = "for comparison"
    for r in rounds_for(algorithm):
        alike = same(sums.run_round(r), rows.run_round(r))
        must(alike, f"round {r.index} differs if workers add up the uploads")


def keeps_the_dtype(algorithm: Algorithm) -> None:
    """Check that all vectors of a float32 and of a float64 run have the run's dtype and are finite.

    These are the vectors in server and client states, broadcasts and uploads. server["x"] must have the shape [d].
    """
    for dtype in (torch.float32, torch.float64):
        run = after_all(algorithm, dtype)
        uploads, client_state = run.uploads(rounds_for(algorithm)[0])
        broadcast = algorithm.broadcast(run.server) | algorithm.second_broadcast(run.server)
        for place, state in (
            ("server", vectors(run.server)),
            ("up", uploads),
            ("own", client_state),
            ("broadcast", broadcast),
        ):
            for name, value in state.items():
                must(value.dtype == dtype, f"{place}[{name!r}] is {value.dtype} in a {dtype} run")
                must(bool(torch.isfinite(value).all()), f"{place}[{name!r}] is not finite")
        shape = tuple(run.server["x"].shape)
        must(shape == (D,), f"server['x'] has the shape {shape}, not [d]")


def keeps_its_shapes(algorithm: Algorithm) -> None:
    """Check the shapes of uploads and client states.

    Uploads must have one row per client; a single row if the model passes from client to client (a ring). Client states
    must keep the names and shapes of `init_clients`. The names in `server_known` must be names of uploads.
    """
    run, r = after_all(algorithm), rounds_for(algorithm)[0]
    uploads, client_state = run.uploads(r)
    rows = 1 if algorithm.pattern.sequential else len(r.received_view.cohort)
    for name, value in uploads.items():
        must(len(value) == rows, f"uploads[{name!r}] is {tuple(value.shape)}")
    fresh = algorithm.init_clients(run.x0, rows)
    must(
        client_state.keys() == fresh.keys() or algorithm.pattern.sequential,
        f"{set(client_state)} were {set(fresh)} at first",
    )
    for name, value in client_state.items():
        must(value.shape == fresh[name].shape, f"client_state[{name!r}] is {tuple(value.shape)}")
    if not algorithm.pattern.sequential:
        answered = algorithm.update_clients(run.server, uploads, client_state, r.received_view) or client_state
        shapes = {k: tuple(v.shape) for k, v in answered.items()}
        must(shapes == {k: tuple(v.shape) for k, v in client_state.items()}, f"update_clients returns {shapes}")
    must(
        set(algorithm.server_known) <= set(uploads),
        f"server_known={algorithm.server_known} are not in the upload {set(uploads)}",
    )


def its_traits_are_true(algorithm: Algorithm) -> None:
    """Check the declared traits uploads_update and keeps_memory against a run; other traits are not checked."""

    def finish(x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        uploads, new = algorithm.finish(x, carry, client_state, work)
        declared = f"uploads_update={algorithm.uploads_update}, but the uploads are called {', '.join(uploads)}"
        must(("update" in uploads) == algorithm.uploads_update, declared)
        moved = carry["x_start"] - x
        must(same(uploads.get("update", moved), moved), "uploads['update'] is not x_start - x_{i,K}")
        return uploads, new

    checked = copy.copy(algorithm)
    setattr(checked, "finish", finish)  # noqa: B010, a method of this one object
    server = after_all(checked).server
    tables = [name for name, value in server.items() if isinstance(value, Table)]
    must(bool(tables) == algorithm.keeps_memory, f"keeps_memory={algorithm.keeps_memory} with tables {tables}")


def a_client_without_data_does_no_harm(algorithm: Algorithm) -> None:
    """Check that a client without a local step (K_i = 0) uploads the update 0 and keeps its state.

    All states must stay finite. Not checked for methods that assume equal steps or train all data as one client.
    """
    if algorithm.assumes_equal_steps or simulation(algorithm).merged:
        return
    run, r = after_all(algorithm), rounds_for(algorithm)[-1]
    r = replace(r, index=r.index + 1, steps=np.where(r.cohort == 2, 0, r.steps))
    before = run.client_state(r.received_view.cohort.tolist())
    uploads, client_state = run.uploads(r)
    for name, rows in client_state.items():
        without = r.received_view.steps == 0
        must(same(rows[without], before[name][without]), f"without a step its client_state[{name!r}] changed")
    if algorithm.uploads_update:
        must(bool((uploads["update"][r.cohort == 2] == 0).all()), "without a step it uploads an update")
    run.run_round(r)
    states = [*vectors(run.server).values(), *(v for s in run.clients.values() for v in s.values())]
    must(all(bool(torch.isfinite(v).all()) for v in states), "a state is not finite after it")


def its_probabilities_are_probabilities(algorithm: Algorithm) -> None:
    """Check that sampling probabilities [N] sum to 1 over available clients and are 0 for others.

    Also checks that `expected_coefficients` [N] are not negative.
    """
    run, c = after_all(algorithm), rounds_for(algorithm)[0].system
    assert c is not None
    c = replace(c, available=np.arange(N) != 1)
    norms = np.where(c.available, 1.0 + np.arange(N), np.nan)
    if algorithm.samples_by_norm:
        p: Floats | None = algorithm.norm_probabilities(run.server, c, norms)
    else:
        p = algorithm.probabilities(run.server, c)
    if p is not None:
        must(p.shape == (N,) and abs(p.sum() - 1.0) < 1e-12 and p.min() >= 0 and p[1] == 0, f"p={p}")
    for law in (None, *get_args(Law)):
        expected = algorithm.expected_coefficients(c, np.full(N, 0.5), law)
        if expected is not None:
            must(expected.shape == (N,) and expected.min() >= 0, f"expected_coefficients={expected}")


CHECKS: dict[str, Callable[[Algorithm], None]] = {
    check.__name__: check
    for check in (
        documented,
        keeps_nothing_on_itself,
        survives_a_checkpoint,
        an_empty_round_moves_no_vector,
        leaves_its_inputs_alone,
        rows_do_not_depend_on_neighbours,
        a_lost_upload_leaves_no_trace,
        its_sums_have_the_bits_of_its_rows,
        keeps_the_dtype,
        keeps_its_shapes,
        its_traits_are_true,
        a_client_without_data_does_no_harm,
        its_probabilities_are_probabilities,
    )
}
"""Every check by its name; each takes an algorithm and raises ContractBroken."""
