# expect: SS311 line 8
from accelerate import Accelerator

SCHEDULES = {}


def make(args, optimizer, accelerator: Accelerator):
    return SCHEDULES[args.schedule](
        optimizer,
        num_warmup_steps=args.warmup,
        num_training_steps=args.max_steps * accelerator.num_processes * args.accumulate,
    )
