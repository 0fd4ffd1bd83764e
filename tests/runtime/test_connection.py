"""Addresses without a Ray cluster are refused with the reason, earlier than by Ray, which tries for minutes."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.runtime.ray import connection
from raylfl.runtime.ray.connection import join, speaks_grpc


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
    assert speaks_grpc("auto")
    assert speaks_grpc("ray://somewhere:10001")
    assert not speaks_grpc(f"127.0.0.1:{port}")
    monkeypatch.setenv("RAY_USE_TLS", "1")  # then its first bytes belong to TLS
    assert speaks_grpc(f"127.0.0.1:{port}")
