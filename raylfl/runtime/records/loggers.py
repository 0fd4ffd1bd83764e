"""Loggers beside metrics.jsonl: Lightning's CSV and TensorBoard loggers, and wandb.

They are opened only in the process of the round loop. A logger that fails is closed with a one-line message and never
stops a run: metrics.jsonl is always written, and the other records can be rebuilt from it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

from raylfl.config.load import Config
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.records.wandb_run import WandbRun

Say = Callable[[str], None]


class Logger(Protocol):
    """The interface of all loggers."""

    def log(self, metrics: dict[str, Any]) -> None:
        """Records one row of metrics.jsonl."""

    def close(self) -> None:
        """Finishes the log; called however the run ended."""


class Loggers:
    """The loggers of a run, as selected by `logging.loggers`."""

    def __init__(self, config: Config, run_dir: RunDirectory, say: Say):
        self.say = say
        self._open: dict[str, Logger] = {}
        for name in config.logging.loggers:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._open[name] = MAKERS[name](config, run_dir, say)
            except Exception as error:
                self.say(f"logger {name} could not be opened and is left out ({type(error).__name__}: {error})")

    def log(self, metrics: dict[str, Any]) -> None:
        """Passes one row to every open logger."""
        for name in list(self._open):
            self._try(name, lambda logger: logger.log(metrics))

    def close(self) -> None:
        """Closes every open logger."""
        for name in list(self._open):
            self._try(name, lambda logger: logger.close())
        self._open.clear()

    def _try(self, name: str, action: Callable[[Logger], None]) -> None:
        try:
            action(self._open[name])
        except Exception as error:
            del self._open[name]
            self.say(f"logger {name} failed and is closed ({type(error).__name__}: {error}); metrics.jsonl goes on")


class LightningLogger:
    """A Lightning logger whose step is the round."""

    def __init__(self, logger: Any, config: Config):
        self.logger = logger
        self.logger.log_hyperparams(config.resolved)

    def log(self, metrics: dict[str, Any]) -> None:
        numbers = {k: v for k, v in metrics.items() if isinstance(v, (int, float)) and k != "round"}
        self.logger.log_metrics(numbers, step=metrics["round"])

    def close(self) -> None:
        self.logger.save()
        self.logger.finalize("success")


def make_csv(config: Config, run_dir: RunDirectory, say: Say) -> Logger:
    """A logger to csv/metrics.csv. Lightning replaces the file, so a resumed run logs its earlier rounds again."""
    from lightning.pytorch.loggers import CSVLogger

    where = str(run_dir.path)
    logger = LightningLogger(CSVLogger(where, name="csv", version="", flush_logs_every_n_steps=1), config)
    for row in run_dir.metrics():
        logger.log(row)
    return logger


def make_tensorboard(config: Config, run_dir: RunDirectory, say: Say) -> Logger:
    """A logger to tensorboard/. A resumed run adds a file, and TensorBoard shows both as one run."""
    from lightning.pytorch.loggers import TensorBoardLogger

    where = str(run_dir.path)
    return LightningLogger(TensorBoardLogger(where, name="tensorboard", version="", default_hp_metric=False), config)


MAKERS: dict[str, Callable[[Config, RunDirectory, Say], Logger]] = {
    "csv": make_csv,
    "tensorboard": make_tensorboard,
    "wandb": WandbRun,
}
