"""A run or a sweep from elsewhere runs no code of its config before the caller trusts it."""

import shutil
import sys

import pytest
import torch
import yaml

import raylfl
from raylfl.cli import main
from raylfl.components.registry import library_of
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.report.promised import promises_of
from raylfl.report.runs import Group, load_run
from raylfl.runtime.records.provenance import foreign, require_trust, sign
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import one_in

SHORT = {**TINY, "rounds": 1}
MODULE = "from pathlib import Path\nfrom tests.runtime.tiny import Net\nPath({proof!r}).touch()\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return raylfl.run(SHORT, [f"logging.dir={tmp_path_factory.mktemp('made')}"]).run_dir


@pytest.fixture
def run(made, tmp_path):
    """A run written here, of a config that names its own classes."""
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """`hostile(run, changes)`: changes keys of a config, to name code that touches the returned file."""
    proof = tmp_path / "proof"
    (tmp_path / "evil.py").write_text(MODULE.format(proof=str(proof)))
    (tmp_path / "more.yaml").write_text("model: {class_path: evil.Net}\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def change(folder, changes):
        content = yaml.safe_load((folder / "config.yaml").read_text()) | changes
        text = yaml.safe_dump({key: value for key, value in content.items() if value is not None})
        (folder / "config.yaml").write_text(text.replace("MORE", str(tmp_path / "more.yaml")))
        return proof

    yield change
    sys.modules.pop("evil", None)


def elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / "elsewhere"))


FORMS = {
    "string": {"model": "evil.Net"},
    "name": {"model": {"name": "evil.Net"}},
    "class path": {"data": {"class_path": "evil.Net", "init_args": {}}},
    "made up": {"model": {"class_path": "evil.Net@ab12cd34"}},
    "algorithm": {"algorithm": {"class_path": "evil.Net"}},
    "availability": {"participation": {"name": "full", "availability": "evil.Net"}},
    "logger": {"logging": {"loggers": ["evil.Net"]}},
    "logger with options": {"logging": {"loggers": [{"class_path": "evil.Net"}]}},
    "interpolation": {"model": {"class_path": "${eval.nothing}.Net"}, "eval": {"nothing": "evil"}},
    "base": {"base": "MORE", "model": None},
}


def loaded(folder):
    run = raylfl.load(folder)
    assert len(run.metrics) == len(run.rows) == 1  # tables need no code
    return run.config


