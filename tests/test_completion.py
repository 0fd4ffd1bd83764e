"""Completion in a real bash: commands, configs, keys, names."""

import shutil
import subprocess

import pytest

from raylfl.algorithms import ALGORITHMS
from raylfl.cli import main

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@pytest.fixture
def completed(tmp_path, capsys):
    """The completions of bash for these words, of which the last is incomplete."""
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "mine.yaml").touch()

    def offered(*words):
        line = " ".join(f"'{word}'" for word in words)
        code = f"source ./script; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _raylfl; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return offered


def test_commands_configs_keys_and_names_are_completed(completed):
    assert completed("raylfl", "re") == ["resume", "report", "reproduce"]
    assert completed("raylfl", "run", "dig") == ["digits"]
    assert completed("raylfl", "run", "min") == ["mine.yaml"]
    assert completed("raylfl", "run", "digits", "local.lr") == ["local.lr=", "local.lr_schedule=", "local.lr_from="] + [
        f"local.lr_schedule.{key}=" for key in ("name", "decay", "period")
    ]
    assert completed("raylfl", "run", "digits", "algorithm.gam") == ["algorithm.gamma="]
    assert completed("raylfl", "run", "digits", "algorithm.name", "=", "foc") == ["focus"]
    assert completed("raylfl", "run", "digits", "algorithm.name", "=") == ALGORITHMS.names()
    assert completed("raylfl", "run", "digits", "--print") == ["--print-config"]
    assert completed("raylfl", "compare", "digits", "-a", "foc") == ["focus"]
    assert completed("raylfl", "compare", "digits", "--algorithms", "sfl,fedavg,foc") == ["sfl,fedavg,focus"]
    assert completed("raylfl", "list", "algo") == ["algorithms"]
    assert completed("raylfl", "completion", "z") == ["zsh"]


def test_zsh_takes_it_through_bashcompinit_and_another_shell_is_refused(capsys):
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload -U +X bashcompinit && bashcompinit\n")
    assert main(["completion", "fish"]) == 2
    assert "there are scripts for bash, zsh" in capsys.readouterr().err
