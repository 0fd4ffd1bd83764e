"""Two nodes with an address each, in network namespaces, joined by one link whose bytes the kernel counts."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import TensorDataset

import raylfl
from tests.runtime.clusters import PATIENT
from tests.runtime.faults import end, wait_until

ROOT = Path(__file__).resolve().parents[2]
RAY = str(Path(sys.executable).with_name("ray"))
HEAD, FAR, PORT = "10.213.0.1", "10.213.0.2", 6379


class Wide(LightningModule):
    """A network of a million parameters."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 16384), torch.nn.ReLU(), torch.nn.Linear(16384, 2))

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.body(x), y)


class Clusters:
    """Two Gaussians."""

    def train_dataset(self):
        rng = np.random.default_rng(0)
        y = rng.integers(0, 2, 1024)
        return TensorDataset(
            torch.from_numpy(rng.standard_normal((1024, 64)) + y[:, None]).float(), torch.from_numpy(y)
        )


CONFIG = {  # four pinned clients, all of which take part
    "rounds": 8,
    "num_clients": 4,
    "model": {"class_path": "tests.jobs.test_far_nodes.Wide"},
    "data": {"class_path": "tests.jobs.test_far_nodes.Clusters"},
    "partition": {"name": "iid"},
    "participation": {"name": "full"},
    "local": {"steps": 1, "batch_size": 2, "lr": 0.01},
    "eval": {"every": 0, "inconsistency": False},
    "checkpoint": {"every": 0},
    "logging": {"report": False},
}


def on_link(interface):
    """Bytes received and sent on the link since it exists, as the kernel counts them."""
    folder = Path("/sys/class/net") / interface / "statistics"
    return sum(int((folder / f"{way}_bytes").read_text()) for way in ("rx", "tx"))


def main(interface, runs):
    """Carries out the run, in the namespace of the head; prints the bytes of each round by raylfl and by the kernel."""
    ray.init(address=f"{HEAD}:{PORT}", _node_ip_address=HEAD, log_to_driver=False, logging_level="ERROR")
    counts = []

    class Count(raylfl.Callback):
        def on_run_start(self, config, run_dir):
            counts.append(on_link(interface))

        def on_round_end(self, round, metrics, params):
            counts.append(on_link(interface))

    overrides = ["runtime.workers=2", "runtime.placement=pinned", f"logging.dir={runs}", "logging.id=far"]
    result = raylfl.run(CONFIG, overrides, callbacks=[Count()])
    counted = [row["traffic/between_nodes_bytes"] for row in result.metrics]
    print(json.dumps({"counted": counted, "kernel": np.diff(counts).tolist()}))


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
        """A process in one of the namespaces."""
        command = ["ip", "netns", "exec", self.names[side], *command]
        environment = {**environment, "PATH": self.path}
        return subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, **options)


@pytest.fixture
def namespaces():
    made = Namespaces()
    try:
        made.open()
    except OSError as error:
        made.close()
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.close()


@pytest.fixture
def environment(namespaces):
    """The environment variables of a process that joins a Ray on both nodes."""
    home = Path(tempfile.mkdtemp(prefix="rf"))  # short: Ray puts sockets below it
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    variables |= {**PATIENT, "RAY_TMPDIR": str(home), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    variables |= {"PYTHONPATH": str(ROOT)}
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


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_bytes_that_cross_a_link_are_those_that_are_counted(namespaces, environment, tmp_path):
    script = [sys.executable, "-m", "tests.jobs.test_far_nodes", namespaces.links[0], str(tmp_path)]
    driver = namespaces.start(0, script, environment, stdout=subprocess.PIPE, text=True)
    said = driver.communicate(timeout=500)[0]
    assert driver.returncode == 0, said
    found = json.loads(said.splitlines()[-1])
    here = raylfl.run(CONFIG, ["runtime.backend=local", f"logging.dir={tmp_path}", "logging.id=here"])
    (far,) = tmp_path.rglob("far/final.pt")
    assert torch.equal(torch.load(far, weights_only=True)["params"], here.params)
    assert len(set(found["counted"])) == 1
    counted, kernel = sum(found["counted"]), sum(found["kernel"])
    vector = 4 * here.params.numel()  # the initial parameters, if it is the far worker that sends them before round 0
    assert counted > len(found["counted"]) * vector
    assert counted < kernel < 1.05 * counted + vector  # headers of packets, and Ray's own messages


if __name__ == "__main__":
    main(*sys.argv[1:])
