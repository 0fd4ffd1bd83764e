"""FedAvg with full batches as a loop of plain PyTorch: the truth for runs of users' modules."""

import torch
from torch import nn


def fedavg(make, start, batches, rounds=3, steps=3, lr=0.1, trained=nn.Module.parameters):
    """The parameters after some rounds of `steps` steps of SGD on every client.

    make: makes the module of a client's local work; start [d]: the initial parameters; batches: (x, y) of each client;
    trained: module -> the parameters that are trained, d numbers.
    """
    for _ in range(rounds):
        ends = []
        for x, y in batches:
            module = make()
            module.log = lambda *args, **options: None
            parameters = list(trained(module))
            nn.utils.vector_to_parameters(start.clone(), parameters)
            optimizer = torch.optim.SGD(parameters, lr)
            for t in range(steps):
                optimizer.zero_grad()
                module.training_step((x.clone(), y.clone()), t).backward()
                optimizer.step()
            ends.append(nn.utils.parameters_to_vector(parameters).detach())
        start = torch.stack(ends).mean(0)
    return start
