"""A detector with the interface of torchvision's: a dict of losses in training, boxes otherwise."""

import torch
from torch import nn
from torch.utils.data import Dataset

CELLS, SAMPLED = 4, 6


class Images(Dataset):
    """Images of several sizes, each with 0 to 3 boxes and a label for each."""

    def __init__(self, samples=10, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.samples = []
        for index in range(samples):
            height, width = (16 + 2 * (index % 3), 16 + 2 * (index % 2))
            count = index % 4
            corner = 8 * torch.rand(count, 2, generator=generator)
            size = 2 + 5 * torch.rand(count, 2, generator=generator)
            target = {
                "image_id": torch.tensor(index),
                "boxes": torch.cat([corner, corner + size], dim=1),
                "labels": torch.randint(1, 3, (count,), generator=generator),
            }
            self.samples.append((torch.rand(3, height, width, generator=generator), target))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def collate(samples):
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


class Detector(nn.Module):
    """One box and its class for each cell of a grid.

    In training its losses are means over randomly drawn cells of the full batch.
    """

    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(CELLS),
        )
        self.label = nn.Conv2d(8, classes, 1)
        self.box = nn.Conv2d(8, 4, 1)

    def forward(self, images, targets=None):
        if self.training and targets is None:
            raise ValueError("targets should not be None when in training mode")
        height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
        padded = torch.stack(
            [
                nn.functional.pad(image, (0, width - image.shape[2], 0, height - image.shape[1]))
                for image in images
            ]
        )
        features = self.body(padded)
        logits = self.label(features).flatten(2).transpose(1, 2)  # (images, cells, classes)
        boxes = self.box(features).flatten(2).transpose(1, 2)
        if not self.training:
            return [self._found(*outputs) for outputs in zip(logits, boxes, strict=True)]
        labels, wanted = self._assign(targets, boxes)
        chosen = torch.randperm(labels.numel())[:SAMPLED]
        of_object = labels.flatten() > 0
        return {
            "loss_classifier": nn.functional.cross_entropy(
                logits.flatten(0, 1)[chosen], labels.flatten()[chosen]
            ),
            "loss_box_reg": nn.functional.l1_loss(
                boxes.flatten(0, 1)[of_object], wanted.flatten(0, 1)[of_object], reduction="sum"
            )
            / max(int(of_object.sum()), 1),
        }

    def _found(self, logits, boxes):
        scores, labels = logits.softmax(1).max(1)
        kept = labels > 0
        return {"boxes": boxes[kept], "labels": labels[kept], "scores": scores[kept]}

    def _assign(self, targets, boxes):
        labels = torch.zeros(boxes.shape[:2], dtype=torch.long)
        wanted = torch.zeros_like(boxes)
        for index, target in enumerate(targets):
            for number, (box, label) in enumerate(
                zip(target["boxes"], target["labels"], strict=True)
            ):
                labels[index, number] = label
                wanted[index, number] = box
        return labels, wanted


class Recall:
    """A metric like torchmetrics': takes lists of dicts, returns a dict of values."""

    higher_is_better = True

    def __init__(self):
        self.reset()

    def reset(self):
        self.seen, self.matched, self.boxes = 0, 0, 0

    def update(self, predictions, targets):
        assert len(predictions) == len(targets)
        self.seen += len(predictions)
        for found, target in zip(predictions, targets, strict=True):
            self.boxes += len(target["labels"])
            self.matched += sum(int(label in found["labels"]) for label in target["labels"])

    def compute(self):
        return {"any": self.matched / max(self.boxes, 1), "images": torch.tensor(self.seen)}
