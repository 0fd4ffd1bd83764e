"""SIGTERM, Ctrl-C and killed drivers: a checkpoint, the command to resume, exit code 1, no remaining process."""

import os
import re
import shlex
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import yaml
from ray.exceptions import ActorDiedError

import raylfl
from raylfl.cli import main
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import RaylflError
from raylfl.runtime.ray import cluster as ray_cluster
from raylfl.runtime.ray import remote
from raylfl.runtime.ray.remote import RemoteRun
from tests.runtime.faults import actors, alive, family, finished, outcome, rounds_of, wait_until
from tests.runtime.tiny import LONG

RAY = ["runtime.backend=ray", "runtime.cpus_per_worker=0.5", "runtime.object_store_mb=80"]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(yaml.safe_dump({**LONG, "logging": {"report": False, "dir": str(tmp_path / "runs"), "id": "it"}}))
    return path


def wait_for_rounds(process, folder, count):
    """Waits until this many rounds are recorded."""

    def there():
        assert process.poll() is None, process.communicate()
        return rounds_of(folder) >= count

    wait_until(there, f"{count} rounds")


def check_that_it_resumes(folder, err):
    """Checks that the printed command resumes the run, with few rounds left, to the bits of an undisturbed run."""
    told = re.search(r"raylfl resume (\S+)", err)
    assert told is not None, err
    assert shlex.split(told.group(1)) == [str(folder)]
    done = int(re.search(r"stopped before round (\d+)", err).group(1))
    assert (folder / "checkpoints" / f"round_{done:06d}").is_dir()
    assert rounds_of(folder) == done
    text = (folder / "config.yaml").read_text().replace(f"rounds: {LONG['rounds']}", f"rounds: {done + 3}")
    (folder / "config.yaml").write_text(text)  # rounds may only be raised: a run of few rounds
    resumed = raylfl.resume(folder, ["runtime.backend=local"], trust=True)  # the config was changed by hand
    clean = raylfl.run(yaml.safe_load(text), ["runtime.backend=local", "logging.id=clean"])
    assert outcome(resumed.run_dir) == outcome(clean.run_dir)


def interrupted(there, numbers, *arguments):
    """The exit code of a command in this process, which gets these signals, a second apart, once `there()` is true."""

    def strike():
        wait_until(there, "moment of the signal")
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(1.0)

    with ThreadPoolExecutor(1) as other:
        struck = other.submit(strike)
        code = main(["run", *arguments])
        struck.result()
    return code


def test_sigterm_ends_a_local_run_after_its_round_with_a_checkpoint(config, tmp_path, capfd):
    folder = tmp_path / "runs" / "tiny" / "it"
    assert interrupted(lambda: rounds_of(folder) >= 3, [signal.SIGTERM], str(config)) == 1
    err = capfd.readouterr().err
    assert len(err.strip().splitlines()) == 2
    assert "Traceback" not in err
    check_that_it_resumes(folder, err)


@pytest.fixture
def begun(monkeypatch):
    """`begun(rows, **of_cluster)`: (a run on stand-ins for Ray whose server calls `rows`, what it does to its actors).

    The cluster has these further attributes.
    """

    def make(rows, **of_cluster):
        done = []
        server = SimpleNamespace(
            stop=SimpleNamespace(remote=lambda: done.append("stopped")),
            rows=SimpleNamespace(options=lambda **_: SimpleNamespace(remote=rows)),
        )
        group = SimpleNamespace(server=server, workers=[], nodes=lambda: 1, reservation=None)
        group.dismiss = lambda: done.append("dismissed")
        cluster = SimpleNamespace(ready=lambda: None, notes=[], lost=lambda: None, silent=False, check=lambda: True)
        cluster.take_actors = lambda *arguments: done.append("taken") or group
        vars(cluster).update(of_cluster)
        config, setup = SimpleNamespace(runtime=RuntimeConfig()), SimpleNamespace(assigned=False)
        experiment = SimpleNamespace(config=config, setup=setup, assigned=False)
        experiment.on = experiment.placed = lambda *counts: experiment
        monkeypatch.setattr("raylfl.runtime.ray.stored.StoredExperiment.put", lambda experiment, workers: experiment)
        monkeypatch.setattr("raylfl.runtime.ray.remote.bundles_here", lambda: [{}])
        monkeypatch.setattr("ray.put", lambda value: value)
        run_dir = SimpleNamespace(path="run", log=lambda text: None)
        return RemoteRun(cluster, experiment, run_dir, False, False), cluster, done

    return make


