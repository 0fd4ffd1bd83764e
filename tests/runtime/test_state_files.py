"""Files of a checkpoint that do not fit their run are refused with the place and the difference."""

import re

import numpy as np
import pytest
import torch

from raylfl.core.client_rows import Table
from raylfl.core.costs import Costs, Links
from raylfl.runtime.records.state_files import NUMBERS, Damaged, load_clients, load_server, server_blob
from raylfl.runtime.round.state import Average, FederationState


def fresh() -> FederationState:
    return FederationState(0, {"x": torch.zeros(3), "m": Table(torch.zeros(3)), "t": 0.0}, torch.zeros(2))


def table(clients, rows):
    """A saved table."""
    return {"table": {"clients": torch.tensor(clients), "rows": rows}}


def links(codes, floats=(1.0, 2.0)):
    """Saved totals of two links."""
    return {"codes": torch.tensor(codes), "messages": torch.ones(2).long(), "floats": torch.tensor(floats).double()}


def saved(path, change):
    blob = server_blob(fresh())
    change(blob)
    torch.save(blob, path)
    return path


def trained() -> tuple[FederationState, FederationState]:
    """A state after five rounds in which no part is as before round 0, and the state before round 0."""
    start = fresh()
    start.moments, start.average = torch.zeros(2), Average.of(torch.zeros(3), 0.5)
    table = Table(torch.zeros(3))
    table.write([4, 1], torch.eye(2, 3))
    state = FederationState(5, {"x": torch.ones(3), "m": table, "t": 2.0}, torch.full((2,), 3.0))
    state.costs, state.seconds, state.computation_seconds = Costs(1, 2, 3, 4, 5, 6, 7), 8.0, 9.0
    state.last_finite_loss, state.moments = 0.25, torch.tensor([1.0, 2.0])
    state.average = start.average.with_(torch.ones(3))
    state.links = Links().add(np.array([[-1, 4], [4, -1]]), np.array([3.0, 5.0]))
    return state, start


def as_numbers(state):
    """All parts of a state as plain values, without the client states."""
    return {
        **{name: getattr(state, name) for name in ("round", "costs", *NUMBERS)},
        **{name: getattr(state, name).tolist() for name in ("buffers", "moments")},
        "server": [state.server["x"].tolist(), state.server["m"].clients, state.server["m"].matrix.tolist()],
        "t": state.server["t"],
        "average": state.average and [state.average.x.tolist(), state.average.mass, state.average.rho],
        "links": state.links.csv(),
    }


def test_every_part_of_a_state_is_read_back(tmp_path):
    state, start = trained()
    before = as_numbers(start)
    assert all(value != before[name] for name, value in as_numbers(state).items())
    torch.save(server_blob(state), tmp_path / "server.pt")
    assert as_numbers(load_server(tmp_path / "server.pt", start, 5)) == as_numbers(state)


def test_an_average_with_other_weights_or_one_that_is_not_measured_is_left_out(tmp_path):
    state, start = trained()
    torch.save(server_blob(state), tmp_path / "server.pt")
    for average in (None, Average.of(torch.zeros(3), 0.25)):
        start.average = average
        assert load_server(tmp_path / "server.pt", start, 5).average is None
    start.average = Average.of(torch.zeros(4), 0.5)
    with pytest.raises(Damaged, match=r"average\.x is float64 \[3\], but must be float64 \[4\]"):
        load_server(tmp_path / "server.pt", start, 5)


CHANGES = {
    "server holds m, t, x, y, but must hold m, t, x": lambda b: b["server"].update(y=torch.zeros(3)),
    "server holds m, t, but must hold m, t, x": lambda b: b["server"].pop("x"),
    "server.x is float32 [4], but must be float32 [3]": lambda b: b["server"].update(x=torch.zeros(4)),
    "server.x is float64 [3], but must be float32 [3]": lambda b: b["server"].update(x=torch.zeros(3).double()),
    "server.x is list, but must be float32 [3]": lambda b: b["server"].update(x=[0.0]),
    "server.m holds rows, but must hold table": lambda b: b["server"].update(m={"rows": torch.zeros(3)}),
    "server.m.rows is float32 [2, 4], but must be float32 [2, 3]": lambda b: b["server"].update(
        m=table([2, 5], torch.zeros(2, 4))
    ),
    "server.m.rows is float32 [1, 3], but must be float32 [2, 3]": lambda b: b["server"].update(
        m=table([2, 5], torch.zeros(1, 3))
    ),
    "server.t is int, but must be float": lambda b: b["server"].update(t=0),
    "buffers is float32 [1], but must be float32 [2]": lambda b: b.update(buffers=torch.zeros(1)),
    "costs holds nothing, but must hold": lambda b: b.update(costs=[]),
    "costs holds bribes, ": lambda b: b["costs"].update(bribes=3),
    "'costs' is missing": lambda b: b.pop("costs"),
    "its record of the floats on links is damaged": lambda b: b.update(links=links([5, 3])),
    "its record of the floats on links is damaged ": lambda b: b.update(links=links([3, 5], floats=[1.0])),
    "'seconds' is missing": lambda b: b.pop("seconds"),
    "'server' is missing": lambda b: b.clear(),
}


@pytest.mark.parametrize("says", CHANGES)
def test_a_server_file_that_does_not_fit_says_where(tmp_path, says):
    path = saved(tmp_path / "server.pt", CHANGES[says])
    with pytest.raises(Damaged, match=rf"server\.pt does not fit this run: {re.escape(says.strip())}"):
        load_server(path, fresh(), 0)


class Own:
    """An object of the user's, which no checkpoint holds."""


def test_a_file_of_other_objects_is_damaged_and_a_lack_of_memory_is_not(tmp_path, monkeypatch):
    path = tmp_path / "server.pt"
    torch.save({"round": 0, "own": Own()}, path)
    with pytest.raises(Damaged, match=r"server\.pt cannot be read: UnpicklingError"):
        load_server(path, fresh(), 0)
    for error in (MemoryError(), RuntimeError("not enough memory: you tried to allocate"), EOFError("it ends")):

        def fails(*args, error=error, **kwargs):
            raise error

        monkeypatch.setattr(torch, "load", fails)
        with pytest.raises(Damaged if isinstance(error, EOFError) else type(error)):
            load_server(path, fresh(), 0)


def test_a_file_of_clients_gives_the_wanted_ones(tmp_path):
    chunk = {"clients": torch.tensor([4, 1, 9]), "states": {"c": torch.arange(6.0).view(3, 2)}}
    torch.save(chunk, tmp_path / "clients.pt")
    found = dict(load_clients(tmp_path / "clients.pt", {1, 9}, {"c": torch.zeros(1, 2)}))
    assert list(found) == [1, 9]
    assert torch.equal(found[9]["c"], torch.tensor([[4.0, 5.0]]))


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ({"h": torch.zeros(3, 2)}, "states holds h, but must hold c"),
        ({"c": torch.zeros(3, 2).double()}, "states.c is float64 [3, 2], but must be float32 [3, 2]"),
        ({"c": torch.zeros(3, 5)}, "states.c is float32 [3, 5], but"),
        ({"c": torch.zeros(2, 2)}, "states.c is float32 [2, 2], but"),
        (None, "'NoneType' object is not iterable"),
    ],
)
def test_a_file_of_clients_that_does_not_fit_says_where(tmp_path, states, says):
    torch.save({"clients": torch.tensor([4, 1, 9]), "states": states}, tmp_path / "clients.pt")
    with pytest.raises(Damaged, match=re.escape(says)):
        list(load_clients(tmp_path / "clients.pt", {1}, {"c": torch.zeros(1, 2)}))
