"""Images as people train on them: segmentation, detection, resizing, mixing, harder samples."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from surestep import samplers
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, seed_of, weights

GENERATOR = torch.Generator().manual_seed(11)
IMAGES = torch.randn(19, 2, 6, 6, generator=GENERATOR, dtype=torch.float64)
MASKS = torch.randint(0, 3, (19, 6, 6), generator=GENERATOR)
MASKS[torch.rand(19, 6, 6, generator=GENERATOR) < 0.3] = 255
MASKS[4] = 255  # an image without labels
KINDS = torch.randint(0, 3, (19,), generator=GENERATOR)


class UNet(nn.Module):
    """One level down and up, with a skip connection and GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 3, 1)
        self.double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        skip = self.down(x)
        deep = self.up(self.deep(F.max_pool2d(skip, 2)))
        logits = self.out(torch.cat([skip, deep], 1))
        return {"pixels": logits, "regions": logits}


def dice_by_hand(logits: Tensor, mask: Tensor) -> Tensor:
    """Return one minus the Dice of each labelled image, averaged, with the usual smoothing."""
    losses = []
    for scores, wanted in zip(logits.softmax(1), mask, strict=True):
        kept = wanted != 255
        if not kept.any():
            continue
        p = scores[:, kept]
        t = F.one_hot(wanted[kept], 3).T.double()
        losses.append(1 - ((2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean())
    return torch.stack(losses).mean()


def test_segmentation_with_dice_over_images_and_cross_entropy_over_pixels() -> None:
    net = UNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=8, power=0.9)
    losses = []
    for _ in range(2):
        for image, mask in in_batches(4, IMAGES[:13], MASKS[:13]):
            logits = net(image)["pixels"]
            loss = F.cross_entropy(logits, mask, ignore_index=255) + dice_by_hand(logits, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    with torch.no_grad():
        logits, mask = net(IMAGES[13:])["pixels"], MASKS[13:]
        pixels = F.cross_entropy(logits, mask, ignore_index=255).item()
        regions = dice_by_hand(logits, mask).item()
    confusion = torch.zeros(3, 3, dtype=torch.float64)
    kept = mask != 255
    for truth, guess in zip(mask[kept], logits.argmax(1)[kept], strict=True):
        confusion[truth, guess] += 1
    inside = confusion.diag()
    iou = (inside / (confusion.sum(0) + confusion.sum(1) - inside)).mean().item()

    class MeanIoU:
        """Counts a confusion matrix."""

        higher_is_better = True

        def reset(self) -> None:
            self.counts = torch.zeros(9, dtype=torch.long)

        def update(self, outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> None:
            kept = targets["pixels"] != 255
            pairs = 3 * targets["pixels"][kept] + outputs["pixels"].argmax(1)[kept]
            self.counts += pairs.bincount(minlength=9)

        def compute(self) -> float:
            table = self.counts.view(3, 3).double()
            inside = table.diag()
            return float((inside / (table.sum(0) + table.sum(1) - inside)).mean())

    ours_net = UNet()
    task = surestep.Task(
        ours_net,
        {
            "pixels": nn.CrossEntropyLoss(ignore_index=255),
            "regions": surestep.losses.dice(ignore_index=255),
        },
        train=(IMAGES[:13], MASKS[:13]),
        val=(IMAGES[13:], MASKS[13:]),
        inputs=lambda batch: (batch[0], {"pixels": batch[1], "regions": batch[1]}),
        metrics={"iou": MeanIoU()},
    )
    config = plain_config(
        epochs=2,
        batch_size=4,
        micro_batch_size=3,
        schedule={"name": "polynomial", "power": 0.9},
        optim={"momentum": 0.9, "weight_decay": 1e-3, "groups": ["* decay=1e-3"]},
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]
    found = session.evaluate()

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same([pixels, regions], [found["val/loss_pixels"], found["val/loss_regions"]])
    assert_same([pixels + regions, iou], [found["val/loss"], found["val/iou"]])


class Detector(nn.Module):
    """Finds boxes at fixed anchors; in training it returns losses over the anchors that match."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU())
        self.scores, self.boxes = nn.Conv2d(4, 1, 1), nn.Conv2d(4, 4, 1)
        self.double()

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        found = [self.body(image[None]) for image in images]
        scores = [self.scores(each).flatten() for each in found]
        boxes = [self.boxes(each)[0].flatten(1).T for each in found]
        if not self.training:
            return [
                {"score": s.max()[None].sigmoid(), "box": b[s.argmax()][None]}
                for s, b in zip(scores, boxes, strict=True)
            ]
        assert targets is not None
        at = [target["anchors"] for target in targets]
        wanted = [
            torch.zeros_like(s).index_fill(0, a, 1.0) for s, a in zip(scores, at, strict=True)
        ]
        count = sum(len(a) for a in at)
        of_scores = F.binary_cross_entropy_with_logits(
            torch.cat(scores), torch.cat(wanted), reduction="sum"
        )
        picked = torch.cat([b[a] for b, a in zip(boxes, at, strict=True)])
        boxes_of = torch.cat([target["boxes"] for target in targets])
        distance = F.smooth_l1_loss(picked, boxes_of, reduction="sum")
        return {"loss_score": of_scores / count, "loss_box": distance / count}


def scenes(count: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Return images of different sizes with 1 to 3 boxes."""
    g = torch.Generator().manual_seed(12)
    found = []
    for i in range(count):
        height, width, boxes = 4 + i % 3, 5 - i % 2, 1 + (2 * i) % 3
        image = torch.randn(2, height, width, generator=g, dtype=torch.float64)
        anchors = torch.randperm(height * width, generator=g)[:boxes]
        target = torch.rand(boxes, 4, generator=g, dtype=torch.float64)
        found.append((image, {"anchors": anchors, "boxes": target}))
    return found


def collate_scenes(samples: list[Any]) -> tuple[list[Any], list[Any]]:
    """Keep images and targets in lists."""
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


class Distance:
    """The mean distance between the best box and the first true one, over images."""

    higher_is_better = False

    def reset(self) -> None:
        self.total, self.images = 0.0, 0

    def update(self, predictions: list[Any], targets: list[Any]) -> None:
        for found, target in zip(predictions, targets, strict=True):
            self.total += float((found["box"][0] - target["boxes"][0]).abs().sum())
            self.images += 1

    def compute(self) -> dict[str, float]:
        return {"mean": self.total / self.images, "count": float(self.images)}


@pytest.mark.parametrize("micro", [5, 2])
def test_detector_whose_losses_are_means_over_its_boxes(micro: int) -> None:
    data = scenes(20)
    train, val = data[:13], data[13:]
    net = Detector()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(2):
        for first in range(0, 13, 5):
            images, targets = collate_scenes(train[first : first + 5])
            optimizer.zero_grad()
            loss = sum(net(images, targets).values())
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.5)
            optimizer.step()
            losses.append(loss.item())
    net.eval()
    metric = Distance()
    metric.reset()
    with torch.no_grad():
        images, targets = collate_scenes(val)
        metric.update(net(images), targets)

    ours_net = Detector()
    task = surestep.Task(
        ours_net,
        "model in training",
        items=lambda batch: sum(len(target["anchors"]) for target in batch[1]),
        train=train,
        val=val,
        collate_fn=collate_scenes,
        metrics={"distance": Distance()},
    )
    config = plain_config(
        epochs=2,
        batch_size=5,
        micro_batch_size=micro,
        max_grad_norm=1.5,
        optim={"lr": 0.02, "momentum": 0.9},
        validation={"batch_size": 3, "metric": "distance_mean"},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]
    found = session.evaluate()

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same(metric.compute(), {k: found[f"val/distance_{k}"] for k in ("mean", "count")})


class Resized(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Images that are larger in later epochs."""

    def __init__(self) -> None:
        self.size = 3

    def set_epoch(self, epoch: int) -> None:
        self.size = 3 + epoch

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = F.interpolate(IMAGES[index][None], self.size, mode="bilinear")[0]
        return image, KINDS[index]


class Pooled(nn.Module):
    """A convolution and the mean over pixels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(2, 5, 3, padding=1).double()
        self.head = nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu().mean((2, 3)))


@pytest.mark.parametrize(
    ("workers", "stop", "split"), [(0, 100, False), (0, 5, True), (2, 4, True)]
)
def test_images_that_grow_by_epoch_with_workers_and_a_resume(
    workers: int, stop: int, split: bool
) -> None:
    data, net = Resized(), Pooled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses, step = [], 0
    for epoch in range(3):
        data.set_epoch(epoch)
        made = torch.Generator().manual_seed(seed_of("order", 0, epoch))
        for part in torch.randperm(13, generator=made).split(5):
            pairs = zip(*(data[i] for i in part.tolist()), strict=True)
            x, y = (torch.stack(each) for each in pairs)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    ours: list[float] = []
    for stop_at in (stop, 100):
        ours_net = Pooled()
        source: Any = Resized()
        if split:
            source = torch.utils.data.Subset(source, range(13))
        task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=source)
        config = plain_config(
            epochs=3,
            batch_size=5,
            data={"shuffle": True, "num_workers": workers},
            optim={"momentum": 0.9},
        )
        with surestep.prepare(task, config, run="run") as session:
            for result in session.steps():
                step = result.step
                ours.append(float(result.loss))
                if step % 2 == 0:
                    session.evaluate("train")  # in which the images are small again
                if step == stop_at:
                    session.save()
                    break
        if stop > 9:
            break

    assert_same([losses, weights(net)], [ours, weights(ours_net)])


def test_mixed_images_with_both_classes_in_the_loss() -> None:
    net = Pooled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    losses, step = [], 0
    for _ in range(2):
        for x, y in in_batches(5, IMAGES[:13], KINDS[:13]):
            torch.manual_seed(seed_of("transform", 0, step))
            share, partner = torch.rand(()).double(), torch.randperm(len(x))
            logits = net(share * x + (1 - share) * x[partner])
            loss = share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(
                logits, y[partner]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
    with torch.no_grad():
        validated = F.cross_entropy(net(IMAGES[13:]), KINDS[13:]).item()

    def mix(x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
        share, partner = torch.rand(()).double(), torch.randperm(len(x))
        mixed = share * x + (1 - share) * x[partner]
        return mixed, {"y": y, "other": y[partner], "share": share.expand(len(x))}

    def mixed_loss(logits: Tensor, targets: Any) -> Tensor:
        if isinstance(targets, Tensor):
            return F.cross_entropy(logits, targets)
        own = F.cross_entropy(logits, targets["y"], reduction="none")
        other = F.cross_entropy(logits, targets["other"], reduction="none")
        return (targets["share"] * own + (1 - targets["share"]) * other).mean()

    ours_net = Pooled()
    task = surestep.Task(
        ours_net,
        mixed_loss,
        train=(IMAGES[:13], KINDS[:13]),
        val=(IMAGES[13:], KINDS[13:]),
        batch_transform=mix,
    )
    config = plain_config(
        epochs=2,
        batch_size=5,
        micro_batch_size=2,
        optim={"lr": 0.2},
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same(validated, session.evaluate()["val/loss"])


def test_curriculum_of_easy_samples_first_with_random_draws() -> None:
    difficulty = IMAGES[:13].square().mean((1, 2, 3)).argsort()

    def order_of(seed: int, epoch: int) -> Tensor:
        known = difficulty[: 5 + 4 * epoch]
        return known[torch.randint(0, len(known), (11,))]

    net = Pooled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    losses = []
    for epoch in range(3):
        torch.manual_seed(seed_of("sampler", 0, epoch, 0))
        for part in order_of(0, epoch).split(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(IMAGES[part]), KINDS[part])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    ours_net = Pooled()
    task = surestep.Task(
        ours_net,
        nn.CrossEntropyLoss(),
        train=(IMAGES[:13], KINDS[:13]),
        sampler=samplers.custom(order_of),
    )
    config = surestep.Config(
        epochs=3,
        batch_size=4,
        max_grad_norm=None,
        schedule="constant",
        logging={"progress": "quiet"},
        optim={"name": "sgd", "lr": 0.2, "momentum": 0.0, "weight_decay": 0.0},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
