"""weighted.py writes weighted.json: every policy loss with weights, and its derivative by each log-probability, by PyTorch in float64 from the formulas, on the values of losses.json.

    python weighted.py        # in this folder, with torch 2.15
"""
import json

import torch

golden = json.load(open("losses.json"))
lp0 = torch.tensor(golden["logprobs"], dtype=torch.float32).double()
q = torch.tensor(golden["sampling_logprobs"], dtype=torch.float32).double()
a = torch.tensor(golden["advantages"], dtype=torch.float32).double()
n = len(lp0)
torch.manual_seed(7)
signed = (torch.rand(n, dtype=torch.float64) * 3 - 1).float().double()  # some negative
signed[::7] = 0
signed[::5] = 1
plain = signed.abs()
mask = (torch.arange(n) % 3 != 0).double()


def terms(loss, lp, config):
    r = torch.exp(lp - q)
    low, high = config.get("clip_low_threshold"), config.get("clip_high_threshold")
    if loss == "importance_sampling":
        return -r * a
    if loss == "ppo":
        return -torch.minimum(r * a, torch.clamp(r, low, high) * a)
    if loss == "cispo":
        return -torch.clamp(r, low, high).detach() * lp * a
    if loss == "dro":
        return -(lp * a - 0.5 * config["beta"] * (lp - q) ** 2)
    if loss == "stable_reinforce":
        return -torch.clamp(r, max=config["ratio_cap"]).detach() * lp * a
    # gspo: the value of s, and the gradient that a token's own ratio has with that value
    s = torch.exp(((lp - q) * mask).sum() / mask.sum()).detach()
    own = s * torch.exp(lp - lp.detach())
    bounded = torch.clamp(s, low, high) * a
    return -torch.where(own * a <= bounded, own * a, bounded)  # equal: the free one


cases = []
for loss, config, weights in [
    ("importance_sampling", {}, "signed"),
    ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, "plain"),
    ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}, "plain"),
    ("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}, "signed"),
    ("cispo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, "signed"),
    ("dro", {"beta": 0.05}, "signed"),
    ("dro", {"beta": 0.0}, "signed"),
    ("gspo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, "plain"),
    ("gspo", {"clip_low_threshold": 0.5, "clip_high_threshold": 3.0}, "plain"),
    ("stable_reinforce", {"ratio_cap": 2.0}, "signed"),
]:
    lp = lp0.clone().requires_grad_()
    w = signed if weights == "signed" else plain
    each = w * terms(loss, lp, config)
    each.sum().backward()
    cases.append({"loss": loss, "config": config, "weights": weights, "terms": each.detach().tolist(), "loss_sum": each.sum().item(), "dloss_dlogprob": lp.grad.tolist()})
json.dump({"signed": signed.tolist(), "plain": plain.tolist(), "mask": mask.tolist(), "cases": cases}, open("weighted.json", "w"), indent=None)
