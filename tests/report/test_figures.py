"""Blocks of panels: their lines and captions."""

import numpy as np

from raylfl.report.derived import Facet
from raylfl.report.figures import Look, composed, convergence, costs, diagnostics, heat_map, trends, tuning
from raylfl.report.runs import group_runs, load_run
from raylfl.report.style import method_styles
from tests.report.synthetic import rows_of, write_run


def look_at(metric="test/accuracy", target=None):
    return Look(metric, 1, target, method_styles(["fedavg", "focus"]))


def part_of(folder, *changes, rounds=3):
    values = np.linspace(0.1, 0.9, rounds).tolist()
    for index, change in enumerate(changes):
        write_run(folder / str(index), rows_of(values), change)
    return Facet.of("", group_runs([load_run(folder / str(index)) for index in range(len(changes))]))


def test_a_comparison_shows_the_metric_and_both_losses_under_one_legend(tmp_path):
    block = convergence(part_of(tmp_path, {}, {"algorithm.name": "focus"}), look_at(target=0.5))
    assert [panel.title for panel in block.panels] == [
        "test accuracy against communication rounds",
        "test loss against communication rounds",
        "training loss against communication rounds",
    ]
    assert [label for label, _ in block.legend] == ["FedAvg", "FOCUS"]
    assert block.caption == "Dotted: test accuracy ≥ 50\u202f%."


def test_a_loss_that_is_the_main_metric_is_shown_once(tmp_path):
    block = convergence(part_of(tmp_path, {}), look_at("train/loss"))
    assert [panel.title.split(" against")[0] for panel in block.panels] == ["training loss", "test loss"]


def test_the_caption_names_what_was_averaged(tmp_path):
    part = part_of(tmp_path, {"seed": 0}, {"seed": 1}, rounds=400)
    assert "bands: from the lowest to the highest seed." in convergence(part, look_at()).caption
    assert "averages over 8 measured rounds" in convergence(part, look_at()).caption
    assert "averages" not in diagnostics(part, look_at()).caption


def test_costs_are_one_panel_each_and_none_if_nothing_was_counted(tmp_path):
    block = costs(part_of(tmp_path / "a", {}), look_at())
    assert [panel.title.split("against ")[1] for panel in block.panels] == [
        "floats sent",
        "local steps",
        "virtual time (s)",
    ]
    write_run(tmp_path / "b", [{"round": 0, "test/accuracy": 0.1}])
    bare = Facet.of("", group_runs([load_run(tmp_path / "b")]))
    assert costs(bare, look_at()) is None
    assert diagnostics(bare, look_at()) is None


def test_a_legend_names_only_the_settings_that_have_a_line(tmp_path):
    values = [0.1, 0.5]
    write_run(tmp_path / "a", [{**row, "algo/y_norm": 1.0} for row in rows_of(values)], {"algorithm.name": "focus"})
    write_run(tmp_path / "b", [{k: row[k] for k in ("round", "test/accuracy")} for row in rows_of(values)])
    part = Facet.of("", group_runs([load_run(tmp_path / name) for name in "ab"]))
    assert [label for label, _ in convergence(part, look_at()).legend] == ["FedAvg", "FOCUS"]
    assert [label for label, _ in diagnostics(part, look_at()).legend] == ["FOCUS"]


def test_a_composed_figure_holds_every_panel_and_the_legend(tmp_path):
    block = convergence(part_of(tmp_path, {}, {"algorithm.name": "focus"}), look_at())
    figure = composed(block)
    assert [ax.get_ylabel() for ax in figure.axes] == ["test accuracy (%)", "test loss", "training loss"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg", "FOCUS"]


def test_profiles_and_maps_appear_only_where_something_was_varied(tmp_path):
    part = part_of(tmp_path, {}, {"algorithm.name": "focus"})
    assert tuning(part.groups, look_at()) == trends(part.groups, look_at()) == []
    assert heat_map([part], look_at()) is None


def test_tuned_keys_and_keys_of_the_world_have_profiles_of_their_own(tmp_path):
    changes = [{"local.lr": lr, "partition.alpha": alpha} for lr in (0.01, 0.1) for alpha in (0.1, 0.5, 1.0)]
    groups = part_of(tmp_path, *changes).groups
    (rates,), (scenarios,) = tuning(groups, look_at()), trends(groups, look_at())
    assert (rates.name, scenarios.name) == ("profile_local.lr", "profile_partition.alpha")
    assert [panel.heading for panel in rates.panels] == ["alpha=0.1", "alpha=0.5", "alpha=1"]
    assert len(scenarios.panels) == 1
    for block in (rates, scenarios):
        composed(block).savefig(tmp_path / f"{block.name}.png")
