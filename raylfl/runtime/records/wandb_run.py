"""The wandb logger: the run's config, and the metrics of each round.

The logger logs offline unless the user is logged in; `wandb sync` sends an offline run later. An error of wandb never
ends a run, and wandb delays a run by less than a minute: the logger logs offline if wandb's server does not take the
run within INIT_SECONDS, and waits at most FINISH_SECONDS at the end.
"""

import os
import secrets
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from raylfl.config.load import Config
from raylfl.config.registries import LOGGERS
from raylfl.errors import Say, headline
from raylfl.runtime.records.files import WANDB, links_out_of
from raylfl.runtime.records.lines import numbers_of
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.records.storage import within

ANSWER_SECONDS = 5.0  # limit for the first answer of wandb's server to a report
INIT_SECONDS = 20.0  # limit for the server to accept the run; after that it is logged offline
FINISH_SECONDS = 30.0  # limit for sending the rest at the end; `wandb sync` sends what is still on disk


@LOGGERS.register("wandb")
class WandbRun:
    """Weights & Biases: rounds and config; offline unless you are logged in.

    The wandb group is the run's `name`, the job_type the algorithm. The wandb id is stored in the run directory.
    """

    def __init__(self, config: Config, run_dir: RunDirectory, say: Say):
        self.run_dir, self.say = run_dir, say
        self.run = self._begin(config)
        self.run.define_metric("round")
        self.run.define_metric("*", step_metric="round")

    def _begin(self, config: Config) -> Any:
        import wandb

        how: Any = mode()
        for link in links_out_of(self.run_dir.path.resolve() / WANDB):
            link.unlink()
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
            reason = headline(error)
            self.say(f"wandb does not take the run ({reason}): logged offline, `wandb sync` sends it later")
            with suppress(Exception, SystemExit):  # raised if wandb's service process has ended
                wandb.teardown()  # otherwise the service would still hold the id
            return wandb.init(**options, mode="offline")

    def log(self, metrics: dict[str, Any]) -> None:
        """Logs the metrics of one round, plotted over `round`; a repeated round logs the same points again."""
        self.run.log(numbers_of(metrics))

    def close(self) -> None:
        """Ends the wandb run, with exit code 1 unless the run is complete; waits at most FINISH_SECONDS."""
        code = 0 if (self.run_dir.path / "summary.json").exists() else 1
        try:
            within(FINISH_SECONDS, lambda: self.run.finish(exit_code=code))
        except TimeoutError:
            self.say(f"wandb is not done after {FINISH_SECONDS:g} s: `wandb sync {self.folder}` sends the rest")
        except Exception as error:
            self.say(
                f"wandb could not finish ({type(error).__name__}): `wandb sync {self.folder}` sends what is missing"
            )

    @property
    def folder(self) -> Path:
        return Path(self.run.dir).parent


def mode() -> str:
    """The wandb mode: WANDB_MODE if set, or else `online` for a user who is logged in, or else `offline`."""
    return os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")


def base_url() -> str:
    """The address of wandb's server: WANDB_BASE_URL if set, or else the address in wandb's settings."""
    import wandb

    return os.environ.get("WANDB_BASE_URL") or str(wandb.Settings().base_url)


def logged_in() -> bool:
    """Whether the user has a wandb key: in WANDB_API_KEY, or in ~/.netrc from `wandb login`."""
    from requests.utils import get_netrc_auth  # wandb needs it

    urls = [base_url()]
    if not os.environ.get("WANDB_BASE_URL"):
        urls.append("https://api.wandb.ai")  # another name of the same service
    return bool(os.environ.get("WANDB_API_KEY")) or any(map(get_netrc_auth, urls))


def unreachable(url: str) -> str | None:
    """The reason why a server does not answer at this address; None if it answers, with any HTTP status."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER_SECONDS).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
    return None


def run_id(run_dir: RunDirectory) -> str:
    """The wandb id of the run, created once and stored in the run directory, so that a resumed run has the same id."""
    path = run_dir.path / "wandb_id.txt"
    if not path.exists():
        run_dir.write(path.name, secrets.token_hex(4))
    return path.read_text().strip()
