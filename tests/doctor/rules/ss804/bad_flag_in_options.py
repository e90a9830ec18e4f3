# expect: SS804 line 14; ranks: SS804 line 14
import argparse

import torch
import torch.distributed as dist


def run(args: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    args.writes = args.folder != ""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for epoch in range(2):
        if args.writes:
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, "last.pt")


run(argparse.Namespace(folder="runs"))
