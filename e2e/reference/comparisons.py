"""Thirteen comparisons of two servers that speak the Tinker API and serve the same base model, with the official SDK.

    REFERENCE_URL=… REFERENCE_KEY=… .venv/bin/python e2e/reference/comparisons.py --url http://127.0.0.1:8000 --model Qwen/Qwen3-4B-Instruct-2507

compares a server of yours with another one: another Tinsmith, another open server, or the hosted service (whose URL is the SDK's default: leave REFERENCE_URL
out). REFERENCE_MODEL is the model's name there, if it is another. The exit status is 1 if a comparison differs.

Two programs round differently, and draw the first values of an adapter differently, so a distance is allowed: in log-probabilities 0.05 on average, in what
training has changed a third of it. `--exact` allows none: for two servers of the same program with the same arithmetic.
"""

import argparse
import os
import sys

import numpy as np
import tinker
from tinker import types

RATE = 1e-3
TEXTS = (
    "The blacksmith heats the iron until it glows, and then shapes it on the anvil.",
    "What is 2 + 3? It is 5. What is 4 + 4? It is 8.",
    "A tinsmith makes and mends things of tin: cups, lanterns, pails and roofs.",
)

MEAN = 0.05  # of the distances of log-probabilities, in nats
CHANGE = 1 / 3  # of what training has changed
PREFIX = 0.25  # of greedy tokens: one that is nearly as likely may be taken, and then the rest differs


class Found:
    """What a comparison has found on one server: arrays by name, with what is allowed of each."""

    def __init__(self):
        self.values: dict[str, tuple[str, np.ndarray]] = {}

    def logprobs(self, name, values):
        """Log-probabilities, or a loss in nats per token."""
        self.values[name] = ("logprobs", np.asarray(values, np.float64))

    def trained(self, name, losses, before):
        """Losses in the course of training, of which the first is before it, and the log-probabilities then: averages hide much."""
        self.logprobs("log-probabilities before training", before)
        self.values[name] = ("trained", np.asarray(losses, np.float64))

    def tokens(self, name, values):
        self.values[name] = ("tokens", np.asarray(values, np.int64))


def result(future):
    return future.result() if hasattr(future, "result") else future


class Side:
    """One of the two servers, and what every comparison needs of it."""

    def __init__(self, url, key, model):
        given = {"api_key": key} if key else {}
        if url:
            given["base_url"] = url
        self.model, self.service = model, tinker.ServiceClient(**given)
        self.tokenizer = self.trainer().get_tokenizer()
        self.data = [self.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
        self.count = sum(len(tokens) - 1 for tokens in self.data)

    def trainer(self):
        return result(self.service.create_lora_training_client(base_model=self.model, rank=8, seed=7))

    def base(self):
        return result(self.service.create_sampling_client(base_model=self.model))

    def datums(self, **more):
        """A datum for each text. more has functions that give an input for a number of positions."""
        made = []
        for tokens in self.data:
            n = len(tokens) - 1
            inputs = {"weights": np.ones(n, np.float32)} if not more else {name: np.asarray(f(n), np.float32) for name, f in more.items()}
            made.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={"target_tokens": np.asarray(tokens[1:], np.int64), **inputs}))
        return made

    def step(self, client, data=None, loss="cross_entropy"):
        done = client.forward_backward(data or self.datums(), loss)
        client.optim_step(types.AdamParams(learning_rate=RATE)).result()
        return done.result()


def per_token(side, output):
    return [output.metrics["loss:sum"] / side.count]


def logprobs(output):
    return np.concatenate([np.asarray(each["logprobs"].data, np.float64) for each in output.loss_fn_outputs])


def sawtooth(n):
    """Advantages of both signs."""
    return [(-1.0) ** i * (1 + i % 3) / 2 for i in range(n)]


def earlier(n):
    """Log-probabilities that a sampler may have given: some above, some below what the model says."""
    return [-0.5 - (i * 7 % 5) for i in range(n)]


def of_loss(loss):
    def compare(side, found):
        inputs = {"logprobs": earlier, "advantages": sawtooth}
        output = side.trainer().forward_backward(side.datums(**inputs), loss).result()
        found.logprobs("log-probabilities", logprobs(output))
        # A ratio far from one makes single terms large; what is compared grows with the logarithm.
        found.logprobs("loss", [np.sign(output.metrics["loss:sum"]) * np.log1p(abs(output.metrics["loss:sum"] / side.count))])

    return compare


