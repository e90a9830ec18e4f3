# expect: SS603 line 21; watch: SS603 line 22
import torch
from torch.utils.data import DataLoader, Dataset


class Flipped(Dataset):
    def __init__(self, images, seed) -> None:
        self.images = images
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        is_flipped = torch.rand(1, generator=self.generator) < 0.5
        return image.flip(-1) if is_flipped else image


data = Flipped(torch.randn(64, 1, 4, 4), seed=1)
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
for batch in loader:
    print(batch.mean(dtype=torch.float))
