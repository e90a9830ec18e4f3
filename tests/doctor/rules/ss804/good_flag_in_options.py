# expect: nothing; ranks: nothing
import argparse

import torch
import torch.distributed as dist


def is_first_process(options: argparse.Namespace) -> bool:
    return options.position == 0


def prepare(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    options.position = dist.get_rank()
    options.writes = options.folder != "" and is_first_process(options)


def run(args: argparse.Namespace) -> None:
    prepare(args)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for epoch in range(2):
        if args.writes:
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, "last.pt")


run(argparse.Namespace(folder="runs"))
