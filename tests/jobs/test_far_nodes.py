"""Two nodes with an address each, in network namespaces, joined by one link whose bytes the kernel counts.

No process may have as much memory as the data set.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

import raylfl
from tests.jobs import far_node
from tests.runtime.clusters import PATIENT
from tests.runtime.faults import end, wait_until

ROOT = Path(__file__).resolve().parents[2]
RAY = str(Path(sys.executable).with_name("ray"))
HEAD, FAR, PORT = "10.213.0.1", "10.213.0.2", 6379
SAMPLES, NUMBERS = 1024, 2**21  # 8 GiB, most of them in no block of the disk
MEMORY = 4 * 2**30  # bytes of its own memory that a process may have
ROUNDS, RATE = 8, 100e6  # bits per second


class Namespaces:
    """Two network namespaces with one link between them; commands in them."""

    def __init__(self):
        self.path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        self.names = [f"raylfl{os.getpid()}{side}" for side in "ab"]
        self.links = [f"rf{os.getpid()}{side}" for side in "ab"]

    def ip(self, *words):
        done = subprocess.run(["ip", *words], env={"PATH": self.path}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def open(self):
        for name in self.names:
            self.ip("netns", "add", name)
        (a, b), (one, other) = self.names, self.links
        self.ip("link", "add", one, "netns", a, "type", "veth", "peer", "name", other, "netns", b)
        for name, link, address in zip(self.names, self.links, (HEAD, FAR), strict=True):
            self.ip("-n", name, "address", "add", f"{address}/24", "dev", link)
            for device in ("lo", link):
                self.ip("-n", name, "link", "set", device, "up")

    def close(self):
        for name in self.names:  # the link ends with them
            subprocess.run(["ip", "netns", "del", name], env={"PATH": self.path}, capture_output=True, check=False)

    def start(self, side, command, environment, **options):
        """A process in one of the namespaces, with limited memory."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[side], *command],
            env={**environment, "PATH": self.path}, cwd=ROOT, start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY)), **options,
        )  # fmt: skip


@pytest.fixture
def namespaces():
    made = Namespaces()
    try:
        made.open()
        made.ip("netns", "exec", made.names[0], "tc", "qdisc", "show")
    except OSError as error:
        made.close()
        pytest.skip(f"no network namespaces with a limited link here: {error}")
    yield made
    made.close()


@pytest.fixture
def environment(namespaces, tmp_path):
    """The environment variables of a process that joins a Ray on both nodes."""
    home = Path(tempfile.mkdtemp(prefix="rf"))  # short: Ray puts sockets below it
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    variables |= {**PATIENT, "RAY_TMPDIR": str(home), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    variables |= {"RAYLFL_RUNS": str(home / "runs"), "PYTHONPATH": str(ROOT)}
    common = ["--block", "--num-cpus=1", f"--object-store-memory={100 * 2**20}", "--disable-usage-stats"]
    head = ["--head", f"--node-ip-address={HEAD}", f"--port={PORT}", "--include-dashboard=false"]
    far = [f"--node-ip-address={FAR}", f"--address={HEAD}:{PORT}"]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        for side, own in enumerate((head, far)):
            log = home / f"{side}.log"
            with open(log, "w") as out:
                node = namespaces.start(side, [RAY, "start", *own, *common], variables, stdout=out, stderr=out)
            stack.callback(end, [node])
            wait_until(lambda log=log, node=node: "Ray runtime started" in log.read_text() or node.poll(), "Ray", 120)
            assert node.poll() is None, log.read_text()
        yield variables


@pytest.fixture
def large_data(tmp_path):
    """A folder with more bytes of samples than a process may have memory; almost all of them are holes of the file."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, SAMPLES)
    np.save(tmp_path / "train_y.npy", y)
    x = np.lib.format.open_memmap(tmp_path / "train_x.npy", "w+", np.float32, (SAMPLES, NUMBERS))
    x[:, :64] = generator.standard_normal((SAMPLES, 64)) + y[:, None]
    assert x.nbytes > MEMORY
    return tmp_path


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_data_set_that_no_process_can_hold_trains_over_a_link_whose_bytes_are_those_that_are_counted(
    namespaces, environment, large_data, tmp_path
):
    runs = tmp_path / "runs"
    runs.mkdir()
    script = [sys.executable, "-m", "tests.jobs.far_node", f"{HEAD}:{PORT}", HEAD, namespaces.links[0]]
    arguments = [str(large_data), str(runs), f"{RATE:.0f}bit", str(ROUNDS)]
    driver = namespaces.start(0, [*script, *arguments], environment, stdout=subprocess.PIPE, text=True)
    said = driver.communicate(timeout=500)[0]
    assert driver.returncode == 0, said
    found = json.loads(said.splitlines()[-1])
    assert found["nodes"] == 2
    assert not found["loaded"]
    here = raylfl.run(far_node.config(large_data, ROUNDS), ["runtime.backend=local", f"logging.dir={runs}"])
    assert found["same"]
    assert torch.equal(torch.load(runs / "params.pt"), here.params)
    vector = 4 * here.params.numel()  # the initial parameters, if it is the far worker that sends them before round 0
    for rows in (found["fast"], found["slow"]):  # summed over rounds: a broadcast may be on its way between two of them
        counted, kernel = sum(row["crossed"] for row in rows), np.sum([row["kernel"] for row in rows])
        assert len({row["crossed"] for row in rows}) == 1
        assert counted < kernel < 1.05 * counted + vector  # headers of packets, and Ray's own messages
    busiest = np.max([row["kernel"] for row in found["slow"][1:-1]], axis=1)
    seconds = [row["seconds"] for row in found["slow"][1:-1]]
    assert np.median(seconds) > 0.95 * 8 * np.median(busiest) / RATE
