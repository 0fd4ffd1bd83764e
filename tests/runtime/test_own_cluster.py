"""A Ray started for the run: priorities of its processes, unusual places for its files, and its death."""

import os
import re
import socket
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import psutil
import pytest

import raylfl
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.runtime.ray import connection
from raylfl.runtime.ray.connection import listens, ray_folder, store_bytes
from tests.runtime.faults import actors, log_of, outcome
from tests.runtime.tiny import FOCUS

SMALL = ["runtime.backend=ray", "runtime.workers=1", "runtime.cpus_per_worker=0.5", "runtime.object_store_mb=80"]
USUAL_PORTS = (6379, 8265, 10001, 52365)  # of Ray's head, dashboard, client server and agents
ROUNDS = ["rounds=12", "checkpoint.every=3", "logging.report=false"]


@contextmanager
def ports_taken():
    """Ray's usual ports are held, by this process where no other one does."""
    with ExitStack() as stack:
        for port in USUAL_PORTS:
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield [port for port in USUAL_PORTS if listens(f"127.0.0.1:{port}")]


def struck_run(folder, part):
    """The record of a run in an unusual place whose Ray loses this process after round 4.

    The place: TMPDIR is a path too long for sockets, and other programs hold Ray's usual ports.
    """
    seen = SimpleNamespace(nice={}, killed=[], said=[], servers=[], ports=[])
    slow = folder / "slow"  # while it exists, rounds take a second, so that the old server does not finish all of them

    def watch(progress):
        seen.said += progress.messages
        if progress.metrics["round"] == 4 and not seen.killed:
            slow.touch()
            seen.nice = {name: [p.nice() for p in actors(name)] for name in ("WorkerActor", "ServerActor")}
            seen.servers = actors("ServerActor")
            seen.killed = [child for child in psutil.Process().children() if child.name() == part]
            for process in seen.killed:
                process.kill()
        elif seen.killed and actors("ServerActor") != seen.servers:
            slow.unlink(missing_ok=True)

    with pytest.MonkeyPatch.context() as patch, ports_taken() as seen.ports:
        patch.setenv("TMPDIR", str(folder / ("long" * 25)))
        result = raylfl.run(gated(folder), [f"logging.dir={folder}", *ROUNDS, *SMALL], watch)
    return seen, result


def gated(folder):
    model = {"class_path": "tests.runtime.tiny.Gated", "init_args": {"folder": str(folder)}}
    return {**FOCUS, "model": model}


@pytest.fixture(scope="module")
def struck(tmp_path_factory):
    return struck_run(tmp_path_factory.mktemp("struck"), "gcs_server")


def test_workers_have_the_commands_priority_and_neither_a_long_path_nor_taken_ports_matter(struck):
    """With a lower priority a build or a second run on the same machine starves them."""
    seen, result = struck
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert seen.nice == {"WorkerActor": [mine], "ServerActor": [mine]}
    assert f"Ray's files go to {ray_folder.__globals__['OTHER_FOLDERS'][0]}/ray" in seen.said[0]
    assert "is too long a path for Ray's sockets" in seen.said[0]
    assert seen.ports == list(USUAL_PORTS)
    assert len(result.metrics) == 12
    assert not any("port" in line for line in seen.said)


def check_that_it_went_on(seen, result, folder):
    assert len(seen.killed) == 1
    assert "has ended unexpectedly: starting a new Ray" in log_of(result.run_dir)
    assert re.search(r"resumed at round [369]\n", log_of(result.run_dir))
    undisturbed = raylfl.run(gated(folder), [f"logging.dir={folder}", *ROUNDS])
    assert outcome(result.run_dir) == outcome(undisturbed.run_dir)


def test_a_run_whose_own_ray_loses_its_head_continues_with_the_same_bits_on_a_new_ray(struck, tmp_path):
    check_that_it_went_on(*struck, tmp_path)


@pytest.mark.exhaustive
def test_a_run_whose_own_ray_loses_its_raylet_continues(tmp_path):
    check_that_it_went_on(*struck_run(tmp_path, "raylet"), tmp_path)


# -- places for Ray's files ----------------------------------------------------------------------------------------


def test_a_folder_that_is_not_writable_is_replaced_and_reported_or_the_remedy_is_named(monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/tmp")
    assert ray_folder() == (None, [])  # left to Ray
    monkeypatch.setenv("TMPDIR", "/proc")  # no folder can be made there, even by root
    folder, (note,) = ray_folder()
    assert str(folder) == "/tmp/ray"
    assert note.startswith("Ray's files go to /tmp/ray: /proc/ray cannot be written (")
    monkeypatch.setattr(connection, "OTHER_FOLDERS", ("/proc",))
    with pytest.raises(BadConfig, match=r"TMPDIR=/proc: .* set RAY_TMPDIR to a short path that can be written"):
        ray_folder()


def test_an_object_store_that_does_not_fit_into_shared_memory_is_reported(monkeypatch):
    monkeypatch.setattr("psutil.disk_usage", lambda path: SimpleNamespace(free=90 * 2**20))
    assert store_bytes(RuntimeConfig(object_store_mb=80)) == (80 * 2**20, [])
    size, (note,) = store_bytes(RuntimeConfig(object_store_mb=100))
    assert size == 100 * 2**20
    assert note.startswith("/dev/shm has only 90 MiB free: Ray keeps objects in files on disk")
