# expect: SS311 line 10
from accelerate import Accelerator
from transformers import get_cosine_schedule_with_warmup


def prepare(args, model, optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    warmup = args.warmup * args.gradient_accumulation_steps
    steps = args.max_train_steps * args.gradient_accumulation_steps
    schedule = get_cosine_schedule_with_warmup(optimizer, warmup, num_training_steps=steps)
    return accelerator.prepare(model, optimizer, loader, schedule)
