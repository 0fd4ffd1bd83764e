"""Runs on disk as objects and tables: against the files themselves, and against torch by hand."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import raylfl
from raylfl.extras import MissingExtra
from tests.runtime.tiny import TINY, Net, Points


class Predicting(Net):
    def forward(self, x):
        return self.body(x)


OWN = {"model": Predicting}
MEASURED = ["eval.clients=true", "eval.per_client=true", "eval.every=2"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    where = tmp_path_factory.mktemp("runs")
    return raylfl.run(TINY, [f"logging.dir={where}", *MEASURED], **OWN)


def test_a_loaded_run_equals_the_saved_one(done):
    run = raylfl.load(done.run_dir)
    assert run.config.resolved == done.config.resolved
    assert torch.equal(run.params, done.params)
    assert run.rows == done.metrics
    assert run.summary["parameters"] == len(done.params)
    for name, value in done.module.state_dict().items():
        assert torch.equal(run.module.state_dict()[name], value)


def test_metrics_are_a_table_by_round(done):
    table = raylfl.load(done.run_dir).metrics
    assert list(table.index) == list(range(6))
    assert table["train/loss"].tolist() == [row["train/loss"] for row in done.metrics]
    assert table["test/loss"].notna().tolist() == [r % 2 == 0 or r == 5 for r in range(6)]


def test_clients_are_a_table_in_long_form(done):
    table = raylfl.load(done.run_dir).clients
    assert list(table.columns) == ["round", "client", "metric", "value"]
    rows = [json.loads(line) for line in (done.run_dir / "participation.jsonl").read_text().splitlines()]
    steps = table[table.metric == "steps"]
    assert [(r, c, v) for r, c, v in steps[["round", "client", "value"]].itertuples(index=False)] == [
        (row["round"], client, k) for row in rows for client, k in zip(row["cohort"], row["steps"], strict=True)
    ]
    for r, row in enumerate(rows):  # the mean in the row is over the received clients
        heard = [c for c, got in zip(row["cohort"], row["received"], strict=True) if got]
        losses = table[(table["round"] == r) & (table.metric == "train/loss") & table.client.isin(heard)].value
        if heard:
            assert losses.mean() == pytest.approx(done.metrics[r]["train/loss"], rel=1e-12)


def test_accuracies_of_clients_are_those_of_the_final_model_on_their_data(tmp_path):
    class Accurate(Predicting):
        def test_step(self, batch, batch_idx):
            self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    done = raylfl.run(TINY, [f"logging.dir={tmp_path}", *MEASURED], model=Accurate)
    table = raylfl.load(done.run_dir, model=Accurate).clients
    last = table[(table["round"] == 5) & (table.metric == "clients/accuracy")].set_index("client").value
    data, module = Points(), done.module.eval()
    clients = json.loads((done.run_dir / "partition.json").read_text())
    with torch.no_grad():
        right = (module(data.x).argmax(1) == data.targets).numpy()
    assert len(last) == 6
    for client, samples in clients.items():
        assert last[int(client)] == pytest.approx(right[samples].mean(), rel=1e-6)
    assert np.mean(last) == pytest.approx(done.metrics[-1]["clients/accuracy_mean"])


def test_predictions_are_those_of_the_module_on_the_test_set(done):
    with torch.no_grad():
        want = done.module.eval()(Points().x[::3])
    torch.testing.assert_close(raylfl.load(done.run_dir, ["eval.batch_size=7"]).predict(), want)


def test_a_module_that_does_not_say_how_it_predicts_is_refused(runs):
    result = raylfl.run(TINY, [*runs, "rounds=1"])
    with pytest.raises(raylfl.BadConfig, match="neither forward nor predict_step"):
        raylfl.load(result.run_dir).predict()


def test_an_evaluation_is_the_last_rows_and_other_data_may_be_given(runs):
    result = raylfl.run("digits", [*runs, "rounds=2", "runtime.backend=local", "num_clients=4"])
    found = raylfl.evaluate(result.run_dir)
    assert found == {name: result.metrics[-1][name] for name in ("test/accuracy", "test/loss")}

    class Half(Points):
        def test_dataset(self):
            return torch.utils.data.TensorDataset(self.x[:3], self.targets[:3])

    short = raylfl.run(TINY, [*runs, "rounds=1"], model=Predicting)
    assert len(raylfl.load(short.run_dir, data=Half()).predict()) == 3


def test_an_unfinished_run_has_the_parameters_of_its_newest_checkpoint(runs):
    class Breaks(raylfl.Callback):
        def on_round_end(self, round, metrics, params):
            if round == 3:
                states.append(params)
                raise ZeroDivisionError

    states = []
    with pytest.raises(ZeroDivisionError) as caught:
        raylfl.run(TINY, [*runs, "checkpoint.every=1"], callbacks=[Breaks()])
    run = raylfl.load(caught.value.__notes__[0].split()[2])
    assert torch.equal(run.params, states[0])
    assert torch.equal(torch.nn.utils.parameters_to_vector(run.module.parameters()).detach(), states[0])
    assert run.summary == {}


def test_runs_are_a_table_with_config_and_summary(runs, tmp_path):
    results = [raylfl.run(TINY, [*runs, "rounds=2", f"local.lr={lr}"]) for lr in (0.05, 0.1)]
    table = raylfl.runs(tmp_path / "runs").set_index("path")
    for result, lr in zip(results, (0.05, 0.1), strict=True):
        row = table.loc[str(result.run_dir)]
        assert (row["local.lr"], row["rounds_done"], row["finished"]) == (lr, 2, True)
        assert row["final/train/loss"] == result.metrics[-1]["train/loss"]


def test_without_pandas_the_extra_is_named_and_the_rest_works(done, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = raylfl.load(done.run_dir)
    assert len(run.rows) == 6
    with pytest.raises(MissingExtra, match=r"pip install 'raylfl\[tune\]'"):
        _ = run.metrics


def test_tab_completion_has_the_whole_interface():
    names = {"Callback", "StopRun", "Stream", "compare", "evaluate", "load", "resume", "run", "runs", "stream"}
    assert names | {"trainable", "Run", "Result", "Progress", "BadConfig"} <= set(dir(raylfl))
    assert all(getattr(raylfl, name) is not None for name in raylfl.__all__)
    assert sorted(raylfl.__all__) == sorted(name for names in raylfl.PLACES.values() for name in names)


@pytest.mark.slow
def test_importing_raylfl_imports_neither_torch_nor_pandas_nor_ray():
    code = "import sys, raylfl; dir(raylfl); print([m for m in ('torch', 'pandas', 'ray') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