def cross_entropy(side, found):
    output = side.trainer().forward_backward(side.datums(), "cross_entropy").result()
    found.logprobs("log-probabilities", logprobs(output))
    found.logprobs("loss", per_token(side, output))


def forward(side, found):
    output = side.trainer().forward(side.datums(), "cross_entropy").result()
    found.logprobs("log-probabilities", logprobs(output))


def custom_loss(side, found):
    client = side.trainer()

    def square(data, values):
        total = sum((v**2).sum() for v in values)
        return total, {"square": float(total.detach())}

    first = client.forward_backward_custom(side.datums(), square).result()
    losses = [np.log1p(first.metrics["square"] / side.count)]
    client.optim_step(types.AdamParams(learning_rate=RATE)).result()
    losses.append(np.log1p(client.forward_backward_custom(side.datums(), square).result().metrics["square"] / side.count))
    found.trained("losses", losses, logprobs(first))


def steps(side, found):
    client = side.trainer()
    outputs = [side.step(client) for _ in range(5)]
    found.trained("losses", [per_token(side, output)[0] for output in outputs], logprobs(outputs[0]))


def accumulation(side, found):
    client = side.trainer()
    losses, before = [], None
    for _ in range(3):
        futures = [client.forward_backward([datum], "cross_entropy") for datum in side.datums()]
        client.optim_step(types.AdamParams(learning_rate=RATE)).result()
        parts = [future.result() for future in futures]
        losses.append(sum(part.metrics["loss:sum"] for part in parts) / side.count)
        before = before if before is not None else np.concatenate([logprobs(part) for part in parts])
    found.trained("losses", losses, before)


def resumed(side, found):
    client = side.trainer()
    outputs = [side.step(client) for _ in range(2)]
    path = client.save_state("reference-resumed", ttl_seconds=3600).result().path
    again = result(side.service.create_training_client_from_state_with_optimizer(path))
    outputs += [side.step(again) for _ in range(2)]
    found.trained("losses", [per_token(side, output)[0] for output in outputs], logprobs(outputs[0]))


