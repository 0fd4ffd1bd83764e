"""The number of workers for which a cluster has resources; requests for a run's bundles on a stand-in for Ray."""

from types import SimpleNamespace

import pytest

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig, RaylflError
from raylfl.runtime.ray import reservation
from raylfl.runtime.ray.reservation import SETTLE_SECONDS, Reservation
from raylfl.runtime.ray.resources import count_workers, workers_that_fit


class Group:
    """A placement group; nodes: the node of each bundle, empty if it has none."""

    def __init__(self, bundles, strategy):
        self.cpus, self.strategy = [int(bundle["CPU"]) for bundle in bundles], strategy
        self.bundle_count, self.nodes = len(bundles), [""] * len(bundles)

    def ready(self):
        return self


class FakeRay:
    """A cluster of nodes with CPUs: node -> [total, used by others]; bundles of a group are placed together."""

    def __init__(self, nodes):
        self.cpus, self.groups, self.now = nodes, [], 0.0

    def free(self):
        out = {node: total - used for node, (total, used) in self.cpus.items()}
        for group in self.groups:
            for node, cpus in zip(group.nodes, group.cpus, strict=True):
                if node in out:
                    out[node] -= cpus
        return out

    def placement_group(self, bundles, strategy):
        self.groups.append(Group(bundles, strategy))
        return self.groups[-1]

    def settle(self, seconds=1.0):
        """Lets time pass, and places groups in the order of their requests."""
        self.now += seconds
        for group in self.groups:
            group.nodes = [node if node in self.cpus else "" for node in group.nodes]
            free, nodes = self.free(), list(group.nodes)
            for k in [k for k, node in enumerate(nodes) if not node]:
                nodes[k] = next((node for node, cpus in free.items() if cpus >= group.cpus[k]), "")
                if nodes[k]:
                    free[nodes[k]] -= group.cpus[k]
            if all(nodes):
                group.nodes = nodes

    def wait(self, references, timeout, num_returns=1):
        return [group for group in references if all(group.nodes)], []


@pytest.fixture
def cluster(monkeypatch):
    """`cluster(**nodes)`: a FakeRay in place of Ray."""

    def made(**nodes):
        fake = FakeRay(nodes)
        ray = SimpleNamespace(
            wait=fake.wait,
            nodes=lambda: [{"NodeID": node, "Alive": True} for node in fake.cpus],
            available_resources=lambda: {"CPU": float(sum(fake.free().values()))},
        )
        totals = lambda: [{"CPU": float(total)} for total, _ in fake.cpus.values()]  # noqa: E731
        table = lambda group: {"bundles_to_node_id": dict(enumerate(group.nodes))}  # noqa: E731
        monkeypatch.setattr(reservation, "ray", ray)
        monkeypatch.setattr(reservation, "nodes_of_cluster", totals)
        monkeypatch.setattr(reservation, "placement_group", fake.placement_group)
        monkeypatch.setattr(reservation, "placement_group_table", table)
        monkeypatch.setattr(reservation, "remove_placement_group", lambda group: fake.groups.remove(group))
        monkeypatch.setattr(reservation, "time", SimpleNamespace(monotonic=lambda: fake.now, sleep=fake.settle))
        return fake

    return made


def steps(fake, reserved, count, seconds=1.0):
    """The numbers of reserved bundles after each of `count` steps."""
    out = []
    for _ in range(count):
        reserved.update()
        fake.settle(seconds)
        out.append(len(reserved.bundles()))
    return out


@pytest.mark.parametrize("workers", [6, None])
def test_a_run_starts_with_the_room_there_is_and_takes_nodes_that_join(cluster, workers):
    """A given number of workers is requested even without room, so that an autoscaler sees it."""
    fake = cluster(a=[2, 0])
    reserved = Reservation(RuntimeConfig(workers=workers), 6)
    assert steps(fake, reserved, 4)[-1] == 2
    assert len(fake.groups) == (6 if workers else 2)
    fake.cpus["b"] = [3, 0]
    assert steps(fake, reserved, 5)[-1] == 5
    fake.cpus["c"] = [8, 0]
    assert steps(fake, reserved, 5)[-1] == 6
    assert [group.bundle_count for group in fake.groups] == [1] * 6
    assert not reserved.update()
    reserved.release()
    assert fake.groups == []


@pytest.mark.parametrize("workers", [3, None])
def test_the_start_waits_for_what_others_use_and_then_does_without(cluster, monkeypatch, workers):
    fake, lines = cluster(a=[4, 3]), []
    monkeypatch.setattr(reservation.ray, "wait", lambda *a, **k: fake.settle(0.5) or fake.wait(*a, **k))
    reserved = Reservation(RuntimeConfig(workers=workers), 3)
    reserved.wait(lines.append)
    assert (reserved.size, len(lines)) == (1, 1)
    assert SETTLE_SECONDS < fake.now < SETTLE_SECONDS + 3
    assert f"runtime.workers={workers or 'null'} needs {workers or 1} x 1 CPUs" in lines[0]
    assert "(0 CPUs free); without room for one, the run ends after 180 s" in lines[0]
    fake.cpus["a"][1] = 0  # the others have ended
    assert steps(fake, reserved, 6)[-1] == 3


