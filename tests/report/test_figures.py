"""Which settings share a picture; panels, captions and profiles."""

import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from raylfl.report.curves import draw_profile
from raylfl.report.derived import MAX_LINES, Facet, Stat, facets, scenario_keys, split, tuned_keys
from raylfl.report.figures import Look, composed, convergence, costs, diagnostics, profile
from raylfl.report.pictures import participation_pictures, partition_drawer, partition_pictures
from raylfl.report.runs import group_runs, load_run
from raylfl.report.style import method_styles
from tests.report.synthetic import groups_of, rows_of, write_run


def look_at(metric="test/accuracy", target=None):
    return Look(metric, 1, target, method_styles(["fedavg", "focus"]))


def part_of(folder, *changes, rounds=3):
    rows = rows_of(np.linspace(0.1, 0.9, rounds).tolist())
    return Facet.of("", groups_of(folder, *((rows, change) for change in changes)))


def test_a_comparison_shows_the_metric_and_both_losses_under_one_legend(tmp_path):
    block = convergence(part_of(tmp_path, {}, {"algorithm.name": "focus"}), look_at(target=0.5))
    titles = [f"{name} against communication rounds" for name in ("test accuracy", "test loss", "training loss")]
    assert [panel.title for panel in block.panels] == titles
    assert [label for label, _ in block.legend] == ["FedAvg", "FOCUS"]
    assert block.caption == "Dotted: test accuracy ≥ 50\u202f%."


def test_a_loss_that_is_the_main_metric_is_shown_once_and_the_caption_names_what_was_averaged(tmp_path):
    block = convergence(part_of(tmp_path, {}), look_at("train/loss"))
    assert [panel.title.split(" against")[0] for panel in block.panels] == ["training loss", "test loss"]
    part = part_of(tmp_path / "seeds", {"seed": 0}, {"seed": 1}, rounds=400)
    assert "bands: from the lowest to the highest seed." in convergence(part, look_at()).caption
    assert "averages over 8 measured rounds" in convergence(part, look_at()).caption
    assert "averages" not in diagnostics(part, look_at()).caption


def test_costs_are_one_panel_each_and_none_if_nothing_was_counted(tmp_path):
    block = costs(part_of(tmp_path / "a", {}), look_at())
    titles = [panel.title.split("against ")[1] for panel in block.panels]
    assert titles == ["floats sent", "local steps", "virtual time (s)"]
    bare = Facet.of("", groups_of(tmp_path / "b", ([{"round": 0, "test/accuracy": 0.1}], {})))
    assert costs(bare, look_at()).panels == diagnostics(bare, look_at()).panels == []


def test_a_legend_names_only_the_settings_that_have_a_line(tmp_path):
    rows = rows_of([0.1, 0.5])
    more = [{**row, "algo/y_norm": 1.0} for row in rows]
    less = [{k: row[k] for k in ("round", "test/accuracy")} for row in rows]
    part = Facet.of("", groups_of(tmp_path, (more, {"algorithm.name": "focus"}), (less, {})))
    assert [label for label, _ in convergence(part, look_at()).legend] == ["FedAvg", "FOCUS"]
    assert [label for label, _ in diagnostics(part, look_at()).legend] == ["FOCUS"]


