"""Runs on disk as objects and tables: against the files themselves, and against torch by hand."""

import json
import sys

import numpy as np
import pytest
import torch

import raylfl
from raylfl.components.extras import MissingExtra
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.runtime.tiny import Net, Points


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


def test_predictions_are_those_of_the_module_on_the_test_set_if_it_says_how(done, runs):
    with torch.no_grad():
        want = done.module.eval()(Points().x[::3])
    torch.testing.assert_close(raylfl.load(done.run_dir, ["eval.batch_size=7"]).predict(), want)
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


@pytest.mark.parametrize("clients", [1, 3])
def test_so_has_a_central_one_with_batch_normalisation(runs, clients):
    options = ["algorithm.name=centralized", f"num_clients={clients}", "rounds=2", "checkpoint.every=1"]
    result = raylfl.run(TINY, [*runs, *options, "model.class_path=tests.runtime.tiny.Net"])
    saved = result.module.state_dict()
    (result.run_dir / "final.pt").unlink()
    loaded = raylfl.load(result.run_dir).module.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in saved.items())


def test_runs_are_a_table_with_config_and_summary(runs, tmp_path):
    results = [raylfl.run(TINY, [*runs, "rounds=2", f"local.lr={lr}"]) for lr in (0.05, 0.1)]
    table = raylfl.runs(tmp_path / "runs").set_index("path")
    for result, lr in zip(results, (0.05, 0.1), strict=True):
        row = table.loc[str(result.run_dir)]
        assert (row["local.lr"], row["rounds_done"], row["finished"]) == (lr, 2, True)
        assert row["final/train/loss"] == result.metrics[-1]["train/loss"]
    none = raylfl.runs(tmp_path / "runs", ["local.lr>5"])
    assert len(none) == 0
    assert {"path", "local.lr", "final/train/loss"} <= set(none.columns)


def test_runs_and_results_stand_for_their_directories(runs):
    results = [raylfl.run(TINY, [*runs, "rounds=2", f"local.lr={lr}"]) for lr in (0.05, 0.1)]
    loaded = raylfl.load(results[0])
    assert loaded.path == results[0].run_dir
    assert repr(loaded).startswith("Run(2 rounds: train ")
    assert repr(loaded).endswith(f", path={str(loaded.path)!r})")
    assert len(repr(loaded).splitlines()) == 1
    table = raylfl.diff(loaded, results[1])
    assert list(table.columns) == [str(result.run_dir) for result in results]
    assert "local.lr" in table.index
    assert raylfl.evaluate(results[0]) == raylfl.evaluate(loaded) == raylfl.evaluate(loaded.path)
    assert len(raylfl.resume(loaded, ["rounds=3"]).metrics) == len(raylfl.resume(results[1], ["rounds=3"]).metrics) == 3


def test_without_pandas_the_extra_is_named_and_tab_completion_has_the_whole_interface(done, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = raylfl.load(done.run_dir)
    assert len(run.rows) == 6
    with pytest.raises(MissingExtra, match=r"pip install 'ray\[default,tune\]>=2.50'"):
        _ = run.metrics
    names = {"Callback", "StopRun", "compare", "diff", "evaluate", "load", "resume", "run", "runs"}
    assert names | {"trainable", "Run", "Result", "Progress", "BadConfig"} <= set(dir(raylfl))
    assert all(getattr(raylfl, name) is not None for name in raylfl.__all__)


def test_tables_of_a_run_need_none_of_its_objects(tmp_path):
    class Own(Predicting):
        pass

    data = Points()
    done = raylfl.run(TINY, [f"logging.dir={tmp_path}", "logging.report=false"], model=Own, data=data)
    known = raylfl.load(done.run_dir, data=data, model=Own)
    assert torch.equal(known.module.state_dict()["body.0.weight"], done.module.state_dict()["body.0.weight"])
    run = raylfl.load(done.run_dir)
    assert run.metrics["train/loss"].tolist() == [row["train/loss"] for row in done.metrics]
    assert len(run.clients)
    assert run.summary["rounds"] == 6
    assert torch.equal(run.params, done.params)
    for part in ("config", "module"):
        with pytest.raises(raylfl.BadConfig, match="was started with"):
            getattr(run, part)
    with pytest.raises(raylfl.BadConfig, match=r"unknown key local\.lrr"):
        _ = raylfl.load(done.run_dir, ["local.lrr=1"], model=raylfl.Callback, data=raylfl.Callback).config


def test_a_plot_has_the_recorded_values_of_runs_results_and_directories(done, tmp_path, request):
    for figure in (done.plot("train/loss"), raylfl.load(done.run_dir).plot("train/loss"), raylfl.plot(done.run_dir)):
        (ax,) = figure.axes
        assert figure._repr_png_()[:4] == b"\x89PNG"
    (ax,) = done.plot("train/loss").axes
    y = ax.get_lines()[0].get_ydata()
    np.testing.assert_allclose(y, [row["train/loss"] for row in done.metrics])
    other = raylfl.run(TINY, [f"logging.dir={tmp_path}", "algorithm.name=focus", "logging.report=false"])
    figure = raylfl.plot([done, other.run_dir, raylfl.load(other.run_dir)], "train/loss", axis="steps")
    assert sorted(text.get_text() for text in figure.legends[0].get_texts()) == ["FOCUS", "FedAvg"]
    with pytest.raises(raylfl.BadConfig, match=r"metric=train/los, .*did you mean train/loss\?"):
        done.plot("train/los")
    with pytest.raises(raylfl.BadConfig, match=r"axis=time, but must be one of rounds, floats"):
        done.plot(axis="time")
    request.getfixturevalue("undrawn")  # the pictures above are drawn
    page = raylfl.write_report([done, other], tmp_path / "page", pdf=False)
    assert page.is_file()
    assert "FOCUS" in page.read_text()


def test_progress_is_printed_where_a_person_watches(tmp_path, monkeypatch, capsys):
    small = [f"logging.dir={tmp_path}", "rounds=3"]
    raylfl.run(TINY, small)
    assert capsys.readouterr().out == ""
    raylfl.run(TINY, small, progress=True)
    out = capsys.readouterr().out
    assert " fedavg: 6 clients, 3 rounds, 1 process -> " in out.splitlines()[0]
    assert " round 3/3  train " in out
    raylfl.compare(TINY, small, ["fedavg", "focus"], progress=True)
    assert capsys.readouterr().out.count("round 3/3") == 2
    monkeypatch.setattr("raylfl.python.control.in_notebook", lambda: True)
    monkeypatch.setattr("raylfl.python.console.in_notebook", lambda: True)
    monkeypatch.setattr("raylfl.python.console.PLAIN_SECONDS", 0.0)
    raylfl.run(TINY, small)
    head, *rest = capsys.readouterr().out.split("\r")
    assert head.count("\n") == 2  # the run, and a warning
    assert [line.split()[1] for line in rest] == ["1/3", "2/3", "3/3"]
    assert rest[-1].endswith("s/round\n")
    raylfl.run(TINY, small, progress=False)
    seen = []
    raylfl.run(TINY, small, seen.append)  # a function of one's own takes its place
    assert (capsys.readouterr().out, len(seen)) == ("", 3)
