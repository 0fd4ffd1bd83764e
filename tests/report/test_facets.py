"""The selection of settings that share a picture."""

from raylfl.report.derived import MAX_LINES, facets, scenario_keys, split
from raylfl.report.runs import group_runs, load_run
from tests.report.synthetic import rows_of, write_run


def groups_of(folder, *changes):
    """A group for each change; the i-th ends at accuracy (i + 1) / 100."""
    paths = [write_run(folder / str(i), rows_of([(i + 1) / 100]), change) for i, change in enumerate(changes)]
    return group_runs([load_run(path) for path in paths])


def test_methods_in_several_scenarios_make_a_facet_of_each_scenario(tmp_path):
    changes = [{"partition.alpha": a, "algorithm.name": m} for a in (0.1, 0.5) for m in ("fedavg", "focus", "sfl")]
    parts = facets(groups_of(tmp_path, *changes))
    assert [part.label for part in parts] == ["alpha=0.1", "alpha=0.5"]
    assert [list(part.names.values()) for part in parts] == [["FedAvg", "FOCUS", "SFL"]] * 2


def test_a_world_is_labelled_by_its_keys_and_not_by_keys_that_follow_from_them(tmp_path):
    cnn = {"model.class_path": "raylfl.models.Cnn", "model.init_args": {"classes": 10, "width": 32, "norm": "group"}}
    mixed = {"partition": {"name": "classes", "classes": 2, "balance": "none"}}
    scenarios = [{}, {"partition.alpha": 0.5}, mixed, {**mixed, **cnn}]
    changes = [{**scenario, "algorithm.name": m} for scenario in scenarios for m in ("fedavg", "focus")]
    assert [part.label for part in facets(groups_of(tmp_path, *changes))] == [
        "model=Cnn",
        "model=LeNet5, partition=classes",
        "model=LeNet5, partition=dirichlet, alpha=0.1",
        "model=LeNet5, partition=dirichlet, alpha=0.5",
    ]


def test_a_key_that_follows_from_the_method_makes_no_scenario(tmp_path):
    groups = groups_of(
        tmp_path,
        {"algorithm.name": "fedavg"},
        {"algorithm.name": "focus", "participation.name": "weighted", "participation.replace": True},
    )
    assert scenario_keys(groups) == []
    (part,) = facets(groups)
    assert list(part.names.values()) == ["FedAvg", "FOCUS"]


def test_one_method_in_several_worlds_is_one_picture(tmp_path):
    groups = groups_of(tmp_path, *({"partition.alpha": a} for a in (0.1, 0.3, 0.5)))
    (part,) = facets(groups)
    assert list(part.names.values()) == ["alpha=0.1", "alpha=0.3", "alpha=0.5"]


def test_of_too_many_settings_the_best_of_each_method_is_shown(tmp_path):
    changes = [{"algorithm.name": m, "local.lr": lr / 100} for m in ("fedavg", "sfl") for lr in range(1, 6)]
    (part,) = facets(groups_of(tmp_path, *changes))
    best, note = part.best("test/accuracy", 1)
    assert [best.names[group] for group in best.groups] == ["FedAvg, lr=0.05", "SFL, lr=0.05"]
    assert "10 settings" in note
    few, nothing = split(part.groups[:3], [])[0].best("test/accuracy", 1)
    assert (len(few.groups), nothing) == (3, "")


def test_of_too_many_settings_of_one_method_the_best_few_are_shown(tmp_path):
    changes = [{"local.lr": lr / 100} for lr in range(1, MAX_LINES + 3)]
    part = split(groups_of(tmp_path, *changes), [])[0]
    best, _ = part.best("test/accuracy", 1)
    assert [group.setting["local.lr"] for group in best.groups] == [lr / 100 for lr in range(3, MAX_LINES + 3)]


def test_worlds_whose_labels_look_alike_stay_apart(tmp_path):
    steps = ([1, 2, 3, 4, 5], [1, 2, 9, 4, 5])
    changes = [{"local.steps": {"list": own}, "algorithm.name": m} for own in steps for m in ("fedavg", "sfl")]
    parts = facets(groups_of(tmp_path, *changes))
    assert len({part.label for part in parts}) == len(parts) == 2