def test_a_composed_figure_holds_every_panel_and_the_legend(tmp_path):
    block = convergence(part_of(tmp_path, {}, {"algorithm.name": "focus"}), look_at())
    figure = composed(block.panels, block.legend)
    assert [ax.get_ylabel() for ax in figure.axes] == ["test accuracy (%)", "test loss", "training loss"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg", "FOCUS"]


def test_profiles_appear_only_where_something_was_varied(tmp_path):
    part = part_of(tmp_path, {}, {"algorithm.name": "focus"})
    assert tuned_keys(part.groups) == scenario_keys(part.groups) == []
    assert profile(part.groups, look_at(), "data.class_path").panels == []


def test_tuned_keys_and_keys_of_the_world_have_profiles_of_their_own(tmp_path):
    changes = [{"local.lr": lr, "partition.alpha": alpha} for lr in (0.01, 0.1) for alpha in (0.1, 0.5, 1.0)]
    groups = part_of(tmp_path, *changes).groups
    assert (tuned_keys(groups), scenario_keys(groups)) == (["local.lr"], ["partition.alpha"])
    rates, scenarios = (profile(groups, look_at(), key) for key in ("local.lr", "partition.alpha"))
    assert (rates.name, scenarios.name) == ("profile_local.lr", "profile_partition.alpha")
    assert [panel.heading for panel in rates.panels] == ["alpha=0.1", "alpha=0.5", "alpha=1"]
    assert len(scenarios.panels) == 1
    for block in (rates, scenarios):
        composed(block.panels, block.legend).savefig(tmp_path / f"{block.name}.png")


def test_a_profile_leaves_out_diverged_runs():
    points = {"fedavg": [(0.01, Stat(0.3, 0.1, 2, 2)), (0.1, Stat(0.5, 0.1, 2, 2)), (1.0, Stat.over([math.inf]))]}
    ax = Figure().subplots()
    draw_profile(ax, points, method_styles(["fedavg"]), "test/accuracy", "local.lr")
    (curve,) = (line for line in ax.get_lines() if len(line.get_xdata()) and line.get_marker() not in "_|")
    assert curve.get_ydata().tolist() == [30, 50]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    ax = Figure().subplots()
    draw_profile(ax, points, method_styles(["fedavg"]), "train/loss", "local.lr", log=True)
    assert ax.get_yscale() == "log"


def settings_of(folder, *changes):
    """A group for each change; the i-th ends at accuracy (i + 1) / 100."""
    return groups_of(folder, *((rows_of([(i + 1) / 100]), change) for i, change in enumerate(changes)))


def test_methods_in_several_scenarios_make_a_facet_of_each_scenario(tmp_path):
    changes = [{"partition.alpha": a, "algorithm.name": m} for a in (0.1, 0.5) for m in ("fedavg", "focus", "sfl")]
    parts = facets(settings_of(tmp_path, *changes))
    assert [part.label for part in parts] == ["alpha=0.1", "alpha=0.5"]
    assert [list(part.names.values()) for part in parts] == [["FedAvg", "FOCUS", "SFL"]] * 2


def test_a_world_is_labelled_by_its_keys_and_not_by_keys_that_follow_from_them(tmp_path):
    cnn = {"model.class_path": "raylfl.models.Cnn", "model.init_args": {"classes": 10, "width": 32, "norm": "group"}}
    mixed = {"partition": {"name": "classes", "classes": 2, "balance": "none"}}
    scenarios = [{}, {"partition.alpha": 0.5}, mixed, {**mixed, **cnn}]
    changes = [{**scenario, "algorithm.name": m} for scenario in scenarios for m in ("fedavg", "focus")]
    assert [part.label for part in facets(settings_of(tmp_path, *changes))] == [
        "model=Cnn",
        "model=LeNet5, partition=classes",
        "model=LeNet5, partition=dirichlet, alpha=0.1",
        "model=LeNet5, partition=dirichlet, alpha=0.5",
    ]


def test_a_key_that_follows_from_the_method_makes_no_scenario(tmp_path):
    groups = settings_of(
        tmp_path,
        {"algorithm.name": "fedavg"},
        {"algorithm.name": "focus", "participation.name": "weighted", "participation.replace": True},
    )
    assert scenario_keys(groups) == []
    (part,) = facets(groups)
    assert list(part.names.values()) == ["FedAvg", "FOCUS"]


def test_one_method_in_several_worlds_is_one_picture(tmp_path):
    groups = settings_of(tmp_path, *({"partition.alpha": a} for a in (0.1, 0.3, 0.5)))
    (part,) = facets(groups)
    assert list(part.names.values()) == ["alpha=0.1", "alpha=0.3", "alpha=0.5"]


def test_of_too_many_settings_the_best_of_each_method_is_shown(tmp_path):
    changes = [{"algorithm.name": m, "local.lr": lr / 100} for m in ("fedavg", "sfl") for lr in range(1, 6)]
    (part,) = facets(settings_of(tmp_path, *changes))
    best, note = part.best("test/accuracy", 1)
    assert [best.names[group] for group in best.groups] == ["FedAvg, lr=0.05", "SFL, lr=0.05"]
    assert "10 settings" in note
    few, nothing = split(part.groups[:3], [])[0].best("test/accuracy", 1)
    assert (len(few.groups), nothing) == (3, "")


def test_of_too_many_settings_of_one_method_the_best_few_are_shown(tmp_path):
    changes = [{"local.lr": lr / 100} for lr in range(1, MAX_LINES + 3)]
    part = split(settings_of(tmp_path, *changes), [])[0]
    best, _ = part.best("test/accuracy", 1)
    assert [group.setting["local.lr"] for group in best.groups] == [lr / 100 for lr in range(3, MAX_LINES + 3)]


def test_worlds_whose_labels_look_alike_stay_apart(tmp_path):
    steps = ([1, 2, 3, 4, 5], [1, 2, 9, 4, 5])
    changes = [{"local.steps": {"list": own}, "algorithm.name": m} for own in steps for m in ("fedavg", "sfl")]
    parts = facets(settings_of(tmp_path, *changes))
    assert len({part.label for part in parts}) == len(parts) == 2


def drawn_groups(folder, *changes):
    return groups_of(folder, *((rows_of([0.1, 0.2]), change) for change in changes))


def test_methods_and_seeds_of_one_world_share_its_pictures(tmp_path):
    changes = [{"algorithm.name": m, "seed": s} for m in ("fedavg", "focus") for s in (0, 1)]
    groups = drawn_groups(tmp_path, *changes)
    (partition,), (participation,) = partition_pictures(groups), participation_pictures(groups)
    assert partition.name == "partition"
    counts = groups[0].runs[0].partition_counts[1].sum(axis=1)
    assert partition.caption == f"Partition, seed 0: 8 clients, {counts.min()} to {counts.max()} samples each."
    assert participation.caption == "Participation, seed 0."


def test_each_world_has_its_partition(tmp_path):
    pictures = partition_pictures(drawn_groups(tmp_path, *({"partition.alpha": a} for a in (0.1, 0.5))))
    assert [picture.name for picture in pictures] == ["partition_1", "partition_2"]
    assert pictures[1].caption.startswith("Partition of alpha=0.5, seed 0")


def test_the_last_picture_says_that_there_are_more(tmp_path):
    pictures = partition_pictures(drawn_groups(tmp_path, *({"partition.alpha": a / 10} for a in range(1, 9))))
    assert [" of 8 are drawn" in picture.caption for picture in pictures] == [False] * 5 + [True]


@pytest.fixture
def ring(tmp_path):
    """Two methods of one scenario, the participation file of the second."""
    groups = drawn_groups(tmp_path, {"algorithm.name": "fedavg"}, {"algorithm.name": "sfl"})
    return groups, groups[1].runs[0].path / "participation.jsonl"


def test_the_same_cohort_in_another_order_is_the_same_participation(ring):
    groups, path = ring
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    keys = ("cohort", "draws", "received", "steps")
    turned = [row | {key: row[key][::-1] for key in keys} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in turned))
    assert len(participation_pictures(groups)) == 1


def test_a_method_that_samples_itself_has_a_separate_picture(ring):
    groups, path = ring
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    other = [row | {"cohort": [(client + 1) % 8 for client in row["cohort"]]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in other))
    captions = [picture.caption for picture in participation_pictures(groups)]
    assert captions == ["Participation of FedAvg, seed 0.", "Participation of SFL, seed 0."]


def test_runs_without_records_have_no_pictures(tmp_path):
    path = write_run(tmp_path / "a", rows_of([0.1]))
    (path / "partition_counts.json").unlink()
    (path / "participation.jsonl").unlink()
    groups = group_runs([load_run(path)])
    assert partition_pictures(groups) == participation_pictures(groups) == []
    assert partition_drawer(groups) is None


def test_the_partition_is_that_of_the_run(tmp_path):
    groups = drawn_groups(tmp_path, {"partition.alpha": 0.3})
    draw = partition_drawer(groups)
    np.testing.assert_array_equal(draw.keywords["counts"], groups[0].runs[0].partition_counts[1])
