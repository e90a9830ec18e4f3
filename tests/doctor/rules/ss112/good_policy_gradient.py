# expect: nothing
import torch


class Agent:
    def __init__(self) -> None:
        self.policy, self.critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.1)
        self.log_probs: list[torch.Tensor] = []
        self.values: list[float] = []

    def act(self, state: torch.Tensor) -> None:
        actions = torch.distributions.Categorical(logits=self.policy(state))
        self.log_probs.append(actions.log_prob(actions.sample()))
        self.values.append(self.critic(state).item())

    def finish(self) -> None:
        advantages = 1.0 - torch.tensor(self.values)
        loss = -sum(p * a for p, a in zip(self.log_probs, advantages))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


agent = Agent()
for _ in range(3):
    agent.act(torch.randn(4))
agent.finish()
