"""Bare loops of PPO on Pong: simulators, forward passes, gradients and Adam's steps, with no other code of hpcrl.

A program like `hpcrl.bench._dqn_bound`, and asked in the same way; its argument is how many processes share the work. A
rollout is 128 steps of 8 simulators, each with the forward pass that chooses their actions; then 4 epochs of 4
minibatches, each with its gradient of 256 steps and its optimizer step. Of several processes each has its part of the
simulators and minibatches. One pass is a quarter of that: 32 steps, then 4 minibatches. Parts do not alternate faster
than that because for some milliseconds threads of one look for further work on the cores that those of the next need.
"""

import sys
from collections.abc import Mapping

import torch

from hpcrl.bench import _dqn_bound
from hpcrl.bench._dqn_bound import BareLoop, Variant

PARTS = ("simulation", "inference", "gradient", "optimizer")
SIMULATORS, HORIZON, EPOCHS, MINIBATCHES = 8, 128, 4, 4
CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT, MAX_NORM = 0.1, 0.5, 0.01, 0.5


class PpoLoop(BareLoop):
    """Simulators, a network with an output for each action and one for the value, Adam, and a rollout of random frames.

    Parameters
    ----------
    simulators, horizon
        ``E`` and ``T``.
    """

    parts = PARTS

    def __init__(self, simulators: int = SIMULATORS, horizon: int = HORIZON):
        super().__init__(simulators, batch_size=1)
        self.steps = horizon // EPOCHS
        self.num_actions, steps = int(self._simulators(1).single_action_space.n), simulators * horizon
        self.network = _dqn_bound.nature_network(self.num_actions + 1)
        self.frozen = {
            "float32": self.network,
            "bfloat16": _dqn_bound.nature_network(self.num_actions + 1).to(torch.bfloat16),
        }
        self.adam = torch.optim.Adam(self.network.parameters(), lr=2.5e-4, eps=1e-5, fused=True)
        self.minibatch = steps // MINIBATCHES
        self.rollout = torch.randint(0, 256, (steps, 4, 84, 84), dtype=torch.uint8)
        self.taken = torch.randint(0, self.num_actions, (steps,))
        self.log_mu = torch.full((steps,), -1.8)
        self.advantages, self.returns = torch.randn(2, steps)

    @torch.inference_mode()
    def inference(self, variant: Variant) -> None:
        """An action of every simulator, drawn from the policy, with its probability and the value."""
        with variant.autocast():
            outputs = self.frozen[variant.precision](variant.to(torch.from_numpy(self.observation))).float()
        policy = torch.distributions.Categorical(logits=outputs[:, :-1], validate_args=False)
        actions = policy.sample()
        policy.log_prob(actions)
        self.actions = actions.numpy()

    def gradient(self, variant: Variant) -> None:
        """The gradient of a minibatch, clipped to its norm."""
        rows = torch.randperm(len(self.rollout))[: self.minibatch]
        advantage = self.advantages[rows]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        self.adam.zero_grad()
        with variant.autocast():
            outputs = self.network(variant.to(self.rollout[rows])).float()
        policy = torch.distributions.Categorical(logits=outputs[:, :-1], validate_args=False)
        ratio = (policy.log_prob(self.taken[rows]) - self.log_mu[rows]).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        value_loss = 0.5 * (outputs[:, -1] - self.returns[rows]).square().mean()
        (VALUE_WEIGHT * value_loss - surrogate - ENTROPY_WEIGHT * policy.entropy().mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)

    def optimizer(self, variant: Variant) -> None:
        """Adam's step."""
        self.adam.step()

    def _update(self, choice: Mapping[str, Variant], spent: dict[str, float]) -> None:
        for parts, times in ((PARTS[:2], self.steps), (PARTS[2:], MINIBATCHES)):
            for _ in range(times):
                self._do(parts, choice, spent)


if __name__ == "__main__":
    _dqn_bound.answer(PpoLoop(SIMULATORS // int(sys.argv[1])))