def test_ctrl_c_before_the_first_round_ends_at_once(begun, capfd):
    """It does not wait for a server that is still starting; the processes are dismissed."""

    def rows(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return iter(())

    run, _, done = begun(rows)
    with pytest.raises(KeyboardInterrupt):
        list(run.rows())
    assert done == ["taken", "dismissed"]
    assert "stopping after this round" not in capfd.readouterr().err


def test_no_actors_are_started_or_dismissed_on_a_cluster_whose_head_does_not_answer(begun):
    """Such a call would wait until Ray ends the process, without the command that continues the run."""

    def lost(*arguments):
        raise ActorDiedError

    def silence():
        cluster.silent = True
        raise RaylflError("the Ray cluster has not answered")

    run, cluster, done = begun(lost, await_answer=silence)
    with pytest.raises(RaylflError, match=r"^the Ray cluster has not answered$"):
        list(run.rows())
    assert done == ["taken"]


def test_the_wait_for_the_head_of_a_given_cluster_ends_with_an_error(monkeypatch):
    answers = iter([True, False, True])
    monkeypatch.setattr(ray_cluster, "listens", lambda address, seconds: next(answers, False))
    monkeypatch.setattr(ray_cluster, "time", SimpleNamespace(monotonic=iter(range(20, 999, 20)).__next__, sleep=id))
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="far:1"))
    cluster = ray_cluster.Cluster(RuntimeConfig())
    cluster._connection = ray_cluster.Connection(ours=True)
    assert [cluster.check(), cluster.check()] == [True, False]
    cluster.await_answer()
    assert not cluster.silent
    with pytest.raises(RaylflError, match="the Ray cluster at far:1 has not answered for 30 s"):
        cluster.await_answer()
    assert cluster.silent


def test_news_of_workers_that_was_requested_in_a_long_round_is_printed_when_the_round_ends(monkeypatch, capfd):
    known = {"row": 7, "news": ["worker 2 was lost"]}
    arrived = set()
    stream = iter(["row"])

    def request():
        arrived.update([stream, *known])
        return "news"

    monkeypatch.setattr(remote, "SILENT_SECONDS", -1.0)
    monkeypatch.setattr("ray.wait", lambda references, timeout: ([one for one in references if one in arrived], []))
    monkeypatch.setattr("ray.get", known.__getitem__)
    run = RemoteRun(SimpleNamespace(check=lambda: None), None, None, False, False)
    run._group = SimpleNamespace(server=SimpleNamespace(news=SimpleNamespace(remote=request)))
    assert list(run._items(stream)) == [7]
    assert capfd.readouterr().err == "raylfl: worker 2 was lost\n"


def test_a_second_ctrl_c_ends_at_once_even_in_a_hanging_client(tmp_path, config, capfd):
    hanging = ["model={class_path: tests.runtime.tiny.Cursed, init_args: {hangs: 13}}", "participation.name=full"]
    folder, log = tmp_path / "runs" / "tiny" / "it", tmp_path / "runs" / "tiny" / "it" / "log.txt"
    begun = lambda: log.exists() and "rounds on local" in log.read_text()  # noqa: E731
    assert interrupted(begun, [signal.SIGINT] * 2, str(config), *hanging) == 1
    err = capfd.readouterr().err
    assert "stopping after this round" in err
    assert f"interrupted\nraylfl: raylfl resume {folder} continues it" in err


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(lambda process: os.killpg(process.pid, signal.SIGINT), id="Ctrl-C to all, as a terminal does it"),
        pytest.param(lambda process: process.terminate(), id="SIGTERM to the driver", marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_on_ray_killed_resumed_and_stopped_during_rounds_continues_each_time(command, config, tmp_path, stop):
    """The driver gets SIGKILL; the resumed run, on a Ray of another size, loses its worker, which is one line without
    Ray's own messages, and is stopped; the rest runs in process.
    """
    gate, folder = tmp_path / "gate", tmp_path / "runs" / "tiny" / "it"
    gate.mkdir()
    gated = f"model={{class_path: tests.runtime.tiny.Gated, init_args: {{folder: {gate}}}}}"
    asked = ["runtime.step=autograd", gated]  # each step asks for the gate
    process = command("run", str(config), *RAY, *asked, "checkpoint.every=2", "runtime.workers=1")
    processes = in_mid_round(process, folder, gate)
    agents = [p for p in processes if "Agent" in p.name()]  # they take a minute to notice the end of their raylet
    process.kill()
    process.wait()
    assert alive([p for p in processes if p not in agents]) == []
    for agent in alive(agents, seconds=0):
        agent.kill()
    (gate / "closed").unlink()

    process = command("resume", str(folder), "runtime.object_store_mb=90")
    in_mid_round(process, folder, gate)
    actors("WorkerActor", process.pid)[0].kill()
    (gate / "closed").unlink()
    processes = in_mid_round(process, folder, gate)
    stop(process)
    said = check_that_it_ends(process, processes, gate)
    assert said.count("was lost") == 1
    assert "raylet" not in said
    check_that_it_resumes(folder, said)


def in_mid_round(process, folder, gate):
    """The processes of a run on Ray that has done three more rounds, and waits for a client in the next."""
    wait_for_rounds(process, folder, rounds_of(folder) + 3)
    (gate / "waiting").unlink(missing_ok=True)
    (gate / "closed").touch()
    wait_until((gate / "waiting").exists, "client at work")
    processes = family(process)
    assert len(processes) > 5  # the cluster's own, the server's and the workers'
    return processes


def check_that_it_ends(process, processes, gate):
    """Checks that the run ends after the current round, with exit code 1 and without processes; returns its output."""
    said = process.stderr.readline()
    while "stopping after this round" not in said:
        assert process.poll() is None, said
        said += process.stderr.readline()
    (gate / "closed").unlink()
    code, out, err = finished(process)
    assert code == 1
    assert "Traceback" not in err
    assert alive(processes) == []
    return said + out + err