@pytest.mark.parametrize(
    ("form", "call"),
    [
        *((form, raylfl.resume) for form in FORMS),
        *one_in(9, [(form, call) for call in (loaded, raylfl.evaluate) for form in FORMS]),
    ],
)
def test_no_class_of_a_changed_config_is_imported_before_it_is_trusted(run, hostile, form, call, capsys):
    proof = hostile(run, FORMS[form])
    with pytest.raises(BadConfig, match=r"was not written on this machine .* and it names .*evil\.Net.* --trust"):
        call(run)
    assert main(["resume", str(run)]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not proof.exists()


def test_no_cluster_of_a_changed_config_is_joined_before_it_is_trusted(run, hostile, capsys):
    """A cluster's answers are pickles, which can run code here."""
    hostile(run, {"runtime": {"backend": "ray", "address": "127.0.0.1:1"}})
    assert main(["resume", str(run)]) == 2
    assert "it names runtime.address=127.0.0.1:1" in capsys.readouterr().err
    assert main(["resume", str(run), "--trust"]) == 2
    assert "no Ray cluster answers there" in capsys.readouterr().err


def test_a_run_whose_class_is_gone_still_has_its_tables(run, hostile):
    hostile(run, {"model": {"class_path": "gone.Net"}})
    again = raylfl.load(run, trust=True)
    assert (len(again.metrics), len(again.params)) == (1, len(torch.load(run / "final.pt")["params"]))
    with pytest.raises(BadConfig, match="cannot import gone"):
        again.module  # noqa: B018
    with pytest.raises(BadConfig, match="unknown argument modle"):
        raylfl.load(run, trust=True, modle="mlp")


def test_a_run_at_a_url_is_named_by_its_url(monkeypatch, tmp_path, capsys):
    """Not by the folder of its local copy, of which the user knows nothing."""
    url = f"file://{tmp_path}/there"
    raylfl.run(SHORT, [f"logging.dir={url}", "logging.id=a"])
    elsewhere(monkeypatch, tmp_path)
    words = rf"^{url}/tiny/a was not written on this machine .* raylfl resume {url}/tiny/a --trust, or trust=True"
    for call in (raylfl.resume, loaded):
        with pytest.raises(BadConfig, match=words):
            call(f"{url}/tiny/a")
    assert main(["resume", f"{url}/tiny/a"]) == 2
    assert f"raylfl: {url}/tiny/a was not written on this machine" in capsys.readouterr().err


def test_a_run_from_elsewhere_is_resumed_with_trust_and_is_then_at_home(run, monkeypatch, tmp_path):
    """The key of the other machine is for its user only."""
    assert len(raylfl.resume(run, ["rounds=2"]).metrics) == 2
    elsewhere(monkeypatch, tmp_path)
    with pytest.raises(BadConfig, match="--trust"):
        raylfl.resume(run, ["rounds=3"])
    assert main(["resume", str(run), "rounds=3", "--trust"]) == 0
    assert (tmp_path / "elsewhere" / "key").stat().st_mode & 0o777 == 0o600
    assert len(raylfl.resume(run, ["rounds=4"]).metrics) == 4


def test_a_run_of_shipped_components_needs_no_trust_anywhere(tmp_path, monkeypatch):
    result = raylfl.run("digits", ["rounds=1", "num_clients=3", "runtime.backend=local", f"logging.dir={tmp_path}"])
    assert not (result.run_dir / ".made_here").exists()
    elsewhere(monkeypatch, tmp_path)
    assert len(raylfl.resume(result.run_dir, ["rounds=2"]).metrics) == 2


def test_class_paths_that_the_caller_names_need_no_trust(run, monkeypatch, tmp_path):
    elsewhere(monkeypatch, tmp_path)
    known = list(foreign(load_config(SHORT).resolved))
    assert len(raylfl.resume(run, ["rounds=2"], known=known).metrics) == 2


def test_the_mark_of_another_config_is_no_mark(tmp_path):
    config = {"model": {"class_path": "mine.Net"}}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(name)
        sign(tmp_path / name / "config.yaml", config)
    require_trust(tmp_path / "a" / "config.yaml", config, (), "")
    shutil.copy(tmp_path / "b" / ".made_here", tmp_path / "a" / ".made_here")
    with pytest.raises(BadConfig):
        require_trust(tmp_path / "a" / "config.yaml", config, (), "")


@pytest.mark.parametrize("content", [b"", b"x" * 64, "é".encode(), b"\xff\xfe"])
def test_a_damaged_mark_or_a_link_is_no_mark(tmp_path, content):
    config = {"model": {"class_path": "mine.Net"}}
    path = tmp_path / "config.yaml"
    path.write_text("x")
    sign(path, config)
    require_trust(path, config, (), "")
    mark = (tmp_path / ".made_here").read_bytes()
    (tmp_path / ".made_here").write_bytes(content)
    with pytest.raises(BadConfig):
        require_trust(path, config, (), "")
    (tmp_path / "kept").write_bytes(mark)
    (tmp_path / ".made_here").unlink()
    (tmp_path / ".made_here").symlink_to(tmp_path / "kept")
    with pytest.raises(BadConfig):
        require_trust(path, config, (), "")


def test_without_a_key_nothing_is_made_here(tmp_path, monkeypatch):
    """An empty key must not make every checksum of an empty key valid."""
    elsewhere(monkeypatch, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "key").touch()
    path = tmp_path / "config.yaml"
    path.write_text("x")
    with pytest.raises(BadConfig):
        require_trust(path, {"model": {"class_path": "mine.Net"}}, (), "")


def test_a_place_that_takes_no_key_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / "file" / "x"))
    (tmp_path / "file").touch()
    assert raylfl.run(SHORT, [f"logging.dir={tmp_path}/runs"]).metrics


