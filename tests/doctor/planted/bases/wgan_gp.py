"""A WGAN with a gradient penalty: several critic steps for one step of the generator."""

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader, TensorDataset


class MLP(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        layers = []
        for a, b in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.net(x)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    gradients = autograd.grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


def train(epochs=3, n_critic=3, gp_weight=10.0, latent_dim=3):
    torch.manual_seed(0)
    points = torch.randn(240, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.3]]) + 1.0
    loader = DataLoader(TensorDataset(points), batch_size=24, shuffle=True)
    generator, critic = MLP([latent_dim, 24, 2]), MLP([2, 24, 24, 1])
    g_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    c_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    for epoch in range(epochs):
        for step, (real,) in enumerate(loader):
            noise = torch.randn(real.size(0), latent_dim)
            fake = generator(noise).detach()
            penalty = gradient_penalty(critic, real, fake)
            critic_loss = critic(fake).mean() - critic(real).mean() + gp_weight * penalty
            c_opt.zero_grad()
            critic_loss.backward()
            c_opt.step()

            if step % n_critic == 0:
                g_loss = -critic(generator(torch.randn(real.size(0), latent_dim))).mean()
                g_opt.zero_grad()
                g_loss.backward()
                g_opt.step()
        print(f"epoch {epoch}: critic {critic_loss.item():.3f} generator {g_loss.item():.3f}")


if __name__ == "__main__":
    train()
