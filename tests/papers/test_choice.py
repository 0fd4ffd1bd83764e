"""`--only` selects cells of an experiment; `--estimate` predicts their duration; the paper's scale needs no GPU."""

import re
from contextlib import suppress

import numpy as np
import pytest
import torch

from papers.base import choice, find
from papers.campaign import hours
from papers.fedaware import METHODS
from papers.focus import LINES
from papers.ledger_rows import Enough, Lacking
from papers.publish import _command
from papers.run_cache import RunCache
from raylfl.cli import main
from raylfl.errors import BadConfig, NonFinite
from raylfl.report.runs import RunRecord
from tests.papers.caches import DryCache, toy

KEYS = ("task", "steps", "lr", "seed")
TOY = toy()


@pytest.mark.parametrize(
    ("words", "cell", "kept"),
    [
        ([], {"task": "MNIST, MLP", "steps": 5}, True),
        (["task=mnist-*"], {"task": "MNIST, LeNet-5"}, True),
        (["task=mnist-*"], {"task": "FMNIST, LeNet-5"}, False),
        (["steps=5,20"], {"steps": 20}, True),
        (["steps=5,20"], {"steps": 50}, False),
        (["steps=5", "steps=50"], {"steps": 50}, True),
        (["lr=0.1", "steps=5"], {"lr": 0.1, "steps": 20}, False),
        (["lr=0.1"], {"lr": 0.10}, True),
    ],
)
def test_a_cell_is_kept_if_each_of_its_keys_fits_one_pattern(words, cell, kept):
    assert choice(words, KEYS, "x").keeps(**cell) is kept


@pytest.mark.parametrize("word", ["colour=red", "steps", "=5"])
def test_an_unknown_key_is_refused_with_the_known_keys(word):
    with pytest.raises(BadConfig, match="task, steps, lr, seed"):
        choice([word], KEYS, "x")


AUDITED = ["SCAFFOLD", "SCAFFOLD, momentum 0.9"]
MLP = ["task=mnist-mlp", "steps=5", "method=sfl", "classes=1"]


@pytest.mark.parametrize(
    ("name", "words", "column", "expected", "claims"),
    [
        ("focus/fig9", ["participation=markov", "method=focus,fedau"], "method", ["FOCUS", "FedAU"], 2),
        ("focus/fig9-rates", ["method=fedavg,scaffold-*", "lr=0.06"], "method", ["FedAvg", "SCAFFOLD, divisor 10"], 0),
        ("fedaware/fig8", ["method=fedavg,fedaware"], "method", ["FedAvg", "FedAWARE"], 0),
        ("sfl/table10", MLP, "block", 4 * ["MNIST, MLP"], 0),
        ("sfl/table11", MLP, "block", ["MNIST, MLP"], 1),
        ("audit/scaffold-network", ["method=scaffold,scaffold-momentum-0.9", "seed=1"], "method", AUDITED, 1),
        ("fedacs/table4", ["task=mnist"], "block", 7 * ["MNIST"], 5),
    ],
)
def test_a_part_of_a_figure_is_a_figure(name, words, column, expected, claims, tmp_path):
    """A claim about other methods is not judged."""
    cache = DryCache(tmp_path, "paper")
    cache.only = choice(words, find(name).choices, name)
    findings = find(name).run(cache)
    assert [row[column] for row in findings.tables[0].rows] == expected
    assert len(findings.claims) == claims


@pytest.mark.parametrize(
    ("name", "missing", "column", "left"),
    [
        ("focus/fig9", "FedAvg", "method", 2 * ["FOCUS", "FedAU", "MIFA", "SCAFFOLD", "SCAFFOLD, divisor 10"]),
        ("focus/fig9-rates", "lr 0.02", "method", list(LINES)),
        ("fedaware/fig9", "FedProx 0.1", "method", [name for name in METHODS if name != "FedProx"]),
        ("fedacs/table1", "MNIST, OS", "block", 7 * ["CIFAR-10"] + 7 * ["CINIC-10"]),
    ],
)
def test_cells_without_runs_are_left_out(name, missing, column, left, tmp_path):
    """If an option is tuned, a method needs the runs of all its values; a task of FedACS needs those of all methods."""
    cache = DryCache(tmp_path, "paper")
    cache.missing = missing
    findings = find(name).run(cache)
    assert [row[column] for row in findings.tables[0].rows] == left


