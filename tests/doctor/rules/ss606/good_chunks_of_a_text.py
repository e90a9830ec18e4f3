# expect: nothing
import torch
from torch.utils.data import Dataset, random_split


class Chunks(Dataset):
    def __init__(self, tokens, length) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self):
        return len(self.tokens) // self.length

    def __getitem__(self, index):
        index = index * self.length
        return self.tokens[index : index + self.length]


train_set, val_set = random_split(Chunks(torch.randint(9, (100,)), 10), [8, 2])
