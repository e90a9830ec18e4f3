# expect: nothing
import torch
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer


def train(model, batches, parameters):
    optimizer = DistributedOptimizer(torch.optim.SGD, [rpc.RRef(p) for p in parameters], lr=0.1)
    for x in batches:
        with autograd.context() as context:
            autograd.backward(context, [model(x).sum()])
            optimizer.step(context)  # the gradients are those of the context
