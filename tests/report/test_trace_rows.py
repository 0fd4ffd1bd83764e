"""The preview of a config's rounds has the rows that a run records, or is refused."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.report import trace
from raylfl.report.participation_plot import frequencies
from raylfl.report.trace import draw_rows, draw_trace
from tests.runtime.tiny import ONE_BY_ONE as TINY


def preview(*overrides):
    return draw_rows(assemble(load_config(TINY, list(overrides))))


@pytest.mark.parametrize(
    "algorithm",
    ["fedavg", "sfl", "scaffnew", "fedacs", "{name: fedacs, calibrate: true}", "{name: fedaware, warmup: all}"],
)
def test_a_preview_has_the_rows_that_a_run_records(runs, algorithm):
    config = [f"algorithm={algorithm}", "link={name: bernoulli, q: {uniform: [0, 0.5]}, dynamic: true}", "eval.every=0"]
    run = raylfl.run(TINY, [*runs, *config])
    lines = (run.run_dir / "participation.jsonl").read_text().splitlines()
    assert preview(*config) == [json.loads(line) for line in lines]


@pytest.mark.parametrize("algorithm", ["optimal_sampling", "{name: fedacs, estimate: ema}"])
def test_a_method_whose_sampling_follows_from_training_has_no_preview(algorithm):
    with pytest.raises(BadConfig, match="depends on their updates or on earlier rounds"):
        preview(f"algorithm={algorithm}")


@pytest.mark.parametrize("algorithm", ["fedavg", "fedacs"])
def test_the_nominal_line_is_that_of_the_method_which_draws(tmp_path, monkeypatch, algorithm):
    drawn = []
    monkeypatch.setattr(trace, "participation_figure", lambda *arguments: drawn.append(arguments) or Figure())
    config = ["rounds=2000", "participation={name: uniform, size: 2}", "local.steps={linspace: [1, 8]}"]
    draw_trace(assemble(load_config(TINY, [f"algorithm={algorithm}", *config])), tmp_path)
    ((rows, count, nominal, _),) = drawn
    assert np.ptp(nominal) > 0.1 or algorithm == "fedavg"
    assert frequencies(rows, count) == pytest.approx(nominal, abs=0.07)  # five standard deviations at most


def test_a_preview_needs_a_number_of_draws_where_a_run_does():
    with pytest.raises(BadConfig, match=r"participation\.name=bernoulli, but must be one with a size"):
        preview("algorithm=fedacs", "participation={name: bernoulli, p: 0.5}")
