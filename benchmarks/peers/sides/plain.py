"""A loop in plain PyTorch, without any platform; `workers` are torch's threads."""

import torch
import torch.nn.functional as F

from benchmarks.peers.job import Job, accuracy, job


def train(run: Job) -> torch.nn.Module:
    """FedAvg: local SGD of the sampled clients, and the mean of their parameters."""
    workload, data = run.workload, run.arrays
    torch.set_num_threads(run.workers)
    model = run.network()
    params = list(model.parameters())
    server = [p.detach().clone() for p in params]
    for round in range(1, run.rounds + 1):
        model.train()
        total = [torch.zeros_like(p) for p in server]
        for client in torch.randperm(workload.clients)[: workload.cohort].tolist():
            x, y = data.client(client)
            with torch.no_grad():
                torch._foreach_copy_(params, server)
            for _ in range(workload.epochs):
                for batch in torch.randperm(len(y)).split(workload.batch_size):
                    gradients = torch.autograd.grad(F.cross_entropy(model(x[batch]), y[batch]), params)
                    with torch.no_grad():
                        torch._foreach_add_(params, gradients, alpha=-workload.lr)
            torch._foreach_add_(total, [p.detach() for p in params])
        server = [t / workload.cohort for t in total]
        score = None
        if run.tested(round):
            with torch.no_grad():
                torch._foreach_copy_(params, server)
            score = accuracy(model, data.test_x, data.test_y)
        run.report(round, score)
    with torch.no_grad():
        torch._foreach_copy_(params, server)
    return model


if __name__ == "__main__":
    train(job())
