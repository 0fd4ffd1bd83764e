"""Moments of local optimizers that outlive a round (`local.optimizer_state`), against loops written out."""

import numpy as np
import pytest
import torch
from torch import nn

import raylfl
from raylfl.algorithms import ALGORITHMS
from raylfl.errors import BadConfig
from raylfl.heterogeneity.partition.given import as_text
from tests.oracles import moments
from tests.runtime.faults import options_of
from tests.runtime.measured import rounds_of, walk
from tests.runtime.modules import Quadratics, Repeated
from tests.runtime.test_run import QUADRATICS
from tests.runtime.tiny import ONE_BY_ONE, PERFECT, Points
from tests.shares import also, one_in

LR = 0.05
REPEATED = {
    **QUADRATICS,
    "data": {"class_path": "tests.runtime.modules.Repeated"},
    "participation": {"name": "bernoulli", "p": 0.7},
    "link": {"name": "bernoulli", "q": 0.3},
    "local": {"steps": {"list": [1, 1, 2, 3, 4, 2]}, "batch_size": "full", "lr": LR},
}
INNER = {
    "momentum": (["local.momentum=0.9"], moments.Inner(LR, momentum=0.9)),
    "adamw": (
        ["local.optimizer=adamw", "local.b2=0.95", "local.weight_decay=0.1"],
        moments.Inner(LR, adamw=True, b2=0.95, decay=0.1),
    ),
}
KEPT = [  # of `local.optimizer_state`, the algorithm, and the weights
    ("fresh", "fedavg", "uniform"),
    ("kept", "fedavg", "uniform"),
    also("kept", "sfl", "uniform"),
    ("averaged", "fedavg", "data_size"),
    also("averaged", "sfl", "uniform"),
]


@pytest.mark.parametrize(("state", "algorithm", "weights"), KEPT)
@pytest.mark.parametrize("name", one_in(2, INNER))
def test_a_run_is_the_oracles_with_lost_uploads_and_unequal_steps(tmp_path, name, state, weights, algorithm):
    """Client 0 has no data and takes no step; uploads are lost. The oracle replays the recorded rounds."""
    overrides, inner = INNER[name]
    (tmp_path / "partition.json").write_text(as_text(Repeated().client_indices))
    overrides = [*overrides, "partition.name=file", f"partition.path={tmp_path / 'partition.json'}"]
    state_keys = [f"local.optimizer_state={state}", f"weights={weights}"]
    run, data = walk([*overrides, *state_keys, f"algorithm.name={algorithm}"], REPEATED)[1], Repeated()
    rows = [row for _, _, row, _ in run]
    assert any(not all(row["received"]) for row in rows)
    history = moments.federated(
        lambda i, x: data.hessians[i] @ x - data.b[i],
        np.ones(3),
        rows,
        inner,
        state,
        np.full(6, 1 / 6) if weights == "uniform" else np.arange(6) / 15,
        ring=algorithm == "sfl",
    )
    np.testing.assert_allclose(run[-1][-1], list(history)[-1], rtol=1e-9, atol=1e-11)


def test_the_preset_diloco_is_algorithm_1_of_its_paper(runs):
    """The paper's own lines in numpy give the same theta(T), for 6 workers, 8 outer and 7 inner steps."""
    config = {**REPEATED, "rounds": 8, "data": QUADRATICS["data"]}  # outer steps
    result, data = raylfl.run(config, [*runs, "base=preset/diloco", "num_clients=6", "local.steps=7"]), Quadratics()
    inner = moments.Inner(LR, adamw=True, decay=0.1)
    theta = moments.diloco(lambda i, x: data.hessians[i] @ x - data.b[i], np.ones(3), 6, 8, 7, inner)
    np.testing.assert_allclose(result.params.numpy(), theta, rtol=1e-10, atol=1e-12)


LOCAL = {**PERFECT, "rounds": 4, "local": {"steps": 3, "batch_size": "full", "lr": LR}}
OWN = ["model.class_path=tests.runtime.lightning_modules.Optimized", "local.optimizer=module"]


def optimized(name, options=None, decay=None):
    options = ", ".join(f"{key}: {value}" for key, value in (options or {}).items())
    return [*OWN, f"model.init_args={{name: {name}, options: {{{options}}}, decay: {decay or 'null'}}}"]


