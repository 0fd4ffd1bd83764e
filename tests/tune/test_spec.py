"""Sweep files: composition, overrides, and refusals before Ray starts."""

import re
from pathlib import Path

import pytest
import yaml

from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import make_split
from raylfl.experiment.data_source import load_data
from raylfl.runtime.measured import METRICS
from raylfl.tune.spec import check_settings, load_sweep, make_sweep
from raylfl.tune.sweep import apply_overrides, check_sweep, resume, sweep, write_content
from tests.tune.sweeps import QUADRATICS, sweep_of, write

SHIPPED = ("digits_lr", "heterogeneity", "coarse_fine", "tuned")


def test_a_sweep_file_is_a_config_with_a_space(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"rounds": 9, "local": {"lr": 0.7, "steps": 2}}))
    (tmp_path / "mine.yaml").write_text("base: base\nlocal: {steps: 4}\nspace: {local.lr: {grid: [1e-3, 2]}}\n")
    spec = load_sweep(tmp_path / "mine.yaml", ["seeds=[3, 4]", "num_clients=7"])
    assert (spec.name, spec.seeds, spec.rounds) == ("mine", [3, 4], 9)
    assert spec.points() == [{"local.lr": 0.001}, {"local.lr": 2}]
    config = spec.config({"local.lr": 0.001}, 4, tmp_path / "runs" / "mine")
    assert (config.local.lr, config.local.steps, config.top.num_clients, config.top.seed) == (0.001, 4, 7, 4)
    assert (config.top.name, config.logging.id, config.logging.dir) == ("mine", None, str(tmp_path / "runs"))


def test_a_config_without_a_space_is_refused_as_a_sweep():
    with pytest.raises(BadConfig, match=r"^digits has no space .* raylfl run digits.*space\.local\.lr=") as refusal:
        load_sweep("digits")
    assert len(str(refusal.value).splitlines()) == 1
    assert load_sweep("digits", ["seeds=[0, 1]"]).points() == [{}]  # seeds alone are enough for a sweep
    assert len(load_sweep("digits", ["space.local.lr={grid: [0.1, 0.2]}"]).points()) == 2


def test_interpolations_follow_the_trials_seed(tmp_path):
    path = write(tmp_path, data={"class_path": "tests.runtime.modules.Quadratics", "init_args": {"seed": "${seed}"}})
    spec = load_sweep(path, ["seeds=[5, 6]"])
    again = make_sweep(yaml.safe_load(yaml.safe_dump(spec.content)))  # as from sweep.yaml
    for seed in (5, 6):
        config = again.config({}, seed, tmp_path / "s")
        assert config.data.init_args["seed"] == seed


def test_changing_the_algorithm_resets_its_options(tmp_path):
    spec = sweep_of(
        tmp_path, algorithm={"name": "fedavgm", "beta": 0.5}, space={"algorithm.name": {"grid": ["fedavgm", "focus"]}}
    )
    configs = [spec.config(values, 0, tmp_path / "s") for values in spec.points()]
    assert configs[0].algorithm.beta == 0.5
    assert configs[1].resolved["algorithm"]["name"] == "focus"


def test_overrides_reach_into_the_sweep_and_into_its_config_which_a_base_lies_over(tmp_path):
    path = write(tmp_path, scheduler="asha")
    overrides = ["scheduler.grace=2", "space.local.lr={uniform: [1, 2]}", "samples=3", "rounds=40", "name=other"]
    spec = load_sweep(path, overrides)
    assert (spec.scheduler.grace, spec.scheduler.reduction) == (2, 3.0)
    assert (spec.options.samples, spec.rounds, spec.name) == (3, 40, "other")
    assert all(1 <= point["local.lr"] <= 2 for point in spec.points())
    spec = load_sweep(write(tmp_path), ["base=[mnist_lenet,preset/sfl_cyclic]", "rounds=40"])
    assert spec.base["participation"] == {"name": "cyclic", "groups": 3, "size": 2}
    assert spec.base["rounds"] == 40
    assert spec.name != "mnist_lenet"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_sweeps_compose_in_all_their_settings(name):
    spec = load_sweep(name)
    points = spec.points()
    assert check_settings(spec, points)
    assert len(points) > 1