def test_a_table_without_a_whole_task_is_refused(tmp_path):
    cache = DryCache(tmp_path, "paper")
    cache.missing = "OS"
    with pytest.raises(BadConfig, match="no task"):
        find("fedacs/table1").run(cache)


@pytest.mark.parametrize("name", ["focus/fig9", "focus/fig9-rates", "fedaware/fig5", "fedacs/table4", "fedacs/table5"])
def test_the_command_of_a_published_run_selects_it(name, tmp_path):
    experiment = find(name)
    points = experiment.points("paper")
    for point in points:
        run = RunRecord(tmp_path, {"seed": 0, "data": {"name": "cifar10"}}, np.zeros(0), {}, {})
        words = _command(name, experiment, experiment.cell(point), run).split()
        only = choice([word for word in words if "=" in word], experiment.choices, name)
        kept = [other for other in points if only.keeps(**other, seed=0)]
        assert point in kept
        assert len(kept) < len(points)
        run.config["data"] = {"name": "image_folder", "init_args": {"path": "/data/images.tgz"}}
        images = " data=image_folder data.init_args.path=images.tgz"
        assert _command(name, experiment, experiment.cell(point), run).endswith(images)


@pytest.mark.parametrize("word", ["task=mnst-*", "lr=7", "seed=7"])
def test_a_selection_of_nothing_is_refused_with_what_there_is(word, tmp_path):
    table = find("sfl/table10")
    cache = Lacking(table, (), tmp_path, "paper", only=choice([word], table.choices, "sfl/table10"))
    there = {"t": "there are mnist-logistic, mnist-mlp, ", "l": "there are 0.", "s": "there are 1234"}[word[0]]
    with pytest.raises(BadConfig, match=rf"--only {re.escape(word)}: no cell; {there}"):
        table.run(cache)


def test_without_a_gpu_the_papers_scale_runs_in_process(tmp_path, monkeypatch):
    words = ["task=mnist-logistic", "steps=5", "classes=1", "lr=0.01"]
    for gpu, backend in ((False, "local"), (True, "ray")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        table = find("sfl/table10")
        cache = Lacking(table, (), tmp_path, "paper", only=choice(words, table.choices, "sfl/table10"))
        with pytest.raises(Enough):
            table.run(cache)
        assert {run.config["runtime"]["backend"] for run in cache.plans()} == {backend}
        assert len(cache.missing) == 2  # PFL and SFL


def test_tables_10_and_11_have_their_runs_in_one_place(tmp_path):
    """Table 11 needs the grid search of table 10: the same configs, so the same folders."""
    paths = []
    for name in ("sfl/table10", "sfl/table11"):
        experiment = find(name)
        only = choice(["task=mnist-logistic", "steps=5", "seed=1234"], experiment.choices, name)
        cache = Lacking(experiment, (), tmp_path / name, "paper", only=only, runs=tmp_path / str(experiment.shares))
        with pytest.raises(Enough):
            experiment.run(cache)
        paths.append({run.path for run in cache.plans()})
    assert paths[0] == paths[1]
    assert len(paths[0]) == 16  # two methods, two C, four rates


def test_an_estimate_names_the_first_runs_that_are_not_there(tmp_path):
    """After a whole search these are the further seeds."""

    def waiting(seeds):
        cache = Lacking(find("sfl/exdir"), (), tmp_path)
        with suppress(Enough):
            for seed in seeds:
                cache.groups([TOY], [seed])
        return [run.config["seed"] for run in cache.plans()]

    RunCache(tmp_path, jobs=1).groups([TOY])
    assert waiting([0, 1, 2]) == [1]
    assert waiting([0]) == []


def test_an_estimate_makes_no_full_runs_and_prints_hours(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path))
    short = ["num_clients=20", "participation.size=2", "rounds=4", "eval.every=2", "local.steps=1"]
    only = ["--only", "task=mnist-logistic", "--only", "steps=5", "--only", "classes=1", "--only", "lr=0.1"]
    assert main(["reproduce", "sfl/table10", *only, "--estimate", "--jobs", "2", *short]) == 0
    told = capsys.readouterr()
    assert " h  in all, 2 at a time on " in told.out + told.err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def short_runs(monkeypatch):
    """Short runs take the seconds that a function of their config says, one number per round."""

    def measure(seconds_of):
        def run(config, callbacks):
            for r, seconds in enumerate(seconds_of(config)):
                if callbacks[0].on_round_end(r, {"time/round": seconds}, None):
                    return

        monkeypatch.setattr("raylfl.execution.several.run", run)

    return measure


