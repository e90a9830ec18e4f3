# expect: SS704 line 14
import torch
from torch.utils.data import Dataset


class Samples(Dataset):
    def __init__(self) -> None:
        self.x = torch.randn(16, 4)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.x[index].cuda()


print(len(Samples()))
