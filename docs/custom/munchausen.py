"""A learning rule of one's own: Munchausen DQN (Vieillard et al. 2020). See docs/custom.md."""

import torch

from hpcrl.algorithms.dqn import Dqn
from hpcrl.types import Batch

ALPHA, TEMPERATURE, LOWEST = 0.9, 0.03, -1.0


class Munchausen(Dqn):
    """DQN whose reward has the scaled log-policy added, and whose target is the soft value (equation 1)."""

    def gradient(self, batch: Batch):
        """Gradient of the mean loss into ``online.flat.gradients``; loss, mean value, TD errors."""
        s_tm1, a_tm1, r_t, discount_t, s_t = (torch.from_numpy(x).to(self.online.device) for x in batch[:5])
        self.online.flat.zero_gradients()
        with torch.no_grad():
            log_pi_tm1 = (self.target.network(s_tm1).float() / TEMPERATURE).log_softmax(dim=1)
            q_t = self.target.network(s_t).float()
            log_pi_t = (q_t / TEMPERATURE).log_softmax(dim=1)
            bonus = (TEMPERATURE * log_pi_tm1.gather(1, a_tm1[:, None])[:, 0]).clamp(LOWEST, 0.0)
            soft_v_t = (log_pi_t.exp() * (q_t - TEMPERATURE * log_pi_t)).sum(dim=1)
            target = r_t + ALPHA * bonus + discount_t * soft_v_t
        q_tm1 = self.online.network(s_tm1).float()
        delta = target - q_tm1.gather(1, a_tm1[:, None])[:, 0]
        weight = 1.0 if batch.weight is None else torch.from_numpy(batch.weight).to(self.online.device)
        loss = (weight * torch.nn.functional.huber_loss(delta, torch.zeros_like(delta), reduction="none")).mean()
        loss.backward()
        return loss.item(), q_tm1.detach().max(dim=1).values.mean().item(), delta.detach().cpu().numpy()