def greedy(side, found):
    client = side.base()
    firsts = []
    for i, tokens in enumerate(side.data):
        answer = client.sample(types.ModelInput.from_ints(tokens[: len(tokens) // 2]), num_samples=1, sampling_params=types.SamplingParams(max_tokens=12, temperature=0)).result().sequences[0]
        found.tokens(f"tokens of text {i}", answer.tokens)
        firsts.append(answer.logprobs[0])
    found.logprobs("log-probabilities of the first tokens", firsts)


def prompt_logprobs(side, found):
    client = side.base()
    for i, tokens in enumerate(side.data):
        found.logprobs(f"text {i}", client.compute_logprobs(types.ModelInput.from_ints(tokens)).result()[1:])


def top_prompt_logprobs(side, found):
    params = types.SamplingParams(max_tokens=1, temperature=0)
    answer = side.base().sample(types.ModelInput.from_ints(side.data[0]), num_samples=1, sampling_params=params, include_prompt_logprobs=True, topk_prompt_logprobs=3).result()
    found.logprobs("the three likeliest", [value for row in answer.topk_prompt_logprobs[1:] for _, value in row])


def trained_sampler(side, found):
    client = side.trainer()
    before = side.base().compute_logprobs(types.ModelInput.from_ints(side.data[0])).result()[1:]
    for _ in range(3):
        side.step(client)
    sampler = result(client.save_weights_and_get_sampling_client())
    after = sampler.compute_logprobs(types.ModelInput.from_ints(side.data[0])).result()[1:]
    found.trained("losses", [-np.mean(before), -np.mean(after)], before)


COMPARISONS = {
    "cross_entropy": cross_entropy,
    "importance_sampling": of_loss("importance_sampling"),
    "ppo": of_loss("ppo"),
    "cispo": of_loss("cispo"),
    "dro": of_loss("dro"),
    "custom loss": custom_loss,
    "forward": forward,
    "steps of Adam": steps,
    "accumulated gradients": accumulation,
    "resumed from a state": resumed,
    "greedy samples": greedy,
    "log-probabilities of prompts": prompt_logprobs,
    "a trained adapter's sampler": trained_sampler,
}
EXTRA = {"likeliest tokens of prompts": top_prompt_logprobs}  # not every server has it: asked with --extra


def collect(side, names=tuple(COMPARISONS)):
    """What every comparison finds on one server. One that fails there has its error."""
    everything = COMPARISONS | EXTRA
    found = {}
    for name in names:
        one = Found()
        try:
            everything[name](side, one)
            found[name] = one.values
        except Exception as error:  # of any kind: it is shown, and the others go on
            found[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return found


def distance(kind, ours, theirs, exact):
    """The distance of two arrays and what is allowed of it; "" or what is wrong with their form."""
    if kind == "tokens":
        n = max(len(ours), len(theirs), 1)
        same = next((i for i in range(min(len(ours), len(theirs))) if ours[i] != theirs[i]), min(len(ours), len(theirs)))
        return 1 - same / n, 0.0 if exact else 1 - PREFIX
    if kind == "trained" and not exact:
        change = abs(theirs[-1] - theirs[0])
        return float(np.abs((ours - ours[0]) - (theirs - theirs[0])).max() / max(change, 1e-9)), CHANGE
    return float(np.abs(ours - theirs).mean()), 0.0 if exact else MEAN


def compare(ours, theirs, exact=False):
    """Rows of name, whether it agrees, and what is to be said, of two collections."""
    rows = []
    for name, mine in ours.items():
        other = theirs[name]
        if isinstance(mine, str) or isinstance(other, str):
            said = "; ".join(f"{who}: {what}" for who, what in (("here", mine), ("reference", other)) if isinstance(what, str))
            rows.append((name, False, said))
            continue
        worst, agrees = "nothing was compared", bool(mine)
        for part, (kind, values) in mine.items():
            reference = other[part][1]
            if kind != "tokens" and values.shape != reference.shape:
                worst, agrees = f"{part}: {values.size} values, the reference has {reference.size}", False
                break
            far, allowed = distance(kind, values, reference, exact)
            good = far <= allowed and not (exact and not np.array_equal(values, reference, equal_nan=True))
            if not good or worst == "nothing was compared":
                worst = f"{part}: distance {far:.3g}, allowed {allowed:.3g}"
            if not good:
                n = min(len(values), len(reference))
                at = next((i for i in range(n) if values[i] != reference[i]), n - 1)
                worst += f"; first at {at}: {values[at].item()!r} here, {reference[at].item()!r} there" if n else ""
                agrees = False
                break
        rows.append((name, agrees, worst))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=os.environ.get("TINKER_BASE_URL", "http://127.0.0.1:8000"), help="the server that is compared")
    parser.add_argument("--key", default=os.environ.get("TINKER_API_KEY", "tml-local"))
    parser.add_argument("--model", required=True, help="the base model's name")
    parser.add_argument("--exact", action="store_true", help="allow no distance")
    parser.add_argument("--extra", action="store_true", help="compare the likeliest tokens of prompts too")
    given = parser.parse_args()
    if "REFERENCE_URL" not in os.environ and "REFERENCE_KEY" not in os.environ:
        parser.error("REFERENCE_URL and REFERENCE_KEY say which server is compared with")
    names = (*COMPARISONS, *(EXTRA if given.extra else ()))
    ours = collect(Side(given.url, given.key, given.model), names)
    theirs = collect(Side(os.environ.get("REFERENCE_URL"), os.environ.get("REFERENCE_KEY"), os.environ.get("REFERENCE_MODEL", given.model)), names)
    rows = compare(ours, theirs, given.exact)
    for name, agrees, said in rows:
        print(f"{'agrees ' if agrees else 'DIFFERS'}  {name:30} {said}")
    print(f"{sum(agrees for _, agrees, _ in rows)} of {len(rows)} agree")
    sys.stdout.flush()
    os._exit(0 if all(agrees for _, agrees, _ in rows) else 1)  # the SDK's threads can abort an interpreter that ends below them


if __name__ == "__main__":
    main()