def test_every_partition_of_the_heterogeneity_sweep_can_be_drawn_with_every_seed():
    spec = load_sweep("heterogeneity")
    points = [{k: v for k, v in point.items() if k.startswith("partition.")} for point in spec.points()]
    different = [point for k, point in enumerate(points) if point not in points[:k]]
    data = load_data(load_config("data/digits"))
    assert len(different) == 6
    for point in different:
        for seed in spec.seeds:
            make_split(load_config(spec.base, spec.overrides(point, seed)), data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {"local.lrr": {"grid": [1]}}}, "unknown key local.lrr; did you mean local.lr?"),
        ({"space": {"local.lr": {"grid": [-1.0]}}}, "local.lr=-1"),
        ({"spce": {}}, "unknown key spce; did you mean space?"),
        ({"schedular": "asha"}, "unknown key schedular; did you mean scheduler?"),
        ({"scheduler": "hyperband"}, "scheduler.name=hyperband, but must be one of fifo, asha"),
        ({"scheduler": {"name": "asha", "grce": 3}}, "unknown key scheduler.grce; did you mean scheduler.grace?"),
        ({"scheduler": {"grace": 2}}, "scheduler.name=fifo, but must be asha, to which grace and reduction belong"),
        ({"mode": "mean"}, "mode=mean, but must be one of min, max"),
        ({"metric": "test/dice_loss"}, "mode=None, but must be min or max (whether smaller or larger test/dice_loss"),
        ({"samples": 4}, "the space holds only grids"),
        ({"seeds": [1, 1]}, "seeds=[1, 1]"),
        ({"search": "grid"}, "one of random, optuna"),
        ({"space": {"seed": {"grid": [1, 2]}}}, "write seeds: [0, 1, 2]"),
        ({"space": {"rounds": {"grid": [1, 2]}}}, "write scheduler: asha"),
        ({"metric": "test/accuracy"}, "metric=test/accuracy is never measured here: it needs a test set"),
        ({"metric": "global/loss", "eval": {"global": False}}, "never measured here: it needs eval.global=true"),
        ({"metric": "clients/accuracy_p10"}, "never measured here: it needs eval.clients=true"),
        ({"metric": "distance", "mode": "min"}, "did you mean global/distance?"),
        ({"logging": {"id": "x"}}, "logging.id: every run of a sweep has an id of its own"),
        ({"search": "optuna"}, "search=optuna, but must be random, or a space with keys to draw"),
        (
            {
                "search": "optuna",
                "space": {
                    "algorithm.name": {"choice": ["fedavg", "sfl"]},
                    "local.steps": {"grid": [1, 5], "when": {"algorithm.name": "sfl"}},
                },
            },
            "space.local.steps: the grid depends on algorithm.name, which is drawn",
        ),
    ],
)
def test_mistakes_end_before_ray_starts(tmp_path, changes, words):
    with pytest.raises(BadConfig) as caught:
        check_sweep(sweep_of(tmp_path, **changes))
    assert words in str(caught.value)
    assert "ray" not in str(caught.value).lower()


def test_a_mistake_names_the_setting_that_has_it(tmp_path):
    space = {"local.lr": {"grid": [0.1]}, "local.steps": {"grid": [1, 2]}, "local.clip_norm": {"grid": ["high"]}}
    with pytest.raises(BadConfig, match=r"local.clip_norm=high[^\[]*$"):  # all settings have it: nothing to name
        check_sweep(sweep_of(tmp_path, space=space))
    space["local.clip_norm"] = {"grid": [1.0, "high"]}
    with pytest.raises(BadConfig, match=r"local.clip_norm=high.*\[with .*local.lr=0.1, local.steps=1"):
        check_sweep(sweep_of(tmp_path, space=space))


def test_the_metrics_that_a_sweep_accepts_are_the_documented_ones():
    text = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    graphs = re.findall(r"^\| (`.+?) \|", text.partition("\n## Graphs")[2].partition("\n## ")[0], re.MULTILINE)
    names, of_graphs = ({name for row in part for name in re.findall(r"`(.+?)`", row)} for part in (rows, graphs))
    assert names - of_graphs - {"algo/..."} <= set(METRICS) <= names


def logging(folder, metric, mode="max", **changes):
    """A sweep of a model that logs `own` in training, `f1` on the test set, and `accuracy` on other data."""
    return sweep_of(
        folder,
        data={"class_path": "tests.runtime.tiny.Points"},
        model={"class_path": "tests.tune.modules.Logging"},
        partition={"name": "iid"},
        num_clients=6,
        metric=metric,
        mode=mode,
        metrics={"f1": "max", "own": "max", "train/local_drift": "max", "algo/y_norm": "max"},
        eval={"participants": True, **changes},
    )


