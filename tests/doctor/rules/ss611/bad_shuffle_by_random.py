# expect: SS611 line 10
import random

import torch


def main(seed) -> None:
    torch.manual_seed(seed)
    names = [f"sample-{i}" for i in range(20)]
    random.shuffle(names)
    model = torch.nn.Linear(4, 1)


main(seed=1)
