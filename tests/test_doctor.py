"""`raylfl doctor`: its report on a healthy machine and on each fault."""

import socket
import sys
from importlib import metadata

import pytest

from raylfl.cli import doctor, main
from raylfl.components.extras import install_command
from tests.test_plugins import install

CHECKS = doctor.CHECKS


@pytest.fixture
def examine(tmp_path, monkeypatch, capsys):
    """`raylfl doctor` in an empty directory, with these of its checks (default: all): (exit code, its lines)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def examined(*names):
        checks = tuple(check for check in CHECKS if not names or check.__name__.strip("_") in names)
        monkeypatch.setattr(doctor, "CHECKS", checks)
        code = main(["doctor"])
        return code, capsys.readouterr().out.splitlines()

    return examined


def line_of(lines, *words):
    (line,) = [line for line in lines if all(word in line for word in words)]
    return line


def test_this_machine_has_everything_that_a_default_run_needs(examine):
    code, lines = examine()
    assert code == 0
    assert line_of(lines, "ok       torch ").split()[2] == metadata.version("torch")
    assert "GiB of objects" in line_of(lines, "each run starts its own")
    assert not any("could not be looked at" in line for line in lines)
    assert lines[-1] == "raylfl run digits has all that it needs"


def test_an_absent_package_is_named_with_the_command_that_installs_it(examine, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # not needed by a default run
    code, lines = examine("packages")
    assert (code, lines[-1]) == (0, "raylfl run digits has all that it needs")
    assert line_of(lines, "note", "optuna").endswith(install_command("optuna"))
    monkeypatch.setitem(sys.modules, "ray", None)
    code, lines = examine("packages")
    assert (code, lines[-1]) == (1, "raylfl run digits needs what is missing: ray")
    assert line_of(lines, "missing", " ray ").endswith(install_command("ray"))


def test_data_sets_are_found_below_the_root(examine, monkeypatch, tmp_path):
    (tmp_path / "sets" / "MNIST" / "raw").mkdir(parents=True)
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path / "sets"))
    _, lines = examine("data")
    assert f"mnist in {tmp_path}/sets" in line_of(lines, "ok", "data  ")
    assert "fashion_mnist, cifar10, cifar100, cinic10 not found" in line_of(lines, "note", "RAYLFL_DATA")


def test_a_cluster_that_does_not_answer_an_empty_address_and_a_place_that_cannot_be_written_are_missing(
    examine, monkeypatch
):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAYLFL_RUNS", "/proc/runs")
    code, lines = examine("ray", "folders")
    assert code == 1
    assert "(nothing listens at this address): unset RAY_ADDRESS" in line_of(lines, "missing", "127.0.0.1:1")
    assert line_of(lines, "missing", "/proc/runs").startswith("missing  runs         /proc/runs cannot be written (")
    monkeypatch.setenv("RAY_ADDRESS", "")
    code, lines = examine("ray")
    assert code == 1
    assert "RAY_ADDRESS is empty: unset it" in line_of(lines, "missing  ray cluster")


def test_the_ports_of_another_ray_are_named_with_the_options_for_a_second_one(examine, monkeypatch):
    ports = dict(zip(doctor.PORTS, doctor.free_ports(4), strict=True))
    monkeypatch.setattr(doctor, "PORTS", ports)
    assert "are free for `ray start --head`" in line_of(examine("ports")[1], "ok       ray ports", f"{ports['port']}, ")
    with socket.create_server(("127.0.0.1", ports["dashboard-port"])):
        line = line_of(examine("ports")[1], "note     ray ports")
    assert f" {ports['dashboard-port']} in use here; to start another: ray start --head --dashboard-port=" in line
    assert "--port=" not in line
    monkeypatch.setattr("raylfl.runtime.ray.connection.speaks_grpc", lambda address: True)
    with socket.create_server(("127.0.0.1", ports["port"])):
        line = line_of(examine("ports")[1], "note     ray ports")
    head = f"127.0.0.1:{ports['port']}"
    assert f"which runs join with RAY_ADDRESS={head}; to start another: ray start --head --port" in line


def test_a_gpu_that_torch_cannot_use_is_named(examine, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr(doctor, "NVIDIA", tmp_path)
    assert "(CUDA is missing): install torch's build" in line_of(examine("gpus")[1], "note     gpu")


def test_plug_ins_are_imported_and_broken_ones_named(examine, monkeypatch, tmp_path):
    install(tmp_path / "site", "raylfl-parts", "0.3", {"links": "lost = parts_gone:Lost\n"})
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    code, lines = examine("plug_ins")
    assert code == 0
    assert "links/lost cannot be used" in line_of(lines, "note", "plug-in")


def test_a_check_that_fails_itself_does_not_end_the_report(examine, monkeypatch):
    def fails(*args):
        raise OSError("no such call")

    monkeypatch.setattr(doctor.platform, "platform", fails)
    code, lines = examine("program")
    assert code == 0
    assert "could not be looked at (OSError: no such call)" in line_of(lines, "program")
