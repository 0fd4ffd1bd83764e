"""The common part of all tests: quick property tests, a tidy environment, run directories in a temporary place.

`-m "not slow"` leaves out tests that start processes or a Ray cluster or compute for seconds (`SLOW`, and marked
tests). Any other test that starts a Python process is then skipped, so that the rest is fast.
"""

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from raylfl.startup import lazy_imports
from tests import leaks
from tests.undrawn import savefig

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started the tests in the background
lazy_imports.install()  # before any test imports Lightning, as a command does
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # each process of pytest-xdist has one core; waiting threads would spin
if "RAYLFL_STAGING" not in os.environ:  # inherited by the processes of pytest-xdist
    os.environ["RAYLFL_STAGING"] = tempfile.mkdtemp(prefix="raylfl-tests-")
    atexit.register(shutil.rmtree, os.environ["RAYLFL_STAGING"], ignore_errors=True)

settings.register_profile(
    "suite",
    deadline=None,
    max_examples=25,
    derandomize="RAYLFL_FUZZ" not in os.environ,  # the same examples every time; benchmarks draw others
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

HERE = Path(__file__).parent
SLOW = (  # files and folders
    "docs/test_tutorials.py",
    "execution/test_processes.py",
    "jobs/test_cluster.py",
    "jobs/test_scripts.py",
    "report/test_page.py",
    "papers/test_claims.py",
    "papers/test_command.py",
    "papers/test_experiments.py",
    "papers/test_killed.py",
    "papers/test_run_cache.py",
    "runtime/test_damage.py",
    "runtime/test_device.py",
    "runtime/test_exhausted.py",
    "runtime/test_interrupt.py",
    "runtime/test_long_runs.py",
    "runtime/test_lost_nodes.py",
    "runtime/test_lost_parts.py",
    "runtime/test_own_cluster.py",
    "runtime/test_ray.py",
    "runtime/test_reproducible.py",
    "runtime/test_sharded.py",
    "startup",
    "test_extras.py",
    "test_wheel.py",
    "theory/test_summary.py",
    "tune/test_damaged_sweep.py",
    "tune/test_interrupted.py",
    "tune/test_sweep.py",
)
LONG = (  # files whose tests are quick but many: `make test-fast` leaves them out, `make mutants` runs them
    "algorithms/test_contract_runs.py",
    "algorithms/test_graph.py",
    "algorithms/test_graph_invariants.py",
    "algorithms/test_twins.py",
    "api/test_control.py",
    "api/test_objects.py",
    "config/test_fuzz.py",
    "core/test_recorded.py",
    "core/test_recorded_programs.py",
    "core/test_recorded_refusals.py",
    "heterogeneity/test_participation.py",
    "heterogeneity/test_participation_weighted.py",
    "models/test_text.py",
    "report/test_partition_plot.py",
    "report/test_promised.py",
    "runtime/test_against_oracle.py",
    "runtime/test_checkpoint.py",
    "runtime/test_displaced.py",
    "runtime/test_faults.py",
    "runtime/test_graph_runs.py",
    "runtime/test_optimizer_state.py",
    "runtime/test_profile.py",
    "runtime/test_resume.py",
    "runtime/test_run.py",
    "runtime/test_uploads.py",
    "solvers/test_working_set.py",
    "test_class_path.py",
    "test_cli.py",
    "test_cli_exit_codes.py",
    "test_doctor.py",
    "test_peers.py",
    "theory/test_bounds.py",
    "theory/test_fedacs_bounds.py",
)
PROCESSES = {"command", "cluster"}  # fixtures
# files for one process of pytest-xdist, so that their clusters start one by one; their tests, which wait for processes
# of Ray, have one more attempt, which pytest lists
GROUPS = {
    "runtime/test_ray.py": "ray",
    "runtime/test_lost_nodes.py": "ray",
    "runtime/test_lost_parts.py": "ray",
    "runtime/test_interrupt.py": "commands",
    "runtime/test_own_cluster.py": "sweeps",
    "tune/test_sweep.py": "sweeps",
    "tune/test_interrupted.py": "sweeps",
    "jobs/test_cluster.py": "commands",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The scheduler of `--dist loadgroup`: a file's tests go to one process, which makes its fixtures once."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.partition("::")[0].removeprefix("tests/")
            return GROUPS.get(path, path)

    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # in the order of `pytest_collection_modifyitems`
    return Files(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """The processes of `-n auto`: one more than there are cores, as groups mostly wait for Ray; four at most."""
    return min(len(os.sched_getaffinity(0)) + 1, 4) if hasattr(os, "sched_getaffinity") else 4


def path_of(item):
    """The file of a test as SLOW and GROUPS name it."""
    return item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""


def pytest_collection_finish():
    """The garbage collector skips objects from before the first test: a sixth of the time of small tests."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    for item in items:
        path = path_of(item)
        if path.startswith(SLOW) or PROCESSES & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        if path in LONG:
            item.add_marker(pytest.mark.long)
        if path in GROUPS:
            item.add_marker(pytest.mark.flaky(reruns=1))
    if config.getoption("loadgroup", False):  # in a process of pytest-xdist: what takes longest starts first
        late = {item.path for item in items} - {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (path_of(item) not in GROUPS, item.path in late, path_of(item) not in LONG))


@pytest.fixture(scope="module", autouse=True)
def _one_process_for_a_group(request, tmp_path_factory):
    """Fails where tests of one group run in two processes, each of which would start the group's clusters."""
    group = GROUPS.get(path_of(request.node))
    if group and request.config.getoption("loadgroup", False):  # pytest-xdist's name of its processes
        owner, me = tmp_path_factory.getbasetemp().parent / f"group_{group}", os.environ["PYTEST_XDIST_WORKER"]
        with suppress(FileExistsError), open(owner, "x") as file:
            file.write(me)
        assert owner.read_text() == me


@pytest.fixture(scope="session", autouse=True)
def _no_syncing():
    """Files are not synced to the disk, which takes milliseconds: no test cuts the power, and killed processes keep
    what they wrote.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _git_is_asked_once():
    """Git commits of a folder are looked up once: a run asks five processes of git, a tenth of a small run's time."""
    from raylfl.runtime.records import summary

    of = cache(summary.git_commit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "git_commit", lambda folder=None, files=(): of(folder or Path.cwd(), tuple(files)))
        patch.setattr(summary, "raylfl_commit", cache(summary.raylfl_commit))
        yield


@pytest.fixture(autouse=True)
def _tidy_environment():
    """Fails a test that leaves an environment variable of ours behind."""
    before = {k: v for k, v in os.environ.items() if k.startswith(("RAYLFL", "WANDB"))}
    yield
    after = {k: v for k, v in os.environ.items() if k.startswith(("RAYLFL", "WANDB"))}
    assert after == before


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_behind(request):
    """Fails the last test of a module that leaves a process, an environment variable or a thread behind.

    `-p no:leaks` switches this off.
    """
    before = leaks.present()
    yield
    if not request.config.pluginmanager.is_blocked("leaks"):
        assert not leaks.left_behind(before)


@pytest.fixture(autouse=True)
def _only_slow_tests_start_python(request):
    """Skips a test that starts a Python process without being marked as slow, if slow tests are left out."""
    if "not slow" not in request.config.option.markexpr or request.node.get_closest_marker("slow"):
        yield
        return
    start = subprocess.Popen.__init__

    def refusing(self, args, *more, **options):
        command = args if isinstance(args, str) else " ".join(map(str, args))
        if sys.executable in command:
            pytest.skip(f"it starts a process, so it should be marked slow: {command[:80]}")
        start(self, args, *more, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refusing)
        yield


@pytest.fixture
def undrawn(monkeypatch):
    """Saves pictures without drawing them, which takes seconds per page: for tests of the page around them."""
    from raylfl.report.style import Drawing

    monkeypatch.setattr(Drawing, "savefig", savefig)


@pytest.fixture
def one_core(monkeypatch):
    """Several runs are made in turn in this process, as on a machine of one core: others would import torch again."""
    monkeypatch.setattr("raylfl.execution.executor.cores", lambda: 1)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty working directory; sys.path, to which main() adds it, is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYLFL_RUNS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def here(fresh):
    """The empty working directory, whose modules can be imported."""
    sys.path.insert(0, str(fresh))
    return fresh


@pytest.fixture
def mine(here):
    """The working directory with the components of tests/mine.py as a user's module."""
    (here / "mine.py").write_text((HERE / "mine.py").read_text())
    return here


@pytest.fixture
def call(fresh, capsys):
    """main() in this process: (exit code, stdout, stderr)."""

    def called(*argv):
        from raylfl.cli import main

        try:
            code = main(argv)
        except SystemExit as end:  # argparse's own
            code = end.code
        return (code, *capsys.readouterr())

    return called


@pytest.fixture
def runs(tmp_path):
    """Overrides that put a run's directory under the test's own folder."""
    return [f"logging.dir={tmp_path}/runs", "logging.report=false"]


@pytest.fixture(autouse=True)
def modules_of_a_test_are_forgotten(tmp_path_factory):
    """Forgets the modules of each test, so that every test that writes and imports a `mine.py` gets its own."""
    before = set(sys.modules)
    yield
    place = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(place):
            del sys.modules[name]
