"""Several runs: those that exist are found, interrupted ones resumed, and processes change no bits."""

import shutil
import sys
from contextlib import closing

import pytest
import torch

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import NonFinite
from raylfl.execution import planned, store
from raylfl.execution.executor import require_here
from raylfl.runtime.records.run_dir import RunDirectory
from tests.runtime.tiny import FOCUS, Net
from tests.runtime.tiny import ONE_BY_ONE as TINY

WILD = {**TINY, "rounds": 50, "local": {"lr": 1e30}, "runtime": {"backend": "local", "vectorize": "never"}}


def folders(results):
    return [result.run_dir.name for result in results]


def stamps(results):
    return [(result.run_dir / "metrics.jsonl").stat().st_mtime_ns for result in results]


def test_a_second_call_finds_the_runs_of_the_first(runs):
    first = raylfl.run([TINY, FOCUS], runs)
    again = raylfl.run([FOCUS, TINY, FOCUS], runs)
    assert folders(again) == [folders(first)[k] for k in (1, 0, 1)]
    assert stamps(again) == [stamps(first)[k] for k in (1, 0, 1)]
    assert torch.equal(again[1].params, raylfl.run(TINY, runs).params)
    assert again[1].module.state_dict().keys() == first[0].module.state_dict().keys()


def test_another_config_is_another_run_and_the_way_of_computing_makes_none(runs):
    def path(*changes):
        return store.plan(load_config(TINY, [*runs, *changes])).path

    changes = ("seed=3", "rounds=7", "local.lr=0.06", "eval.every=1", "checkpoint.best=test/loss")
    assert len({path(), *map(path, changes)}) == 6
    assert path("runtime.workers=2", "checkpoint.every=3") == path()


def test_processes_give_the_bits_of_one_process_the_ids_of_a_comparison_and_each_warning_once(runs, capsys):
    given = [*runs, "local.b1=0.5"]
    alone = raylfl.compare(TINY, [*given, "name=alone"], ["fedavg"], seeds=[0, 1])
    assert not capsys.readouterr().out
    parallel = raylfl.compare(TINY, [*given, "name=parallel"], ["fedavg"], seeds=[0, 1], jobs=2, progress=True)
    assert capsys.readouterr().out.count("warning: local.b1=0.5 has no effect") == 1
    assert folders(alone) == folders(parallel)
    for one, other in zip(alone, parallel, strict=True):
        assert torch.equal(one.params, other.params)
        assert one.summary["params_sha256"] == other.summary["params_sha256"]
    processes = {line for result in parallel for line in process_of(result)}
    assert len(processes) == 2
    assert not processes & {line for result in alone for line in process_of(result)}


def process_of(result):
    log = (result.run_dir / "log.txt").read_text()
    return {line.rpartition("process ")[2] for line in log.splitlines() if "process " in line}


def test_an_interrupted_run_is_resumed_to_the_same_bits(runs):
    (first,) = raylfl.run([TINY], [*runs, "checkpoint.keep=3"])
    (first.run_dir / "summary.json").unlink()
    for later in ("round_000004", "round_000006"):
        shutil.rmtree(first.run_dir / "checkpoints" / later)
    (again,) = raylfl.run([TINY], runs)
    assert again.run_dir == first.run_dir
    assert "resumed at round 2" in (again.run_dir / "log.txt").read_text()
    assert torch.equal(again.params, first.params)


def test_a_run_that_was_resumed_with_more_rounds_is_no_longer_the_one_of_its_name(runs):
    (first,) = raylfl.run([TINY], runs)
    raylfl.resume(first.run_dir, ["rounds=8"])
    (again,) = raylfl.run([TINY], runs)
    assert again.run_dir.name == f"{first.run_dir.name}-2"
    assert len(again.metrics) == 6


