"""Callbacks and early stopping; several runs in threads; a run as a trial of a user's own Tuner."""

import json
import threading
import time
from functools import cache
from types import SimpleNamespace

import pytest
import torch

import raylfl
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.runtime.ray import cluster
from tests.runtime.tiny import ONE_BY_ONE as TINY


class Seen(raylfl.Callback):
    """A callback that records its calls and answers from a table of rounds."""

    def __init__(self, answers=None):
        self.answers, self.rounds, self.params, self.metrics = answers or {}, [], [], []
        self.started, self.result = None, None

    def on_run_start(self, config, run_dir):
        self.started = (config.top.name, run_dir.is_dir())

    def on_round_end(self, round, metrics, params):
        self.rounds.append(round)
        self.metrics.append(metrics)
        self.params.append(params)
        answer = self.answers.get(round)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def on_run_end(self, result):
        self.result = result


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """`plain(rounds)`: the parameters of the run after so many rounds, without a callback."""
    folder = tmp_path_factory.mktemp("plain")
    return cache(lambda rounds=6: raylfl.run(TINY, [f"logging.dir={folder}", f"rounds={rounds}"]).params)


def test_a_callback_gets_each_round_with_its_row_and_parameters(runs, plain):
    seen = Seen()
    result = raylfl.run(TINY, runs, callbacks=[seen])
    assert seen.started == ("tiny", True)
    assert seen.rounds == list(range(6))
    assert [row["round"] for row in seen.metrics] == [row["round"] for row in result.metrics]
    for r in (1, 2, 5):
        assert torch.equal(seen.params[r], plain(r + 1))
    assert torch.equal(seen.params[-1], result.params)
    assert seen.result is result


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(True, "Seen ended the run"), ("good enough", "Seen: good enough"), (raylfl.StopRun("enough"), "Seen: enough")],
)
def test_a_stop_ends_the_run_at_that_round_as_a_finished_one(runs, plain, answer, reason):
    result = raylfl.run(TINY, runs, callbacks=[Seen(), Seen({2: answer})])
    assert len(result.metrics) == 3
    assert torch.equal(result.params, plain(3))
    assert result.stopped_early == reason
    assert json.loads((result.run_dir / "summary.json").read_text())["status"] == "finished"


def test_a_stopped_run_can_be_resumed_and_calls_back_for_its_new_rounds_only(runs, plain):
    stopped = raylfl.run(TINY, runs, callbacks=[Seen({2: True})])
    seen = Seen({4: True})
    resumed = raylfl.resume(stopped.run_dir, callbacks=[seen])
    assert seen.rounds == [3, 4]
    assert len(resumed.metrics) == 5
    assert torch.equal(raylfl.resume(stopped.run_dir).params, plain())


def test_an_error_in_a_callback_ends_the_run_which_can_be_resumed(runs, plain):
    with pytest.raises(ZeroDivisionError) as caught:
        raylfl.run(TINY, [*runs, "logging.id=a"], callbacks=[Seen({3: ZeroDivisionError()})])
    (note,) = caught.value.__notes__
    folder = note.split()[2]
    assert torch.equal(raylfl.resume(folder).params, plain())


def test_torch_is_the_callers_own_in_a_callback(runs, plain):
    class Asks(raylfl.Callback):
        def on_round_end(self, round, metrics, params):
            kinds.append(torch.get_default_dtype())

    kinds = []
    torch.set_default_dtype(torch.float64)
    try:
        result = raylfl.run(TINY, [*runs, "rounds=2"], callbacks=[Asks()])
    finally:
        torch.set_default_dtype(torch.float32)
    assert kinds == [torch.float64] * 2
    assert torch.equal(result.params, plain(2))


# -- several runs ----------------------------------------------------------------------------------------------------


def together(*calls):
    """The results of calls, each made in its own thread."""
    results = [None] * len(calls)

    def put(k):
        results[k] = calls[k]()

    threads = [threading.Thread(target=put, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_two_runs_in_two_threads_have_the_bits_of_two_runs(runs, plain):
    first, second = together(lambda: raylfl.run(TINY, runs).params, lambda: raylfl.run(TINY, [*runs, "seed=1"]).params)
    assert torch.equal(first, plain())
    assert torch.equal(second, raylfl.run(TINY, [*runs, "seed=1"]).params)


def test_runs_in_two_threads_share_one_ray_which_ends_with_the_last_of_them(monkeypatch):
    """Functions that only count replace Ray's start and end."""
    started, ended = [], []
    for name, value in cluster.OWN_CLUSTER.items():
        monkeypatch.setenv(name, value)  # set by the first run, and removed after this test
    monkeypatch.setattr(cluster, "start", lambda runtime: time.sleep(0.05) or started.append(runtime) or [])
    monkeypatch.setattr(cluster, "address_of", lambda runtime: None)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: ended.append(True))
    one, other = (cluster.Cluster(RuntimeConfig()) for _ in range(2))
    together(one.ready, other.ready)
    one.ready()  # once more by the same run
    assert len(started) == 1
    one.end()
    assert not ended
    other.end()
    assert len(ended) == 1
    third = cluster.Cluster(RuntimeConfig())
    third.ready()
    third.end()
    assert (len(started), len(ended)) == (2, 2)


def test_a_result_at_the_end_of_a_notebooks_cell_is_one_line(tmp_path):
    config = load_config(TINY)
    rows = [{"round": 0, "train/loss": 2.0, "test/loss": 0.5}, {"round": 1, "train/loss": 1.0}]
    result = raylfl.Result(rows, torch.zeros(9), tmp_path, config)
    assert repr(result) == f"Result(fedavg, 2 rounds: train 1.0000  test 0.5000, run_dir={str(tmp_path)!r})"


@pytest.fixture
def tune(monkeypatch):
    """Stand-ins for the two functions of Ray Tune that a trial calls."""
    from ray import tune

    reported = []
    monkeypatch.setattr(tune, "report", lambda row: reported.append(row))
    monkeypatch.setattr(tune, "get_context", lambda: SimpleNamespace(get_trial_id=lambda: "t1"))
    return reported


def test_a_trial_is_the_run_with_the_values_and_reports_every_round(tune, runs, tmp_path):
    raylfl.trainable(TINY, runs)({"local.lr": 0.2, "participation": {"name": "uniform", "size": 2}})
    twin = raylfl.run(TINY, [*runs, "local.lr=0.2", "participation.size=2"])
    assert [row["train/loss"] for row in tune] == [row["train/loss"] for row in twin.metrics]
    assert tune[-1]["run_dir"] == str(tmp_path / "runs" / "tiny" / "t1")
    assert torch.equal(raylfl.load(tune[-1]["run_dir"]).params, twin.params)


def test_mistakes_come_when_the_function_is_made(runs):
    with pytest.raises(BadConfig, match="did you mean rounds"):
        raylfl.trainable(TINY, [*runs, "round=3"])