@pytest.mark.parametrize(
    ("name", "options", "decay"),
    [
        ("AdamW", {"lr": 0.01, "amsgrad": "true"}, 0.9),
        ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}, None),
        also("NAdam", {"lr": 0.01}, None, id="NAdam"),
        also("ASGD", {"lr": 0.01}, None, id="ASGD"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_client_that_keeps_its_moments_is_an_unbroken_run_of_the_modules_optimizer(runs, name, options, decay):
    """The bits are equal, and the scheduler continues where the previous round ended."""
    settings = [*runs, *optimized(name, options, decay), "num_clients=1", "dtype=float64"]
    result = raylfl.run(LOCAL, [*settings, "local.optimizer_state=kept"])
    module = raylfl.run(LOCAL, [*settings, "rounds=0"]).module.double()
    configured = module.configure_optimizers()
    optimizer = configured if decay is None else configured["optimizer"]
    x, y = Points().train_dataset().tensors
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module.body(x.double()), y).backward()
        optimizer.step()
        if decay is not None:
            configured["lr_scheduler"]["scheduler"].step()
    params = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(result.params, params, rtol=1e-12, atol=1e-14)


def costs(algorithm, *overrides):
    config = {**LOCAL, "rounds": 1, "algorithm": options_of(algorithm), "participation": {"name": "uniform", "size": 3}}
    config["runtime"] = ONE_BY_ONE["runtime"]
    metrics = rounds_of(config, ["local.steps=2", "eval.every=0", *overrides]).metrics
    floats = np.array([metrics[-1][f"cost/{name}_floats"] for name in ("uplink", "downlink", "peer")])
    return floats, sum(row["cohort/sampled"] for row in metrics)


WIDTH = 4 * 6 + 6 + 2 * 6 + 6 * 3 + 3  # of the tiny network, its BatchNorm included


@pytest.mark.parametrize(
    "algorithm",
    one_in(4, ["fedavg", "centralized", "sfl", "fedvarp", "optimal_sampling", "local_only", "splitfed", "focus"]),
)
def test_kept_moments_cost_nothing_and_averaged_ones_travel_with_every_model(algorithm):
    cls = ALGORITHMS.get(algorithm).cls
    plain, sampled = costs(algorithm, "local.momentum=0.9")
    kept, _ = costs(algorithm, "local.momentum=0.9", "local.optimizer_state=kept")
    np.testing.assert_array_equal(kept, plain)
    averaged = ["local.momentum=0.9", "local.optimizer_state=averaged"]
    if "cut" in options_of(algorithm):
        with pytest.raises(BadConfig, match=r"averaged, but .* sends one half of the model only: use kept or fresh"):
            costs(algorithm, *averaged)
        return
    models = {"Alone": [0, 0, 0], "Ring": [1, 1, 2]}.get(type(cls.pattern).__name__, [sampled, sampled, 0])
    if cls().samples_by_norm:
        models[1] = 6  # all train
    more = WIDTH * np.array(models) * (not cls.own_step)
    np.testing.assert_array_equal(costs(algorithm, *averaged)[0], plain + more)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["local.optimizer_state=kept"], r"local.optimizer_state=kept.*sgd without momentum keeps nothing"),
        (["local.optimizer=adamw", "local.momentum=0.9"], r"local.momentum=0.9, but must be 0 .optimizer=adamw"),
        (["local.optimizer=module", "local.weight_decay=0.1"], r"local.weight_decay=0.1, but must be 0"),
        ([*optimized("SGD"), "local.optimizer_state=kept"], "has no moments, so there is nothing to keep"),
        ([*optimized("Prodigal"), "local.optimizer_state=averaged"], "changes its option k, which is no moment"),
        ([*optimized("SparseAdam"), "local.optimizer_state=kept"], "SparseAdam"),
        (
            ["algorithm=dsgd", "local.optimizer=adamw", "local.optimizer_state=kept"],
            "must be fresh: dsgd has no server",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_run(runs, overrides, words):
    with pytest.raises(BadConfig, match=words):
        raylfl.run(LOCAL, [*runs, *overrides])


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("focus", "focus defines its own local step, so local.optimizer_state=kept is not used"),
        ("fednova", "local.optimizer=adamw and local.optimizer_state=kept that is not the work of the local steps"),
    ],
)
def test_algorithms_that_assume_plain_sgd_say_so(runs, algorithm, words):
    overrides = ["local.optimizer=adamw", "local.optimizer_state=kept", "rounds=1", f"algorithm.name={algorithm}"]
    result = raylfl.run(LOCAL, [*runs, *overrides])
    assert words in (result.run_dir / "log.txt").read_text()
