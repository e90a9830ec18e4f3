# expect: nothing
from transformers import get_scheduler


def train(args, model, optimizer, loader):
    steps = args.updates * args.accumulate
    schedule = get_scheduler("linear", optimizer, 0, num_training_steps=steps)
    for batch in loader:
        model(batch).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
