import torch


class AverageMeter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch):
    model.train()
    meter = AverageMeter()
    for image, target in data_loader:
        image, target = image.to(device), target.to(device)
        output = model(image)
        loss = criterion(output, target)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        meter.update(loss.item(), image.shape[0])
    print(f"[{epoch}] loss {meter.avg:.4f} lr {optimizer.param_groups[0]['lr']:.4f}")


@torch.inference_mode()
def evaluate(model, criterion, data_loader, device):
    model.eval()
    loss_meter, acc_meter = AverageMeter(), AverageMeter()
    for image, target in data_loader:
        image, target = image.to(device), target.to(device)
        output = model(image)
        loss_meter.update(criterion(output, target).item(), image.shape[0])
        hits = (output.argmax(1) == target).float().mean().item()
        acc_meter.update(hits, image.shape[0])
    return loss_meter.avg, acc_meter.avg
