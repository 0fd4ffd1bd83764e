"""The shipped configs have exactly the papers' numbers, and every file begins with the command that uses it."""

import re
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from raylfl.config.load import load_config
from raylfl.core.population import Population
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.heterogeneity.links import LINKS
from raylfl.heterogeneity.participation import PARTICIPATION
from raylfl.heterogeneity.work import LocalWork
from raylfl.heterogeneity.world import RunContext
from raylfl.runtime.ray.resources import count_workers

CONF = Path(__file__).parents[2] / "conf"
PRESETS = sorted(path.stem for path in (CONF / "preset").glob("*.yaml"))
SYSTEMS = [name for name in PRESETS if "participation" in OmegaConf.load(CONF / "preset" / f"{name}.yaml")]
SOLVER = {
    "lr",
    "optimizer",
    "optimizer_state",
    "weight_decay",
}  # keys of `local` that define a step, not the number of steps


def load(path):
    return OmegaConf.to_container(OmegaConf.load(CONF / path))


def build(registry, options):
    options = dict(options)
    return registry.get(options.pop("name")).cls(**options)


class System:
    """A preset's processes, built, with equal clients of 500 samples (or the sizes given)."""

    def __init__(self, name, sizes=None, rounds=200):
        config = load(f"preset/{name}.yaml")
        sizes = np.full(config["num_clients"], 500) if sizes is None else sizes
        self.world = RunContext(0, Population.of(sizes), rounds)
        self.clients = np.arange(self.world.count)
        self.participation = build(PARTICIPATION, config["participation"])
        self.link = build(LINKS, config.get("link", {"name": "perfect"}))
        local = {k: v for k, v in config.get("local", {}).items() if k not in SOLVER}
        self.work = LocalWork(**local)
        for part in (self.participation, self.link, self.work):
            part.check(self.world)

    def steps(self, r=0):
        return self.work.draw(r, self.clients, self.world)[0]

    def q(self, r=0):
        return self.link.failure(r, self.clients, self.world)


def comment_of(name):
    return re.match(r"(#.*\n)+", (CONF / "preset" / f"{name}.yaml").read_text()).group()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_names_its_command(name):
    assert f"base: preset/{name}" in comment_of(name)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_builds_and_names_its_source(name):
    assert len(System(name).participation.draw(0, System(name).world).cohort) > 0
    assert re.search(r"(Fig\.|App\.|Sec\.|experiments)", comment_of(name))


def test_the_card_gives_each_client_a_worker_and_a_gpu_and_is_debugged_in_one_process():
    runtime = load_config("digits", ["base=preset/card"]).runtime
    assert runtime.gpus == 1
    assert [count_workers(runtime, 8, [{"CPU": 16.0, "GPU": gpus}] * 2) for gpus in (2, 4, 8)] == [4, 8, 8]
    with pytest.raises(BadConfig, match="but the cluster has 32 CPUs and 0 GPUs"):
        count_workers(runtime, 8, [{"CPU": 16.0}] * 2)
    debugged = ["runtime.backend=local", "runtime.gpus_per_worker=0"]
    assert assemble(load_config("digits", ["base=preset/card", *debugged])).setup.assigned


@pytest.mark.parametrize(
    ("name", "sampled", "steps", "percent"),  # of each client
    [
        ("fedacs_static", 6, range(1, 40, 2), range(40, 1, -2)),
        ("fedacs_fig4_left", 15, [15] * 30, [20] * 30),
        ("fedacs_fig4_middle", 15, range(1, 31), range(1, 31)),
    ],
)
def test_constant_systems_of_fedacs(name, sampled, steps, percent):
    system = System(name)
    assert system.steps().tolist() == system.steps(9).tolist() == list(steps)
    np.testing.assert_allclose(system.q(), np.array(percent) / 100, rtol=1e-12)
    assert system.participation.cohort_size(system.world) == sampled


@pytest.mark.parametrize(
    ("name", "half", "first", "rest"),
    [("fedacs_dynamic", 10, (0.4, 0.5), 0.1), ("fedacs_fig4_right", 15, (0.2, 0.4), 0.2)],
)
def test_systems_of_fedacs_that_are_redrawn_every_round(name, half, first, rest):
    """K is 1..10 in the first half of the clients and 20..30 in the second."""
    system = System(name)
    steps, q = np.array([system.steps(r) for r in range(200)]), np.array([system.q(r) for r in range(200)])
    assert [(k.min(), k.max()) for k in (steps[:, :half], steps[:, half:])] == [(1, 10), (20, 30)]
    for own, (low, high) in ((q[:, :half], first), (q[:, half:], (0.0, rest))):
        assert low < own.min() < low + 0.002 < high - 0.002 < own.max() < high
    assert (q[0] != q[1]).all()


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_presets_in_epochs_have_the_same_system_with_epochs_in_place_of_steps(kind):
    """30 samples in batches of 10: three steps an epoch."""
    steps, epochs = load(f"preset/fedacs_{kind}.yaml"), load(f"preset/fedacs_{kind}_epochs.yaml")
    own = epochs["local"].pop("epochs")
    assert own == steps["local"].pop("steps")
    assert epochs == steps
    world = RunContext(0, Population.of(np.full(20, 30)), 10)
    drawn, _ = LocalWork(epochs=own, batch_size=10, **epochs["local"]).draw(3, np.arange(20), world)
    plain, _ = LocalWork(steps=own, batch_size=10, **epochs["local"]).draw(3, np.arange(20), world)
    assert drawn[-1] % 3 == 0
    if kind == "static":
        assert drawn.tolist() == (3 * plain).tolist()


def test_fedaware_hybrid_takes_three_epochs_of_64():
    sizes = np.arange(10, 1010, 10)
    system = System("fedaware_hybrid", sizes)
    assert system.participation.cohort_size(system.world) == 10
    assert system.steps().tolist() == [3 * -(-n // 64) for n in sizes]


def test_fedaware_hybrid_plus_is_the_floor_of_epochs_times_samples_over_batch():
    sizes = np.tile([5, 60, 300, 1000], 25)
    system = System("fedaware_hybrid_plus", sizes)
    drawn = [system.work.draw(r, system.clients, system.world) for r in range(100)]
    steps, batch = (np.array(x) for x in zip(*drawn, strict=True))
    assert (batch[:, sizes == 5] == 5).all()
    assert (batch[:, sizes == 60].min(), batch[:, sizes == 60].max()) == (10, 60)
    possible = np.stack([np.maximum(epochs * sizes // batch, 1) for epochs in (2, 3, 4, 5)])
    assert (steps == possible).any(axis=0).all()
    assert set(np.unique(steps[:, sizes == 5])) == {2, 3, 4, 5}  # one batch per epoch


def test_focus_bernoulli_has_29_rare_clients_and_3_mixed_ones():
    system = System("focus_bernoulli")
    p = system.participation.marginals(system.world, 0)
    assert system.world.count == 32
    assert 0.1 < p.min() < p.max() < 0.9
    assert (p < 0.3).sum() >= 29
    assert set(system.steps()) == {3}


def test_fedawe_sinusoid_swings_between_2_fifths_and_all_of_p():
    system = System("fedawe_sinusoid")
    p = np.array([system.participation.marginals(system.world, r) for r in range(20)])
    np.testing.assert_allclose(p[15] / p[5], 0.4, rtol=1e-12)
    np.testing.assert_allclose(p[0] / p[5], 0.7, rtol=1e-12)
    assert (p[5] < 0.9).all()
