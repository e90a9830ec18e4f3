# expect: nothing; ranks: SS804 line 14
import os

import torch


class Trainer:
    def __init__(self, folder: str) -> None:
        torch.distributed.init_process_group(backend="gloo")
        self.folder = folder
        self.model = torch.nn.Linear(4, 1)

    def save_on_main(self) -> None:
        torch.save(self.model.state_dict(), os.path.join(self.folder, "model.pt"))


Trainer("out").save_on_main()
