"""Every registered algorithm and variant passes every check of the contract; each check can fail."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
import yaml

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.mifa import MIFA
from raylfl.core.algorithm import Algorithm
from raylfl.core.costs import floats_in
from raylfl.errors import BadValue
from raylfl.testing import CHECKS, ContractBroken, check_contract
from raylfl.testing.bench import D, after_all, rounds_for

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf" / "algorithm"
CHOICES: dict[str, list[dict[str, Any]]] = {  # beyond the defaults: each option that changes the computation
    "dsgd": [{"order": "cta"}, {"order": "dgd"}],
    "fedacs": [{"estimate": "ema"}],
    "fedau": [{"cutoff": 2, "normalize": True}],
    "fedaware": [{"warmup": "fedavg"}, {"warmup": "all"}, {"normalize": True}],
    "fednova": [{"normalise": "sent"}],
    "fedvarp": [{"lost": "reuse"}],
    "focus": [{"gamma": 0.01}],
    "gradient_tracking": [{"order": "atc"}],
    "kgt": [{"gamma": 0.5}],
    "led": [{"lazy": False}, {"beta": 0.5}],
    "mifa": [{"init": "all"}],
    "nids": [{"lazy": False}],
    "optimal_sampling": [{"norms": "stale"}],
    "scaffnew": [{"p": 0.3}],
    "scaffold": [{"option": 1}, {"uplink": "update"}, {"divisor": 10}, {"variate_divisor": "received"}],
}


def options_of(name: str) -> dict[str, Any]:
    """The options in conf/algorithm/NAME.yaml."""
    group = yaml.safe_load((CONF / f"{name}.yaml").read_text())["algorithm"]
    assert group.pop("name") == name
    return group


def variants() -> list[Any]:
    """Every registered algorithm with the options of its yaml, then with each of its choices."""
    out = []
    for entry in ALGORITHMS:
        for choice in [{}, *CHOICES.get(entry.name, [])]:
            algorithm = entry.cls(**{**options_of(entry.name), **choice})
            out.append(pytest.param(algorithm, id="-".join([entry.name, *(f"{k}={v}" for k, v in choice.items())])))
    return out


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("algorithm", variants())
def test_it_keeps_the_contract(algorithm: Algorithm, check: str):
    CHECKS[check](algorithm)


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_its_yaml_teaches_every_option_at_its_default(name: str):
    first = (CONF / f"{name}.yaml").read_text().splitlines()[0]
    assert re.fullmatch(rf"# raylfl run digits algorithm\.name={name}( algorithm\.\w+=\S+)*", first)
    fields = {f.name: f.default for f in dataclasses.fields(ALGORITHMS.get(name).cls)}
    options = options_of(name)
    assert options.keys() == fields.keys()
    required = {"cut"}  # without a default that fits every model
    assert {k: v for k, v in options.items() if k not in required} == {
        k: v for k, v in fields.items() if k not in required
    }


def documented() -> dict[str, list[str]]:
    """The rows of the table in docs/algorithms.md by name: cells."""
    (table,) = re.findall(r"\n\| name \| paper \|.*?\n\n", (ROOT / "docs" / "algorithms.md").read_text(), re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n") if "| `" in line]
    return {row[0].strip("`"): row for row in rows}


def test_the_table_of_algorithms_names_them_all():
    assert list(documented()) == sorted(documented()) == ALGORITHMS.names()


@pytest.mark.parametrize("name", [n for n in ALGORITHMS.names() if not options_of(n).get("cut")])
def test_the_table_of_algorithms_tells_the_traffic_and_the_options(name: str):
    """The table has the traffic of the algorithm: both broadcasts down, and up, in units of d."""
    row, algorithm = documented()[name], ALGORITHMS.get(name).cls()
    run = after_all(algorithm)
    up, _ = run.uploads(rounds_for(algorithm)[0])
    down = floats_in(algorithm.broadcast(run.server)) + floats_in(algorithm.second_broadcast(run.server))
    sent = algorithm.sent_floats(up)
    if run.merged:
        down, sent = 0, 0
    said = [0 if cell == "0" else int(cell.removesuffix("d") or 1) for cell in row[3].split(" / ")]
    assert said == [down // D, sent // D]
    assert re.findall(r"`(\w+)", row[5]) == [f.name for f in dataclasses.fields(algorithm)]


# --- algorithms that violate the contract -------------------------------------------------------------------


class Undocumented(FedAvg):
    """An algorithm whose module has no lines State, Sent and Assumes."""


class Remembers(FedAvg):
    def server_step(self, server, up, r):
        self.gamma *= 0.9
        return super().server_step(server, up, r)


class KeepsANumber(FedAvg):
    def server_step(self, server, up, r):
        new, info = super().server_step(server, up, r)
        return {**new, "norm": 1.0}, info


class MovesWhenIdle(FedAvg):
    def empty_round(self, server, r):
        return {"x": 0.9 * server["x"]}


class ScalesInPlace(FedAvg):
    def direction(self, x, g, carry):
        x.mul_(2.0)
        return g, carry


class StepsInPlace(FedAvg):
    def server_step(self, server, up, r):
        server["x"].sub_(up["update"].mean(0))
        return server, {}


class KeepsTheWorkspace(FedAvg):
    def start(self, down, own, work):
        return {"last": torch.zeros(1, D)}

    def direction(self, x, g, carry):
        return g, {**carry, "last": x}


class WritesItsState(Focus):
    def direction(self, x, g, carry):
        carry["g_prev"].mul_(2.0)
        return super().direction(x, g, carry)


class DropsItsCarry(FedAvg):
    def direction(self, x, g, carry):
        return g, {}


class LooksAtItsNeighbours(FedAvg):
    def finish(self, x, carry, own, work):
        update = carry["x_start"] - x
        return {"update": update - 0.1 * update.mean(0)}, {}


class WritesTheLost(MIFA):
    def server_step(self, server, up, r):
        new, info = super().server_step(server, up, r)
        new["memory"].write(r.lost.cohort, server["x"].expand(len(r.lost.cohort), -1))
        return new, info


class Doubles(FedAvg):
    def server_step(self, server, up, r):
        return {"x": server["x"].double() - up["update"].mean(0)}, {}


class KnowsNoUpload(FedAvg):
    server_known: ClassVar[tuple[str, ...]] = ("norm",)


class CallsAModelAnUpdate(Focus):
    uploads_update: ClassVar[bool] = True


class CallsAGradientAnUpdate(FedAvg):
    def finish(self, x, carry, own, work):
        return {"update": (carry["x_start"] - x) * work.per_step(x)}, {}


class HidesItsMemory(MIFA):
    keeps_memory: ClassVar[bool] = False


class DividesBySteps(FedAvg):
    def finish(self, x, carry, own, work):
        return {"update": (carry["x_start"] - x) / torch.from_numpy(work.steps)[:, None].to(x)}, {}


class ForgetsWithoutAStep(Focus):
    def finish(self, x, carry, own, work):
        up, new = super().finish(x, carry, own, work)
        return up, {"g_prev": new["g_prev"] * torch.from_numpy(work.steps > 0)[:, None].to(x)}


class SamplesTheUnavailable(FedAvg):
    def probabilities(self, server, c):
        return c.population.weights


class CountsItsCalls(FedAvg):
    calls: ClassVar[Iterator[int]] = itertools.count(1)

    def sum_coefficients(self, server, r):
        return {"update": 1.0 / next(self.calls)}


class Worse(MovesWhenIdle, LooksAtItsNeighbours):
    pass


BROKEN = {
    Undocumented: "documented",
    Remembers: "keeps_nothing_on_itself",
    KeepsANumber: "survives_a_checkpoint",
    MovesWhenIdle: "an_empty_round_moves_no_vector",
    ScalesInPlace: "leaves_its_inputs_alone",
    StepsInPlace: "leaves_its_inputs_alone",
    KeepsTheWorkspace: "leaves_its_inputs_alone",
    WritesItsState: "leaves_its_inputs_alone",
    DropsItsCarry: "leaves_its_inputs_alone",
    LooksAtItsNeighbours: "rows_do_not_depend_on_neighbours",
    WritesTheLost: "a_lost_upload_leaves_no_trace",
    CountsItsCalls: "its_sums_have_the_bits_of_its_rows",
    Doubles: "keeps_the_dtype",
    KnowsNoUpload: "keeps_its_shapes",
    CallsAModelAnUpdate: "its_traits_are_true",
    CallsAGradientAnUpdate: "its_traits_are_true",
    HidesItsMemory: "its_traits_are_true",
    DividesBySteps: "a_client_without_data_does_no_harm",
    ForgetsWithoutAStep: "a_client_without_data_does_no_harm",
    SamplesTheUnavailable: "its_probabilities_are_probabilities",
}


@pytest.mark.parametrize(("cls", "check"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_algorithm_is_refused(cls: type[Algorithm], check: str):
    with pytest.raises(ContractBroken):
        CHECKS[check](cls())


class ChangesStatesAfterTheRound(FedAvg):
    """States change in `update_clients` only; `finish` is the default.

    State    server x [d]; clients a count of rounds.
    Sent     d floats down, d up.
    Assumes  nothing.
    """

    def init_clients(self, x, count):
        return {"rounds": x.new_zeros(count, 1)}

    def update_clients(self, server, uploads, client_state, r):
        return {"rounds": client_state["rounds"] + 1}


class Quantises(FedAvg):
    """One random bit for each number of a part of the model, beside the client's loss.

    State    server x [d]; clients none.
    Sent     2 floats down, 3 up.
    Assumes  nothing.
    """

    uploads_update: ClassVar[bool] = False
    full_gradient: ClassVar[bool] = True

    def broadcast(self, server):
        return {"x": server["x"][:2]}

    def start_point(self, broadcast, client_state):
        return torch.nn.functional.pad(broadcast["x"], (0, D - 2))

    def finish(self, x, carry, client_state, work):
        part = (carry["x_start"] - x)[:, :2]
        return {"bits": (work.uniform(part) < part.sigmoid()).to(x), "loss": carry["full_loss"]}, {}

    def server_step(self, server, uploads, r):
        assert tuple(uploads["loss"].shape) == (len(r.cohort), 1)
        return {"x": torch.cat([server["x"][:2] - uploads["bits"].mean(0), server["x"][2:]])}, {}


@pytest.mark.parametrize("cls", [ChangesStatesAfterTheRound, Quantises])
def test_the_contract_accepts(cls: type[Algorithm]):
    check_contract(cls())


def test_states_that_change_after_the_round_are_kept_from_round_to_round():
    states = after_all(ChangesStatesAfterTheRound()).clients
    assert {client: int(state["rounds"]) for client, state in states.items()} == {0: 2, 1: 2, 2: 1, 3: 2, 4: 2, 5: 2}


def test_the_contract_reports_all_violations_at_once():
    with pytest.raises(ContractBroken, match=r"(?s)an_empty_round_moves.*x.*\n.*rows_do_not_depend.*update"):
        check_contract(Worse())


class ReturnsNoModel(FedAvg):
    def server_step_from_sums(self, server, sums, r):
        return {"y": server["x"]}, {}


def test_the_contract_names_a_method_that_returns_something_else_than_its_interface_says():
    with pytest.raises(ContractBroken) as told:
        check_contract(ReturnsNoModel())
    assert (
        str(told.value).count("ReturnsNoModel.server_step_from_sums returned {x: NoneType}, but must return a state")
        == 1
    )


def test_every_check_has_an_algorithm_that_it_refuses():
    assert set(BROKEN.values()) == set(CHECKS)


# --- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("fedavgm", "beta", 1.0),
        ("fedavgm", "aggregate", "median"),
        ("fedprox", "mu", -0.1),
        ("fedprox", "aggregate", "median"),
        ("scaffold", "option", 3),
        ("scaffold", "uplink", "none"),
        ("scaffold", "divisor", 0.0),
        ("fedadam", "b1", 1.0),
        ("fedadam", "b2", 1.0),
        ("fedyogi", "tau", 0.0),
        ("fedadagrad", "aggregate", "median"),
        ("feddyn", "alpha", 0.0),
        ("fedau", "cutoff", 0),
        ("mifa", "init", "some"),
        ("scaffnew", "p", 0.0),
        ("ssl", "cut", None),
        ("splitfed", "cut", ""),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(name: str, key: str, value: Any):
    with pytest.raises(BadValue) as refused:
        ALGORITHMS.get(name).cls(**{key: value})
    assert refused.value.key == key


# --- the guide ---------------------------------------------------------------------------------------------


def test_the_guide_s_example_works_as_printed(monkeypatch):
    """docs/adding-an-algorithm.md: its file keeps the contract, its yaml fits, its tests pass."""
    text = (ROOT / "docs" / "adding-an-algorithm.md").read_text()
    blocks = re.findall(r"```(python|yaml)\n(.*?)```", text, flags=re.DOTALL)
    source, tests = [body for kind, body in blocks if kind == "python"]
    (conf,) = [body for kind, body in blocks if kind == "yaml"]
    names = set(ALGORITHMS.names())
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))

    def module(name: str, body: str) -> dict[str, Any]:
        made = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        exec(compile(body, name, "exec"), vars(made))
        return vars(made)

    module("raylfl.algorithms.fedcm", source)
    ran = [value() for name, value in module("guide", tests).items() if name.startswith("test_")]
    assert len(ran) == 3
    (name,) = set(ALGORITHMS.names()) - names
    options = yaml.safe_load(conf)["algorithm"]
    assert options.pop("name") == name
    check_contract(ALGORITHMS.get(name).cls(**options))


def test_variants_differ():
    """A choice that changes nothing would test nothing."""
    for a, b in itertools.combinations([p.values[0] for p in variants()], 2):
        assert type(a) is not type(b) or a != b


def test_a_misspelt_method_or_trait_is_named():
    with pytest.warns(UserWarning, match=r"Near\.startpoint is no method .*; did you mean start_point\?") as caught:

        class Near(Algorithm):
            def startpoint(self, broadcast, client_state):
                return broadcast["x"]

    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"Trait\.own_steps is no method .*; did you mean own_step\?"):

        class Trait(Algorithm):
            own_steps = True


def test_hooks_under_their_old_names_are_called_and_warned_of():
    with pytest.warns(DeprecationWarning, match=r"Old\.idle is now called empty_round"):

        class Old(FedAvg):
            def idle(self, server, r):
                return {"x": server["x"] + 1}

    assert Old().empty_round({"x": 1}, None) == {"x": 2}
