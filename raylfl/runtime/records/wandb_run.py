"""A run as wandb sees it: its config, its rounds, at the end a picture and a table.

Offline unless one is logged in (`wandb sync` sends it later). Nothing here can stop a run or hold it up for long:
where the server does not answer, the run goes on offline, and at the end it waits FINISH_SECONDS at most.
"""

from __future__ import annotations

import json
import netrc
import os
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np

from raylfl.config.load import Config
from raylfl.runtime.records.run_dir import RunDirectory

ANSWER_SECONDS = 5.0  # for wandb's server to answer at all
INIT_SECONDS = 20.0  # and to take the run; else it goes on offline
FINISH_SECONDS = 30.0  # for what is not yet sent at the end; it stays on disk, to be synced
TABLE_ROWS = 1000  # rounds in the table at the end, evenly spaced
CURVES = ("train/loss", "test/loss", "test/accuracy", "global/loss", "global/distance")
Say = Callable[[str], None]


class WandbRun:
    """One run at wandb: group = the experiment, job_type = the algorithm, its id kept in the run directory."""

    def __init__(self, config: Config, run_dir: RunDirectory, say: Say):
        self.run_dir, self.say = run_dir, say
        self.run = self._begin(config, self._mode())
        self.run.define_metric("round")
        self.run.define_metric("*", step_metric="round")

    def _mode(self) -> str:
        """As `mode`, but offline where the server does not answer."""
        chosen = mode()
        if chosen == "online":
            reason = unreachable(base_url())
            if reason:
                self.say(f"wandb does not answer ({reason}): logged offline, `wandb sync` sends it later")
                return "offline"
        return chosen

    def _begin(self, config: Config, how: Any) -> Any:
        import wandb

        options: dict[str, Any] = {
            "project": config.logging.project,
            "group": config.top.name,
            "job_type": config.resolved["algorithm"]["name"],
            "name": self.run_dir.path.name,
            "id": run_id(self.run_dir),
            "resume": "allow",
            "dir": str(self.run_dir.path),
            "config": config.resolved,
            "reinit": "create_new",
            "settings": wandb.Settings(
                base_url=base_url(), init_timeout=INIT_SECONDS, silent=True, disable_git=True, console="off"
            ),
        }
        try:
            return wandb.init(**options, mode=how)
        except Exception as error:
            if how != "online":
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.say(f"wandb does not take the run ({reason}): logged offline, `wandb sync` sends it later")
            with suppress(Exception, SystemExit):  # what a service that died ends with
                wandb.teardown()  # it still holds the id
            return wandb.init(**options, mode="offline")

    def log(self, metrics: dict[str, Any]) -> None:
        """The numbers of one round; a round that is repeated after a resume is harmless, as `round` is the step."""
        numbers = {k: v for k, v in metrics.items() if isinstance(v, (int, float))}
        self.run.log(numbers)

    def close(self) -> None:
        """The picture and the table where the run is complete, then all that is not yet sent."""
        finished = (self.run_dir.path / "summary.json").exists()
        if finished:
            self._show()
        done = threading.Thread(target=self._finish, args=(0 if finished else 1,), daemon=True)
        done.start()
        done.join(FINISH_SECONDS)
        if done.is_alive():
            self.say(f"wandb did not take all of it in {FINISH_SECONDS:g} s: `wandb sync {self.folder}` sends the rest")

    @property
    def folder(self) -> Path:
        """Where wandb keeps this run on disk."""
        return Path(self.run.dir).parent

    def _finish(self, code: int) -> None:
        try:
            self.run.finish(exit_code=code)
        except Exception as error:
            self.say(
                f"wandb could not finish ({type(error).__name__}): `wandb sync {self.folder}` sends what is missing"
            )

    def _show(self) -> None:
        import wandb

        rows = self.run_dir.metrics()
        columns, lines = rounds_table(rows)
        figure = picture(rows, self.run_dir.path / "partition_counts.json")
        image = wandb.Image(figure) if figure is not None else None
        table = wandb.Table(columns=columns, data=lines)
        self.run.log({"rounds": table, "round": rows[-1]["round"], **({"overview": image} if image else {})})


def mode() -> str:
    """WANDB_MODE where it is set, else `online` for those who are logged in, else `offline`."""
    return os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")


def base_url() -> str:
    """The server's address: WANDB_BASE_URL, or wandb's own settings."""
    import wandb

    return os.environ.get("WANDB_BASE_URL") or str(wandb.Settings().base_url)


def logged_in() -> bool:
    """Whether there is a key: in WANDB_API_KEY, or in ~/.netrc, where `wandb login` puts it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = {urlparse(base_url()).hostname or ""}
    if not os.environ.get("WANDB_BASE_URL"):
        hosts.add("api.wandb.ai")  # one service under two names
    try:
        known = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(known.authenticators(host) is not None for host in hosts)


def unreachable(url: str) -> str | None:
    """Why nothing answers at this address; None where something does, whatever it says."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER_SECONDS).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
    return None


def run_id(run_dir: RunDirectory) -> str:
    """Kept in the run directory, so that a resumed run goes on under the same id."""
    path = run_dir.path / "wandb_id.txt"
    if not path.exists():
        run_dir.write(path.name, secrets.token_hex(4))
    return path.read_text().strip()


def rounds_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str | int], list[list[Any]]]:
    """Columns and lines of the numbers in metrics.jsonl, the last round always among them."""
    names = {k: None for row in rows for k, v in row.items() if isinstance(v, (int, float))}
    columns: list[str | int] = ["round", *(name for name in names if name != "round")]
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), TABLE_ROWS)).round().astype(int))
    return columns, [[rows[k].get(str(name)) for name in columns] for k in chosen]


def picture(rows: Sequence[dict[str, Any]], counts: Path) -> Any:
    """A figure of the curves that were measured, and of who owns which classes; None where there is neither."""
    from matplotlib.figure import Figure

    curves = [name for name in CURVES if any(name in row for row in rows)]
    classes = np.array(json.loads(counts.read_text())["counts"]) if counts.exists() else None
    panels = len(curves) + (classes is not None)
    if not panels:
        return None
    figure = Figure(figsize=(3.6 * panels, 3.0), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for ax, name in zip(axes, curves, strict=False):
        points = [(row["round"], row[name]) for row in rows if name in row]
        ax.plot(*zip(*points, strict=True), linewidth=1.5)
        ax.set(title=name, xlabel="round", yscale="log" if name == "global/distance" else "linear")
    if classes is not None:
        axes[-1].imshow(classes.T, aspect="auto", interpolation="nearest", cmap="Blues")
        axes[-1].set(title="samples", xlabel="client", ylabel="class")
    return figure
