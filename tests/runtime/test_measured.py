"""The metrics of a run are known before it starts: the check accepts those that its rows then have, and no others."""

import pytest

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.python.api import checked
from raylfl.runtime.measured import METRICS, require_measured
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import one_in

PAIRS = {"name": "coefficients", "init_args": {"pairs": [[1.0, -1.0], [1.0, -2.0], [1.0, -3.0]]}}
QUADRATIC = {
    **{key: TINY[key] for key in ("name", "checkpoint", "runtime", "logging")},
    "rounds": 2,
    "data": PAIRS,
    "model": {"name": "quadratic"},
    "partition": {"name": "natural"},
    "local": {"steps": 2, "batch_size": "full", "lr": 0.01},
}
POINTS = {**TINY, "rounds": 2, "link": {"name": "perfect"}}
ALL = ["eval.drift=true", "eval.diversity=true", "eval.global=true", "eval.average=1.0", "eval.clients=true"]
ON = ["eval.participants=true", "eval.random_clients=2", "eval.every=1"]
RING = ["algorithm.name=dsgd", "topology.name=ring", "participation={name: full}"]
RUNS = {
    "points, everything": (POINTS, [*ALL, *ON]),
    "points": (POINTS, []),
    "points, no evaluations": (POINTS, [*ALL, *ON, "eval.every=0", "eval.inconsistency=false"]),
    "points, diversity alone": (POINTS, ["eval.diversity=true"]),
    "points, nodes": (POINTS, [*RING, "eval.nodes=true", "eval.drift=true"]),
    "points, focus": (POINTS, ["algorithm.name=focus", "eval.drift=true"]),
    "digits": ("digits", ["rounds=2", "num_clients=3", "runtime.backend=local", "logging.report=false", *ALL, *ON]),
    "points, nodes of a server": (POINTS, ["eval.nodes=true"]),
    "quadratic, everything": (QUADRATIC, [*ALL, *ON]),
    "quadratic": (QUADRATIC, []),
    "quadratic, average and every=0": (QUADRATIC, ["eval.average=0.9", "eval.global=true", "eval.every=0"]),
    "quadratic, average": (QUADRATIC, ["eval.average=0.9"]),
    "quadratic, nodes": (QUADRATIC, [*RING, "eval.nodes=true"]),
}


@pytest.mark.parametrize("name", one_in(2, RUNS))
def test_the_accepted_metrics_are_those_of_the_rows(runs, name):
    config, overrides = RUNS[name]
    experiment, accepted = checked(load_config(config, overrides)), set()
    for metric in [*METRICS, "val/loss", "val/accuracy"]:
        try:
            require_measured(metric, experiment)
        except BadConfig as refused:
            assert str(refused).startswith(f"metric={metric}")
        else:
            accepted.add(metric)
    rows = raylfl.run(config, [*runs, *overrides]).metrics
    recorded = {key for row in rows for key in row if "/" in key and not key.startswith("algo/")}
    assert accepted == recorded


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["eval.nodes=true"], "eval.nodes=true has no effect: it needs a method without a server"),
        (["eval.global=true", "eval.every=0"], "eval.global=true has no effect: it needs eval.every > 0"),
        (
            ["eval.average=0.9"],
            "eval.average=0.9 has no effect: it needs data with a known optimum or eval.global=true",
        ),
        (["eval.random_clients=50"], "eval.random_clients=50, but there are 6 clients"),
        (["local.b1=0.5"], "local.b1=0.5 has no effect: it is used with local.optimizer=adamw"),
        (
            ["local.lr_schedule={name: sqrt, decay: 0.9}"],
            "local.lr_schedule.decay=0.9 has no effect: it is used with local.lr_schedule.name=exponential or "
            "local.lr_schedule.name=step_exponential",
        ),
        (["local.lr_schedule={name: step_sqrt, period: 2}", "local={optimizer: adamw, b1: 0.5}"], None),
        (
            ["eval.clients=true"],
            "eval.clients=true has no effect: it needs a model that logs accuracy or rows with eval.per_client",
        ),
        ([*ALL, *ON, "eval.per_client=true"], None),
    ],
)
def test_options_without_effect_are_named_and_no_others(overrides, words):
    warnings = checked(load_config(POINTS, overrides)).warnings
    assert [line for line in warnings if "effect" in line or "but there are" in line] == ([words] if words else [])


@pytest.mark.parametrize("key", ["checkpoint.best", "stop.metric"])
@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("global/loss", "never measured here: it needs eval.global=true"),
        ("clients/accuracy_p10", "never measured here: it needs eval.clients=true"),
        ("val/accuracy", "never measured here: it needs a validation set"),
        ("test/f1", "must be one of test/loss"),
        ("train/losss", "must be one of train/loss, train/local_drift .did you mean train/loss"),
        ("globl/loss", "must be the name of a metric in metrics.jsonl .did you mean global/loss"),
        ("update/norm", "state it in the config: metrics="),
    ],
)
def test_a_metric_that_no_round_will_have_is_refused_before_anything_is_written(tmp_path, key, metric, words):
    overrides = [f"logging.dir={tmp_path / 'runs'}", f"{key}={metric}", *["stop.target=0.1"] * (key == "stop.metric")]
    with pytest.raises(BadConfig, match=rf"^{key}={metric},? .*{words}"):
        raylfl.run(POINTS, overrides)
    assert not (tmp_path / "runs").exists()


def test_a_metric_of_a_method_that_no_round_had_is_reported_at_the_end(runs):
    given = ["checkpoint.best=algo/y", "stop.metric=algo/z", "stop.target=0", "metrics={algo/y: min, algo/z: min}"]
    result = raylfl.run(POINTS, [*runs, *given])
    log = (result.run_dir / "log.txt").read_text()
    assert "warning: checkpoint.best=algo/y was never measured, and has no effect" in log
    assert "warning: stop.metric=algo/z was never measured, and has no effect" in log
