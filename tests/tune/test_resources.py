"""The resources of a trial, and the arithmetic in refusals."""

import pytest

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.runtime.ray.resources import capacity, count_workers
from raylfl.tune.resources import bundles, choose_bundles


def test_a_trial_has_a_bundle_for_its_server_and_one_per_worker():
    two = bundles(RuntimeConfig(cpus_per_worker=2, workers=3))
    assert two == [{"CPU": 0.0}, {"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 2.0}]
    assert bundles(RuntimeConfig(gpus_per_worker=0.5)) == [{"CPU": 0.0}, {"CPU": 1.0, "GPU": 0.5}]
    assert bundles(RuntimeConfig(backend="local", cpus_per_worker=0.5)) == [{"CPU": 0.5}]
    assert bundles(RuntimeConfig(backend="local"), processes=3) == [{"CPU": 1.0}] * 3


def test_bundles_are_on_one_node_and_parts_of_a_gpu_do_not_reach_across_two():
    trial = bundles(RuntimeConfig(cpus_per_worker=0.5, workers=2))
    assert capacity(trial, [{"CPU": 2.0}]) == 2
    assert capacity(trial, [{"CPU": 2.9}]) == 2
    three = bundles(RuntimeConfig(cpus_per_worker=3, workers=2))
    assert capacity(three, [{"CPU": 4.0}, {"CPU": 4.0}]) == 1  # one worker on each
    assert capacity(bundles(RuntimeConfig(cpus_per_worker=5)), [{"CPU": 4.0}, {"CPU": 4.0}]) == 0
    trial = bundles(RuntimeConfig(gpus_per_worker=0.6, cpus_per_worker=1))
    assert capacity(trial, [{"CPU": 8.0, "GPU": 2.0}]) == 2  # not three: 3 x 0.6 = 1.8
    assert capacity(bundles(RuntimeConfig(gpus_per_worker=0.25, workers=2)), [{"CPU": 8.0, "GPU": 1.0}]) == 2


@pytest.mark.parametrize(
    ("settings", "concurrent", "processes"),
    [(9, None, 1), (4, None, 2), (2, None, 4), (1, None, 5), (9, 1, 5), (9, 2, 4), (9, 8, 1), (2, 8, 4)],
)
def test_seeds_get_processes_of_their_own_where_all_settings_that_run_at_once_leave_room(
    settings, concurrent, processes
):
    """Five seeds a setting on eight CPUs."""
    local = RuntimeConfig(backend="local")
    assert len(choose_bundles(local, 5, settings, concurrent, [{"CPU": 8.0}])) == processes


def test_the_seeds_of_runs_with_workers_take_turns():
    assert len(choose_bundles(RuntimeConfig(workers=4), 2, 3, 2, [{"CPU": 12.0}])) == 5


def test_what_cannot_fit_is_refused_with_the_arithmetic():
    with pytest.raises(BadConfig, match=r"4 x 1 CPUs = 4 and 4 x 1 GPUs = 4, but the cluster has 8 CPUs and 2 GPUs"):
        count_workers(RuntimeConfig(workers=4, gpus_per_worker=1), 1, [{"CPU": 8.0, "GPU": 2.0}])
    with pytest.raises(BadConfig, match=r"8 CPUs on 2 nodes: at most 0 workers fit"):
        choose_bundles(RuntimeConfig(workers=1, cpus_per_worker=5), 1, 1, None, [{"CPU": 4.0}, {"CPU": 4.0}])


@pytest.mark.parametrize(
    ("nodes", "share"),
    [
        ([{"CPU": 8.0}], 0.0),
        ([{"CPU": 8.0, "GPU": 1.0}], 1 / 8),
        ([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 3.0}], 1 / 4),
        ([{"CPU": 2.0, "GPU": 4.0}], 1.0),
    ],
)
def test_trials_share_the_gpus_in_as_many_parts_as_fill_the_cpus(nodes, share):
    (bundle,) = choose_bundles(RuntimeConfig(backend="local"), 1, 8, None, nodes)
    assert bundle.get("GPU", 0.0) == pytest.approx(share)
    (fixed,) = choose_bundles(RuntimeConfig(backend="local", gpus_per_worker=0.0), 1, 8, None, nodes)
    assert "GPU" not in fixed
