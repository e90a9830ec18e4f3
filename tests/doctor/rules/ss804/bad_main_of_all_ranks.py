# expect: SS804 line 14; ranks: SS804 line 14
import os

import torch


class Trainer:
    def __init__(self, folder: str) -> None:
        torch.distributed.init_process_group(backend="gloo")
        self.folder = folder
        self.model = torch.nn.Linear(4, 1)

    def main(self) -> None:
        torch.save(self.model.state_dict(), os.path.join(self.folder, "model.pt"))


Trainer("out").main()