PATHS = {
    "run": ({"name": "v1.0", "model": {"name": "a.B"}, "data": "c.D"}, ["a.B", "c.D"]),
    "shipped": ({"model": {"class_path": "raylfl.models.mlp.MLP", "name": "mlp"}}, []),
    "code of raylfl": (
        {"model": {"class_path": "raylfl.resume"}, "data": "raylfl.runtime.x.Y"},
        ["raylfl.resume", "raylfl.runtime.x.Y"],
    ),
    "options": ({"data": {"name": "npy", "init_args": {"path": "a.npy"}}, "logging": {"dir": "runs.old"}}, []),
    "nested": ({"model": {"init_args": {"part": [{"class_path": "a.B"}]}}}, ["a.B"]),
    "sweep": ({"space": {"model.class_path": {"grid": ["a.B", "a.C"]}, "name": {"grid": ["v1.0"]}}}, ["a.B", "a.C"]),
    "sweep of groups": ({"space": {"partition": {"choice": [{"name": "a.P"}, "a.Q"]}}}, ["a.P", "a.Q"]),
}


@pytest.mark.parametrize("what", PATHS)
def test_class_paths_are_found_wherever_a_config_may_have_them(what):
    config, expected = PATHS[what]
    assert [path for path in foreign(config) if path != "v1.0"] == expected


SYSTEM = {
    "model": {"model": {"class_path": "os.system", "init_args": {"command": "touch X"}}},
    "data": {"data": {"class_path": "os.system", "init_args": {"command": "touch X"}}},
    "a name": {"model": {"name": "os.system", "init_args": {"command": "touch X"}}},
    "a class": {"data": {"class_path": "subprocess.Popen", "init_args": {"args": "touch X", "shell": True}}},
    "imported elsewhere": {"data": {"class_path": "imports.system", "init_args": {"command": "touch X"}}},
    "of a package": {"data": {"class_path": "numpy.savetxt", "init_args": {"fname": "X", "X": [1]}}},
    "of raylfl": {"data": {"class_path": "raylfl.write_report", "init_args": {"runs": ["."], "to": "X"}}},
    "a partial": {"data": {"class_path": "imports.part", "init_args": {"filename": "X"}}},
    "built in": {"data": {"class_path": "builtins.exec", "init_args": {"source": "open('X', 'w')"}}},
    "a method": {"data": {"class_path": "imports.touch", "init_args": {}}},
}


@pytest.mark.parametrize("what", SYSTEM)
def test_functions_of_libraries_are_no_factories_of_any_config(what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imports.py").write_text(
        "from os import system\nfrom pathlib import Path\ntouch = Path('X').touch\n"
        "from functools import partial\nfrom shutil import rmtree\npart = partial(rmtree, ignore_errors=True)\n"
    )
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**SHORT, **SYSTEM[what]}))
    assert main(["run", "c.yaml"]) == 2
    assert "call it in a function or class of your own module" in capsys.readouterr().err
    assert not (tmp_path / "X").exists()


def test_functions_of_ones_own_module_are_factories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text("from tests.runtime.tiny import Net\ndef net(width=6):\n    return Net(width)\n")
    own = {**SHORT, "model": {"class_path": "mine.net", "init_args": {"width": 5}}}
    result = raylfl.run(own, [f"logging.dir={tmp_path}/runs"])
    assert len(raylfl.resume(result.run_dir, ["rounds=2"]).metrics) == 2
    assert library_of(shutil.copy) == "Python"
    assert library_of(yaml.safe_load) == "yaml"
    assert library_of(yaml.Loader) is None


def test_a_report_with_theory_imports_no_class_of_a_run_from_elsewhere(run, hostile):
    proof = hostile(run, FORMS["string"])
    record = load_run(run)
    lines = promises_of([Group("x", record.setting, [record])], ["global/distance"])
    assert "was not written on this machine" in str(lines)
    assert not proof.exists()
