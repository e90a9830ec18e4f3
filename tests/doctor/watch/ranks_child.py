"""Run the examples of all rules that train on two ranks, each on two forked processes.

python -m tests.doctor.watch.ranks_child FOLDER

Each rank writes a report of each example to FOLDER/rule.example.rank.json.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # a forked process would import it again, for DistributedDataParallel
import torch.distributed.fsdp

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession
from tests.doctor.examples import list_examples
from tests.multi_rank.torchrun import free_port


def watch_example(example):
    """Run an example under all rules; return the report of this rank."""
    code = example.compile()
    watch = WatchSession(load_rules())
    torch.manual_seed(0)
    script = {"__name__": "__main__"}  # its models are alive when the rules report
    try:
        watch.run(lambda: exec(code, script))
    except RuntimeError as error:  # a rank that ends breaks the connection to the other one
        if example.kind == "good":
            raise
        print(f"{example.code} {example.name}: {error}")
    return watch.report()


def run_rank(rank, port, example, folder):
    """Run an example as one of two ranks, and write its report."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    report = watch_example(example)
    name = f"{example.code}.{example.name}.{rank}.json"
    Path(folder, name).write_text(json.dumps(report.to_json()))
    sys.stdout.flush()
    os._exit(0)


def main(folder):
    """Run all examples in a folder."""
    load_rules()
    os.chdir(folder)
    Path("out").mkdir(exist_ok=True)
    processes = multiprocessing.get_context("fork")
    for example in (made for made in list_examples() if "ranks" in made.expected):
        port = free_port()
        ranks = [
            processes.Process(target=run_rank, args=(rank, port, example, folder))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(timeout=100)
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
