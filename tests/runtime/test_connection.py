"""Addresses without a Ray cluster are refused with the reason, earlier than by Ray, which tries for minutes."""

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest
import ray

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.runtime.ray import connection
from raylfl.runtime.ray.connection import check_address, join, speaks_grpc, start


@contextmanager
def nothing():
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
    yield port


@contextmanager
def a_web_server():
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def a_program_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as here:
        yield here.getsockname()[1]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (nothing, "nothing listens at this address"),
        (a_web_server, "another program listens at this address"),
        (a_program_that_never_answers, "another program listens at this address"),
    ],
)
def test_an_address_without_a_cluster_is_refused_with_the_reason(place, words, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.3)
    with place() as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(BadConfig, match=rf"runtime.address={address}: no Ray cluster answers there \({words}\)"):
            join(RuntimeConfig(address=address), address)


def test_what_may_be_a_cluster_is_left_to_ray(monkeypatch):
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert speaks_grpc(f"127.0.0.1:{port}")
    server.stop(None).wait()
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.3)
    assert speaks_grpc("auto")
    assert speaks_grpc("ray://somewhere:10001")
    assert not speaks_grpc(f"127.0.0.1:{port}")
    monkeypatch.setenv("RAY_USE_TLS", "1")  # then its first bytes belong to TLS
    assert speaks_grpc(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["http://head:8265", "https://head"])
def test_the_address_of_a_dashboard_is_refused_before_anything_is_imported(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(BadConfig, match=rf"RAY_ADDRESS={address}, but must be host:port of the cluster's head"):
        check_address(RuntimeConfig())


def test_an_empty_address_is_refused_where_it_counts(monkeypatch):
    """It is what a failed `export RAY_ADDRESS=$(...)` leaves behind."""
    monkeypatch.setenv("RAY_ADDRESS", "")
    with pytest.raises(BadConfig, match=r"^RAY_ADDRESS is empty: unset it, and the run starts a Ray of its own; or "):
        check_address(RuntimeConfig())
    with pytest.raises(BadConfig, match=r"^runtime.address is empty: "):
        check_address(RuntimeConfig(address=""))
    check_address(RuntimeConfig(address="auto"))


@pytest.mark.slow
def test_an_address_where_nothing_listens_is_reported_without_importing_torch(tmp_path):
    with nothing() as port:
        code = (
            "import sys, raylfl\nfrom raylfl.errors import BadConfig\n"
            f"try:\n    raylfl.run('digits', ['runtime.address=127.0.0.1:{port}', 'logging.dir={tmp_path}'])\n"
            "except BadConfig as error:\n    print(error, [name for name in ('ray', 'torch') if name in sys.modules])\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "nothing listens at this address) []\n" in done.stdout


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_slow_start_of_ray_is_tried_once_more(failures, monkeypatch):
    """Ray raises a bare Exception, with the remedy in its last sentence, if its node takes more than 30 s."""
    calls = []

    def init(**options):
        calls.append(options)
        if len(calls) <= failures:
            raise Exception("The current node timed out during startup.\nThis may be fixed by a quiet machine.")

    monkeypatch.setattr(ray, "init", init)
    if failures == 2:
        with pytest.raises(BadConfig, match=r"quiet machine\.\); Ray's limit of 30 s is fixed: wait until") as error:
            start(RuntimeConfig())
        assert "RAY_ADDRESS" in str(error.value)
    else:
        assert ["tried once more" in line for line in start(RuntimeConfig())] == [True] * failures
    assert len(calls) == min(failures + 1, 2)


def test_the_whole_reason_of_ray_is_shown_and_a_refused_token_named_with_the_remedy(monkeypatch):
    def init(**options):
        raise error

    monkeypatch.setattr(ray, "init", init)
    error, reason = (
        RuntimeError("first line\nsecond line: run this command"),
        "first line second line: run this command",
    )
    with pytest.raises(BadConfig, match=rf"\({reason}\); runtime.backend=local needs no"):
        start(RuntimeConfig())
    with pytest.raises(BadConfig, match=rf"no Ray cluster answers there \({reason}\)$"):
        join(RuntimeConfig(address="auto"), "auto")
    error = ConnectionError("failed")
    error.__cause__ = RuntimeError("status: 16, InvalidAuthToken")
    with pytest.raises(BadConfig, match=r"refuses this token \(InvalidAuthToken\): set RAY_AUTH_TOKEN, or copy the"):
        join(RuntimeConfig(address="auto"), "auto")