def test_a_start_with_room_for_all_waits_for_nobody(cluster, monkeypatch):
    fake = cluster(a=[2, 0], b=[2, 0])
    monkeypatch.setattr(reservation.ray, "wait", lambda *a, **k: fake.settle(0.1) or fake.wait(*a, **k))
    reserved = Reservation(RuntimeConfig(), 4)
    reserved.wait(pytest.fail)
    assert reserved.size == 4
    assert fake.now < 1


def test_bundles_that_have_no_place_any_more_are_given_up_and_requested_anew(cluster):
    """Ray would try to move them without a pause, and start no other group of the cluster meanwhile."""
    fake = cluster(a=[2, 0], b=[2, 0])
    reserved = Reservation(RuntimeConfig(workers=4), 4)
    assert steps(fake, reserved, 2)[-1] == 4
    before = set(fake.groups)
    del fake.cpus["b"]
    assert steps(fake, reserved, int(SETTLE_SECONDS) + 5)[-1] == 2
    assert (reserved.size, len(before & set(fake.groups)), len(fake.groups)) == (2, 2, 4)
    fake.cpus["c"] = [1, 0]
    assert steps(fake, reserved, 3)[-1] == 3


@pytest.mark.parametrize("started", [False, True])
def test_without_room_for_a_worker_the_run_ends_after_the_wait(cluster, started):
    """Before its first round with a BadConfig, which deletes the run directory, and later never with one."""
    fake = cluster(a=[1, 0])
    reserved = Reservation(RuntimeConfig(wait=30.0), 4)
    if started:
        assert steps(fake, reserved, 3)[-1] == 1
    fake.cpus = {"head": [0, 0]}
    lack = r"^no room for a worker for 30 s \(runtime.wait\): runtime.workers=null needs 1 x 1 CPUs = 1, but the "
    with pytest.raises(RaylflError, match=lack) as error:
        steps(fake, reserved, 60)
    assert isinstance(error.value, BadConfig) != started
    assert 30 <= fake.now <= 30 + 2 * SETTLE_SECONDS


def test_with_no_wait_a_cluster_that_is_too_small_is_refused_at_once(cluster):
    cluster(a=[2, 0])
    with pytest.raises(BadConfig, match=r"needs 3 x 1 CPUs = 3, but the cluster has 2 CPUs: at most 2 workers fit"):
        Reservation(RuntimeConfig(workers=3, wait=0.0), 3).update()


def test_workers_bound_to_their_nodes_are_reserved_together_and_a_missing_node_is_named(cluster):
    fake = cluster(a=[4, 0])
    fake.settle = lambda seconds: setattr(fake, "now", fake.now + seconds)  # Ray places no bundle without its node
    reserved = Reservation(RuntimeConfig(wait=5.0), 2, ["red", "blue"])
    with pytest.raises(BadConfig, match=r"on nodes blue, red, but the cluster has no node of that name: start it with"):
        steps(fake, reserved, 9)


def test_a_run_ends_if_the_nodes_of_some_data_are_lost_although_others_are_there(cluster):
    fake = cluster(a=[4, 0])
    totals, red = reservation.nodes_of_cluster, {"red": 1.0}
    reservation.nodes_of_cluster = lambda: [node | red for node in totals()]
    reserved = Reservation(RuntimeConfig(wait=5.0), 2, ["red", "red"])
    assert steps(fake, reserved, 9)[-1] == 2
    red.clear()
    with pytest.raises(RaylflError, match=r"on nodes red, but the cluster has no node of that name") as error:
        steps(fake, reserved, 9)
    assert not isinstance(error.value, BadConfig)


# -- the number of workers for which a cluster has resources ----------------------------------------------------------


def test_resources_that_cannot_fit_are_refused_with_the_arithmetic():
    with pytest.raises(BadConfig, match=r"3 x 2 CPUs = 6, but the cluster has 4 CPUs: at most 2 workers fit"):
        count_workers(RuntimeConfig(workers=3, cpus_per_worker=2.0), 100, [{"CPU": 4.0}])
    with pytest.raises(BadConfig, match=r"1 x 0.5 GPUs = 0.5, but the cluster has 8 CPUs and 0 GPUs"):
        count_workers(RuntimeConfig(gpus_per_worker=0.5), 100, [{"CPU": 8.0}])
    assert count_workers(RuntimeConfig(gpus_per_worker=0.25), 100, [{"CPU": 16.0, "GPU": 2.0}]) == 8
    assert count_workers(RuntimeConfig(gpus_per_worker=1.0), 100, [{"CPU": 16.0, "GPU": 5.0}]) == 5
    assert count_workers(RuntimeConfig(), 3, [{"CPU": 64.0}]) == 3


def test_a_worker_has_its_resources_on_one_node():
    nodes = [{"CPU": 3.0, "GPU": 1.0}] * 3
    assert count_workers(RuntimeConfig(cpus_per_worker=2.0), 100, nodes) == 3
    with pytest.raises(BadConfig, match=r"4 x 2 CPUs = 8, but the cluster has 9 CPUs on 3 nodes: at most 3 workers"):
        count_workers(RuntimeConfig(workers=4, cpus_per_worker=2.0, gpus_per_worker=0.0), 100, nodes)
    with pytest.raises(BadConfig, match=r"9 CPUs and 1.8 GPUs on 3 nodes: at most 0 workers fit"):
        count_workers(RuntimeConfig(gpus_per_worker=1.0), 100, [{"CPU": 3.0, "GPU": 0.6}] * 3)
    assert workers_that_fit(RuntimeConfig(cpus_per_worker=4.0), nodes) == 0
