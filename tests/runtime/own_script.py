"""A script with classes of its own, which test_ray runs on Ray as a user does."""

from dataclasses import dataclass

import raylfl
from raylfl.algorithms.fedprox import FedProx
from raylfl.heterogeneity.participation.uniform import Uniform
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.runtime.tiny import Net as Base
from tests.runtime.tiny import Points as BasePoints


class Net(Base):
    pass


class Points(BasePoints):
    def train_transform(self, x):
        return x * 1.0


@dataclass
class Mine(FedProx):
    pass


@dataclass
class Some(Uniform):
    pass


if __name__ == "__main__":
    settings = ["logging.report=false", "logging.dir=runs", "logging.id=a", "rounds=3", "runtime.backend=ray"]
    settings += ["runtime.workers=1", "model.class_path=__main__.Net"]
    raylfl.run(TINY, settings, data=Points(), algorithm=Mine(mu=0.1), participation=Some(size=3))