def test_a_run_is_made_again_if_the_source_of_its_classes_has_changed(tmp_path, monkeypatch, runs):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from tests.runtime.tiny import Net\n\nclass Own(Net):\n    factor = 1\n"
    config = {**TINY, "model": {"class_path": "mine_of_several.Own"}}
    (tmp_path / "mine_of_several.py").write_text(text)
    (first,) = raylfl.run([config], runs)
    (named,) = raylfl.run([config], [*runs, "logging.id=named"])
    (tmp_path / "mine_of_several.py").write_text(text.replace("1", "2"))
    sys.modules.pop("mine_of_several")
    assert folders(raylfl.run([config], runs)) == [f"{first.run_dir.name}-2"] == folders(raylfl.run([config], runs))
    with pytest.raises(raylfl.BadConfig, match=r"logging.id=named: .*named exists and is never overwritten"):
        raylfl.run([config], [*runs, "logging.id=named"])
    assert named.summary["rounds"] == 6


def test_a_run_of_other_code_of_raylfl_is_another_run(monkeypatch, runs):
    (first,) = raylfl.run([TINY], runs)
    monkeypatch.setattr(store, "source_digest", lambda: "other")
    assert folders(raylfl.run([TINY], runs)) != folders([first])


def test_objects_that_only_this_process_has_make_new_runs(runs):
    class Local(Net):
        pass

    first, again = (raylfl.run([TINY], runs, model=Local, jobs=2)[0] for _ in range(2))
    assert first.run_dir != again.run_dir
    assert torch.equal(first.params, again.params)
    assert type(again.module) is Local


def test_a_diverged_run_is_reported_after_the_others_and_not_repeated(runs):
    for _ in range(2):
        with pytest.raises(NonFinite, match=r"1 of 2 runs diverged, the others are complete: fedavg, seed 0: ") as lost:
            raylfl.run([WILD, FOCUS], runs)
        assert [path.name.partition("-")[0] for path in lost.value.run_dirs] == ["fedavg", "focus"]
        assert [len(result.metrics) for result in lost.value.results] == [6]
    folder = raylfl.run([FOCUS], runs)[0].run_dir.parent
    assert {path.name.partition("-")[0] for path in folder.iterdir()} == {"fedavg", "focus"}
    assert len(list(folder.iterdir())) == 2


def test_a_run_that_another_process_makes_is_refused_while_in_use_and_then_used(runs, monkeypatch):
    first, second = (store.plan(load_config(TINY, runs)) for _ in range(2))
    with closing(RunDirectory.create(first.path.parents[1], "tiny", first.path.name, 0)) as other:
        with pytest.raises(
            raylfl.BadConfig, match=r"is in use by another process \(.*\): wait for it, or stop it first"
        ):
            second.make()
        other.delete()

    def prepare_meanwhile(config):
        monkeypatch.setattr(planned, "prepare", prepare)
        first.make()
        return prepare(config)

    prepare = planned.prepare
    monkeypatch.setattr(planned, "prepare", prepare_meanwhile)
    second.make()
    assert "resumed at round 6" in (second.path / "log.txt").read_text()
    before = (second.path / "log.txt").read_bytes()
    second.make()
    assert (second.path / "log.txt").read_bytes() == before


def test_mistakes_in_any_config_are_reported_before_the_first_run(tmp_path, runs):
    with pytest.raises(raylfl.BadConfig, match="participation"):
        raylfl.run([TINY, {**FOCUS, "participation": {"name": "uniform", "size": 30}}], runs)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(raylfl.BadConfig, match=r"logging.id=x is the id of two runs"):
        raylfl.run([TINY, FOCUS], [*runs, "logging.id=x"])
    with pytest.raises(raylfl.BadConfig, match="jobs=2"):
        raylfl.run(TINY, runs, jobs=2)


def test_callbacks_see_every_round_and_runs_are_then_made_in_turn(runs):
    class Count(raylfl.Callback):
        rounds = 0

        def on_round_end(self, round, metrics, params):
            Count.rounds += 1

    raylfl.run([TINY, FOCUS], runs, callbacks=[Count()], jobs=2)
    assert Count.rounds == 12
    raylfl.run([TINY, FOCUS], runs, callbacks=[Count()])
    assert Count.rounds == 12


def test_a_run_of_another_node_that_is_not_here_is_an_error(runs):
    with pytest.raises(raylfl.BadConfig, match=r"fedavg-s0-.* was carried out on another node, and is not here"):
        require_here(store.plan(load_config(TINY, runs)))