def test_an_estimate_counts_an_evaluation_as_often_as_it_is_made(short_runs, monkeypatch):
    """Rounds of 1 s, and 11 s where they are evaluated; the first takes a while longer."""

    def seconds(config):
        assert config["eval"]["every"] == 2
        return [5.0, 12.0, 1.0, 11.0, 1.0, 11.0]

    short_runs(seconds)
    config = thousand_rounds(steps=5)
    ((expected, line),) = hours([config])
    assert expected == pytest.approx(1000 * (5.0 + 7.0 / 20) / 3600)  # ended after two rounds: over 10 s
    assert line.split()[0] == f"{expected:.2f}"
    monkeypatch.setattr("papers.campaign.SHORT", 60.0)
    assert next(hours([config]))[0] == pytest.approx(1000 * (1.0 + 10.0 / 20) / 3600)


def test_an_estimate_goes_on_after_a_kind_that_diverges(short_runs):
    """Of two learning rates the smaller is measured; the kind whose run diverges takes no time."""
    finite, more, diverging = thousand_rounds(steps=5), thousand_rounds(steps=5, lr=0.2), thousand_rounds(steps=5)
    diverging["data"] = {"name": "fashion_mnist"}

    def seconds(config):
        if config["data"] == diverging["data"]:
            raise NonFinite("client 3 sent a non-finite update in round 1")
        assert config["local"]["lr"] == finite["local"]["lr"]
        return [1.0, 1.0]

    short_runs(seconds)
    first, last = hours([diverging, more, finite])
    assert first[1].endswith("(diverges: client 3 sent a non-finite update in round 1)")
    assert (first[0], last[0]) == (0.0, pytest.approx(2000 / 3600))


def test_an_estimate_measures_local_work_that_differs_between_clients_by_itself(short_runs):
    """A round takes 1 s with 5 steps and 6 s with drawn steps or two epochs; 15 steps take three times as long as 5."""
    short_runs(lambda config: [1.0 if config["local"]["steps"] == 5 else 6.0] * 2)
    drawn = thousand_rounds(steps={"uniform": [1, 9]})
    configs = [thousand_rounds(steps=15), drawn, thousand_rounds(steps=5), drawn, thousand_rounds(epochs=2)]
    assert [expected for expected, _ in hours(configs)] == pytest.approx([4 / 3.6, 12 / 3.6, 6 / 3.6])


def thousand_rounds(**local):
    """The keys of a config that an estimate reads."""
    return {
        "rounds": 1000,
        "local": {"steps": None, "epochs": None, "lr": 0.1} | local,
        "eval": {"every": 20},
        "checkpoint": {},
        "logging": {},
        **{key: {"name": key} for key in ("data", "model", "algorithm", "num_clients", "participation", "runtime")},
    }


@pytest.mark.parametrize(
    ("name", "task"), [("sfl/table10", "mnist-mlp"), ("sfl/table11", "mnist-mlp"), ("sfl/table7", "*")]
)
def test_best_rates_are_claimed_only_for_a_whole_grid(name, task, tmp_path):
    """With one rate chosen there is no best one."""
    for word, claims in (("lr=0.1", False), ("classes=1", True)):
        cache = DryCache(tmp_path, "paper")
        cache.only = choice([word, "steps=5", f"task={task}"], find(name).choices, name)
        assert bool(find(name).run(cache).claims) == claims
