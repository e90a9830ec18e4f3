# expect: nothing
from accelerate import Accelerator
from transformers import get_scheduler


def prepare(args, model, optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    steps = len(loader) * args.epochs // args.accumulate
    schedule = get_scheduler("linear", optimizer, 0, num_training_steps=steps)
    return accelerator.prepare(model, optimizer, loader, schedule)
