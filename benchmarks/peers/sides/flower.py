"""Flower by its message API, as its PyTorch quickstart writes it; `workers` are clients trained at the same time.

`flwr run` installs an app and starts services; `run_simulation` is the same simulation runtime in one process.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.job import accuracy, job

RUN = job()


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Trains the model in the message on the client's samples."""
    torch.set_num_threads(1)
    workload, data = RUN.workload, RUN.arrays
    model = RUN.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    torch.seed()
    loader = DataLoader(
        TensorDataset(*data.client(int(context.node_config["partition-id"]))), workload.batch_size, shuffle=True
    )
    criterion, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=workload.lr)
    model.train()
    for _ in range(workload.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(loader.dataset)})  # type: ignore[arg-type]
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """FedAvg, evaluated at the server."""
    workload, data = RUN.workload, RUN.arrays
    model = RUN.network()

    def evaluate(round: int, received: ArrayRecord) -> MetricRecord | None:
        if round == 0:
            return None
        score = None
        if RUN.tested(round):
            model.load_state_dict(received.to_torch_state_dict())
            score = accuracy(model, data.test_x, data.test_y)
        RUN.report(round, score)
        return None if score is None else MetricRecord({"accuracy": score})

    strategy = FedAvg(
        fraction_train=workload.cohort / workload.clients,
        fraction_evaluate=0.0,
        min_available_nodes=workload.clients,
    )
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=RUN.rounds, evaluate_fn=evaluate
    )


if __name__ == "__main__":
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=RUN.workload.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": RUN.workers},
        },
    )
