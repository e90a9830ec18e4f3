# expect: SS908 line 10
import torch


class Learner:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)

    def predict(self, x):
        with torch.inference_mode(), torch.cpu.amp.autocast(dtype=torch.bfloat16):
            return self.model(x)


Learner().predict(torch.randn(8, 4))