def test_what_a_model_of_ones_own_logs_can_be_the_metric(tmp_path):
    for metric in ("test/f1", "train/own", "train/loss", "train/local_drift", "participants/accuracy", "algo/y_norm"):
        assert check_sweep(logging(tmp_path, metric, drift=True))
    assert check_sweep(logging(tmp_path, "clients/accuracy_p10", clients=True))


def test_a_sweep_asks_for_the_direction_of_a_metric_that_is_neither_stated_nor_known(tmp_path):
    score = logging(tmp_path, "test/f1", mode=None).score  # f1 is stated in `metrics`
    assert score.direction == "max"
    with pytest.raises(BadConfig, match=r"mode=None.*min or max.*test/f2"):
        logging(tmp_path, "test/f2", mode=None)
    with pytest.raises(BadConfig, match=r"mode=min.*max, as metrics.test/f1 states"):
        logging(tmp_path, "test/f1", mode="min")


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("test/f2", "one of test/f1, test/loss (did you mean test/f1?)"),
        ("train/won", "train/loss, train/local_drift, train/own (did you mean train/own?)"),
        ("participants/f1", "one of participants/accuracy, participants/loss"),
        ("test/accuracy", "one of test/f1, test/loss"),
        ("tests/f1", "the name of a metric in metrics.jsonl (did you mean test/f1?)"),
        ("val/f1", "is never measured here: it needs a validation set"),
    ],
)
def test_a_metric_that_the_model_does_not_log_is_refused_before_the_trials(tmp_path, metric, words):
    with pytest.raises(BadConfig, match=re.escape(words)):
        check_sweep(logging(tmp_path, metric))


def test_nothing_is_written_for_a_sweep_that_cannot_be(tmp_path):
    path = write(tmp_path, logging={"dir": str(tmp_path / "runs")}, space={"local.lrr": {"grid": [1]}})
    with pytest.raises(BadConfig):
        sweep(path)
    assert not (tmp_path / "runs").exists()


def test_a_resumed_sweep_may_change_resources_retries_and_samples_only(tmp_path):
    content = sweep_of(tmp_path, space={"local.lr": {"uniform": [0.1, 0.2]}}).content
    other = make_sweep(
        apply_overrides(content, ["concurrent=2", "retries=5", "samples=3", "runtime.backend=ray", "runtime.workers=3"])
    )
    assert (other.options.concurrent, other.options.retries) == (2, 5)
    assert other.base["runtime"] == {**QUADRATICS["runtime"], "backend": "ray", "workers": 3}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(
        BadConfig, match=r"rounds defines the sweep: when a sweep is resumed, only concurrent, retries, samples and"
    ):
        resume(tmp_path, ["rounds=4"], trust=True)
    with pytest.raises(BadConfig, match=r"not a sweep's directory"):
        resume(tmp_path / "elsewhere")


def test_data_on_named_nodes_and_places_that_trials_cannot_reach_are_refused(tmp_path):
    spec = sweep_of(tmp_path, data={"class_path": "tests.tune.modules.Named"}, runtime={"backend": "ray"})
    words = r"^data.class_path=tests.tune.modules.Named: the clients' data are on nodes blue, red, .* use raylfl run "
    with pytest.raises(BadConfig, match=words):
        check_sweep(spec)
    with pytest.raises(
        BadConfig, match=r"^logging.dir=memory://runs, but must be .* a URL that every process can reach"
    ):
        check_sweep(sweep_of(tmp_path, logging={"dir": "memory://runs"}))


def test_a_sweep_with_another_content_keeps_the_folder_and_begins_a_journal(tmp_path):
    """`concurrent`, `retries`, `samples`, the system and the place may differ; then the journal stays."""
    folder, said = tmp_path / "runs", []
    folder.mkdir()
    drawn = {"space": {"local.lr": {"uniform": [0.1, 0.2]}}}

    def write_again(**changes):
        write_content(sweep_of(tmp_path, **{**drawn, **changes}), folder, said.append)
        (folder / "trials.jsonl").touch()
        return len(said)

    assert write_again() == 0
    assert write_again(concurrent=1, samples=4, runtime={"backend": "local", "cpus_per_worker": 0.5}) == 0
    assert yaml.safe_load((folder / "sweep.yaml").read_text())["samples"] == 4
    assert write_again(rounds=7) == 1
    assert write_again(rounds=7, space={"local.lr": {"grid": [0.1, 0.02]}}) == 2
    assert all(line.endswith("had another sweep: its runs are used where they are equal") for line in said)
