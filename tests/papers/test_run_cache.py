"""The cache of runs: reuse, resume and distinction of runs; divergence is a result."""

import math
import shutil

import numpy as np
import pytest
import torch

from papers.run_cache import RunCache, digests, set_keys
from raylfl.config.groups.records import LoggingConfig
from raylfl.errors import DataMissing
from raylfl.report.derived import best_setting, last_k
from raylfl.runtime.records.mirror import local_view
from tests.papers.caches import setting, toy

TOY = toy()


@pytest.fixture
def cache(tmp_path):
    return RunCache(tmp_path, jobs=1)


def folders(cache):
    return sorted(path.name for path in (cache.folder / "runs").iterdir())


def test_a_second_call_finds_the_runs_of_the_first_and_a_changed_setting_is_a_new_run(cache, tmp_path):
    first = cache.groups([TOY], [0, 1])
    stamps = {path: path.stat().st_mtime_ns for path in (cache.folder / "runs").rglob("metrics.jsonl")}
    second = cache.groups([TOY], [0, 1])
    assert len(stamps) == 2
    assert stamps == {path: path.stat().st_mtime_ns for path in (cache.folder / "runs").rglob("metrics.jsonl")}
    for one, other in zip(first[0].runs, second[0].runs, strict=True):
        np.testing.assert_array_equal(one.column("global/distance"), other.column("global/distance"))
    RunCache(tmp_path, overrides=["runtime.workers=1", "checkpoint.every=2"], jobs=1).groups([TOY])
    assert len(folders(cache)) == 2
    cache.groups([toy("toy", **{"local.lr": 0.2})])
    assert len(folders(cache)) == 3


def test_a_run_from_before_an_option_existed_is_the_run_with_its_default(cache):
    older = cache.groups([TOY])[0].runs[0].path
    config = (older / "config.yaml").read_text()
    assert "  drift: false\n" in config
    (older / "config.yaml").write_text(config.replace("  drift: false\n", ""))
    older = older.rename(f"{str(older)[:-8]}0123abcd")
    assert [run.path for run in cache.groups([TOY])[0].runs] == [older]
    assert [run.path for run in cache.groups([toy("toy", **{"eval.drift": True})])[0].runs] != [older]


def test_an_interrupted_run_from_before_an_option_existed_is_resumed_under_todays_name(cache):
    """Its config has the option from then on, and `raylfl publish` compares the digest in the name with the config."""
    path = cache.groups([TOY])[0].runs[0].path
    params = torch.load(path / "final.pt", weights_only=True)["params"]
    (path / "config.yaml").write_text((path / "config.yaml").read_text().replace("  drift: false\n", ""))
    (path / "summary.json").unlink()
    path.rename(f"{str(path)[:-8]}0123abcd")
    again = cache.groups([TOY])[0].runs[0]
    assert again.finished
    assert [again.path] == [path] == list((cache.folder / "runs").iterdir())
    assert digests(again.config)[-1] == path.name[-8:]
    assert torch.equal(torch.load(path / "final.pt", weights_only=True)["params"], params)


def test_the_digest_in_a_name_is_that_of_the_config_without_what_the_data_give_the_model(cache):
    """Ridge regression takes its dimension, rows and regularisation from the data; the saved config has them."""
    run = cache.groups([setting("ridge", ["reproduce/focus_fig4"], {"rounds": 2})])[0].runs[0]
    assert {"dim", "rows_per_client", "lam"} <= run.config["model"]["init_args"].keys()
    assert digests(run.config)[-1] == run.path.name[-8:]


def test_a_run_that_diverges_is_worse_than_any_other_and_not_repeated(cache):
    wild = toy("wild", **{"local.lr": 1e200, "rounds": 50})
    tame, lost = cache.groups([TOY, wild])
    assert math.isinf(last_k(lost, "global/distance", 5).mean)
    assert best_setting([lost, tame], "global/distance", 5) is tame
    before = (lost.runs[0].path / "metrics.jsonl").stat().st_mtime_ns
    cache.groups([wild])
    assert (lost.runs[0].path / "metrics.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize(("words", "augment"), [([], True), (["data.init_args.augment=false"], False)])
def test_images_in_place_of_a_data_set_keep_its_augmentation_and_normalisation(words, augment, tmp_path):
    images = RunCache(tmp_path, overrides=["data=image_folder", "data.init_args.path=a.tgz", *words])
    made = images.plan(setting("x", ["reproduce/focus_fig9"]), 0).config["data"]
    own = RunCache(tmp_path).plan(setting("x", ["reproduce/focus_fig9"]), 0).config["data"]["init_args"]
    assert made["name"] == "image_folder"
    assert made["init_args"] == {"path": "a.tgz", "augment": augment, "mean": own["mean"], "std": own["std"]}


def test_missing_data_are_reported_before_anything_runs(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path / "nowhere"))
    image = toy("image", data="cifar10", model="cnn_focus", partition="iid", num_clients=2)
    with pytest.raises(DataMissing, match="cifar10"):
        cache.groups([TOY, image])
    assert not (cache.folder / "runs").exists()


def test_runs_at_a_url_are_found_and_resumed_by_another_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_RUNS", f"file://{tmp_path}/far")
    long = toy("long", **{"rounds": 6, "checkpoint.every": 1, "checkpoint.keep": 3})

    def on(machine):
        monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / machine))
        return RunCache(LoggingConfig().folder / "reproduce/toy", jobs=1).groups([TOY, long])

    first = on("a")
    (run,) = (tmp_path / "far/reproduce/toy/runs").glob("long-*")
    (run / "summary.json").unlink()
    for state in ("round_000005", "round_000006"):  # killed in round 4
        shutil.rmtree(run / "checkpoints" / state)
    again = on("b")
    log = (again[1].runs[0].path / "log.txt").read_text()
    assert "resumed at round 4" in log
    assert (local_view(f"file://{run}") / "summary.json").is_file()
    assert not (again[0].runs[0].path / "checkpoints").exists()  # only what is read
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.runs[0].column("global/distance"), other.runs[0].column("global/distance"))


def test_dotted_options_merge_into_nested_ones_and_change_nothing_given():
    given = {"local": {"lr": 0.1}, "rounds": 3}
    out = set_keys(given, {"local.steps": 2, "algorithm.name": "sfl", "rounds": 4})
    assert out == {"local": {"lr": 0.1, "steps": 2}, "rounds": 4, "algorithm": {"name": "sfl"}}
    assert given == {"local": {"lr": 0.1}, "rounds": 3}
