"""The server's vectors on a simulated device, against the same server on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.summing import Summing
from raylfl.errors import BadConfig
from raylfl.runtime.round.device_server import DeviceServer, difference_of
from tests.runtime import simulated
from tests.runtime.tiny import PERFECT, TINY
from tests.shares import one_in

SUMMING = [entry.name for entry in ALGORITHMS if issubclass(entry.cls, Summing) and entry.name != "splitfed"]
STAYS = ["'s vectors stay on the GPU"]
SHORT = ["rounds=5", "num_clients=4"]


def server_on_both(process, config, overrides, *then):
    return process.submit(simulated.server_on_both, config, overrides, then).result()


@pytest.mark.parametrize("name", one_in(5, SUMMING))
def test_a_method_has_the_same_bits_with_its_server_on_the_device(process, runs, name):
    """Uploads are lost, in some rounds all of them. Methods that draw clients themselves stay on the host."""
    result = server_on_both(process, TINY, [*runs, *SHORT, f"algorithm.name={name}"])
    here, there = result["params"]
    assert np.array_equal(here, there)
    assert result["same_metrics"]
    assert result["place"] == ([] if name in ("fedacs", "cafedavg", "optimal_sampling") else STAYS)


@pytest.mark.parametrize("settings", [["eval.drift=true"], ["eval.average=0.9"], ["runtime.micro_cohort=1"]])
def test_measures_and_several_calls_find_the_vectors_where_they_are(process, runs, settings):
    result = server_on_both(process, TINY, [*runs, *SHORT, *settings])
    assert np.array_equal(*result["params"])
    assert result["same_metrics"]


def test_a_dropped_upload_takes_the_server_to_the_host_for_a_round(process, runs):
    settings = ["data.init_args.spoilt=7", "runtime.on_nonfinite=drop", "participation={name: full}"]
    result = server_on_both(process, TINY, [*runs, *SHORT, *settings])
    assert np.array_equal(*result["params"])
    assert result["same_metrics"]
    assert result["place"] == STAYS


@pytest.mark.parametrize("name", ["scaffold", "fedadam"])
def test_a_resumed_run_takes_its_vectors_to_the_device(process, runs, name):
    """The run with the server on the host has all five rounds at once."""
    settings = [*runs, "num_clients=4", f"algorithm.name={name}"]
    result = server_on_both(process, TINY, [*settings, "rounds=5"])
    short = server_on_both(process, TINY, [*settings, "rounds=3"], "rounds=5")
    assert np.array_equal(result["params"][0], short["params"][1])
    assert short["place"] == [*STAYS, *STAYS]


def test_parts_of_a_sum_on_the_device_and_on_the_host_are_added(process):
    """As where one of several calls did not fit into the card's memory, and its uploads went to the host."""
    mixed, expected = process.submit(simulated.mixed_sums).result()
    assert mixed == expected


class ByNumpy(FedAvg):
    def server_step_from_sums(self, server, sums, r):
        return {"x": torch.from_numpy(server["x"].numpy() - sums["update"].numpy())}, {}


class ByNumpyLater(ByNumpy):
    def server_step_from_sums(self, server, sums, r):
        return (super() if r.index == 2 else super(ByNumpy, self)).server_step_from_sums(server, sums, r)


class Rounded(FedAvg):
    """Another number on the device than on the host."""

    def server_step_from_sums(self, server, sums, r):
        away = 0.0 if server["x"].device.type == "cpu" else 1e-6
        return {"x": server["x"] - sums["update"] + away}, {}


class Late(FedAvg):
    """Another number on the device from round 2 on."""

    def server_step_from_sums(self, server, sums, r):
        away = 0.0 if server["x"].device.type == "cpu" or r.index < 2 else 1e-6
        return {"x": server["x"] - sums["update"] + away}, {}


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (ByNumpy, "server_step_from_sums raises"),
        (ByNumpyLater, "server_step_from_sums raises"),
        (Rounded, "another result on the GPU: `x` differs"),
    ],
)
def test_a_method_that_cannot_or_may_not_step_on_the_device_says_why(process, runs, method, reason):
    settings = [f"algorithm={{class_path: tests.runtime.test_device_server.{method.__name__}}}"]
    result = server_on_both(process, PERFECT, [*runs, *SHORT, *settings])
    assert np.array_equal(*result["params"])
    assert result["same_metrics"]
    (place,) = result["place"]
    assert place.startswith(" is on the host")
    assert reason in place


def test_a_step_that_becomes_wrong_on_the_device_ends_the_run(process, runs):
    settings = ["algorithm={class_path: tests.runtime.test_device_server.Late}"]
    with pytest.raises(BadConfig, match=r"server_step_from_sums: use number 4 .*`x` differs.*runtime.step=autograd"):
        server_on_both(process, PERFECT, [*runs, *SHORT, *settings])


def test_uses_whose_number_is_a_power_of_two_are_compared():
    server, calls = DeviceServer(torch.device("cpu")), []
    state = {"x": torch.ones(3), "seen": torch.zeros(2)}
    for number in range(1, 10):
        server.call("step", lambda state, number=number: calls.append(number) or state, state)
    assert calls == [1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9]
    assert server.refusal is None


def test_differences_are_found_in_every_kind_of_value():
    ones = torch.ones(2)
    alike = {"x": ones, "n": 3, "who": (np.arange(2), 0.5, "a"), "norm": float("nan")}
    assert difference_of(alike, {**alike, "x": ones.clone(), "who": (np.arange(2), 0.5 + 1e-7, "a")}) is None
    for other in (
        {**alike, "x": ones + 1e-6},
        {**alike, "x": ones.double()},
        {**alike, "n": 4},
        {**alike, "who": (np.arange(2), 0.501, "a")},
        {**alike, "who": (np.ones(2), 0.5, "a")},
        {**alike, "norm": 0.0},
        {"x": ones},
    ):
        assert difference_of(alike, other) is not None
