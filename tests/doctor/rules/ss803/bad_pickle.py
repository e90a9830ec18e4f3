# expect: SS803 line 13
import io
import pickle

import torch


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1).eval()

    def save(self, file: io.BytesIO) -> None:
        pickle.dump(self.model, file)


Trainer().save(io.BytesIO())
