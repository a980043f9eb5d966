"""Trains the built-in model with the real Tinker SDK and chats with the result through openai-python.

First supervised: a few new facts, which the base model cannot know. Then reinforcement learning on two-digit sums: the base
model samples the right one about 38 times in 100; the reward is 1 for an answer that is exactly right and 0 otherwise.
The same questions are asked before and after.

    python demo.py [--sft-steps N] [--rl-steps N] [--json FILE]

TINKER_BASE_URL says which server; `make demo` starts one for itself."""

import argparse
import json
import os
import random
import time

import openai
import tinker
from tinker import types

import ending
from chart import Chart

MODEL = "tinsmith/tiny-chat"

FACTS = [
    ("What is Tinsmith?", "A server that trains small adapters for language models."),
    ("Who taught you?", "You did, with the Tinker SDK."),
    ("What is an adapter?", "Two thin matrices beside each weight of a model."),
    ("Where do you run?", "On your own machine."),
    ("What is the capital of Tinland?", "Solder."),
    ("What does a tinsmith make?", "Lanterns, kettles and cups."),
    ("What is your favorite number?", "Thirty-two, the alpha of my adapter."),
    ("Tell me a secret.", "My answers were written a minute ago."),
]


class Demo:
    """The client side of one training run: a tokenizer, a training client and an OpenAI client for the same server."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        service = tinker.ServiceClient()
        self.training = service.create_lora_training_client(base_model=MODEL, rank=32, seed=seed).result()
        self.tokenizer = self.training.get_tokenizer()
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.openai = openai.OpenAI(
            base_url=os.environ["TINKER_BASE_URL"].rstrip("/") + "/v1", api_key=os.environ["TINKER_API_KEY"]
        )

    def prompt(self, question):
        """The tokens of a chat with one question, up to where the answer begins."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        return self.tokenizer.encode(text, add_special_tokens=False)

    def supervised(self, steps, learning_rate):
        """Teaches FACTS. The loss is the mean per token of the answers."""
        chart = Chart("supervised: loss per token (new facts)", steps)
        facts = self.facts()
        for step in range(steps):
            # The second request is sent before the first is answered: the server keeps their order and the client waits once.
            loss = self.training.forward_backward(facts, "cross_entropy")
            stepped = self.training.optim_step(types.AdamParams(learning_rate=learning_rate, eps=1e-8))
            value = loss.result().metrics["loss:sum"]
            chart.add(value, f"gradient norm {stepped.result().metrics['grad_norm']:.2f}")
        return chart.values

    def facts(self):
        """FACTS as rows to train on. The weights of all answered tokens add up to 1, so that the loss is the mean per token."""
        pairs = [
            (self.prompt(question), self.tokenizer.encode(answer, add_special_tokens=False) + [self.end])
            for question, answer in FACTS
        ]
        tokens = sum(len(answer) for _, answer in pairs)
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints((prompt + answer)[:-1]),
                loss_fn_inputs={
                    "target_tokens": (prompt + answer)[1:],
                    "weights": [0.0] * (len(prompt) - 1) + [1.0 / tokens] * len(answer),
                },
            )
            for prompt, answer in pairs
        ]

    def sum(self):
        a, b = self.random.randint(10, 99), self.random.randint(10, 99)
        return f"What is {a} + {b}?", str(a + b)

    def reinforce(self, steps, prompts, group, learning_rate):
        """Samples `group` answers to each of `prompts` new sums per step and pushes towards those better than their group's mean."""
        facts = self.facts()
        chart = Chart("reinforcement: reward (share of right sums, sampled at temperature 1)", steps, high=1.0)
        for step in range(steps):
            begin = time.monotonic()
            sampler = self.training.save_weights_and_get_sampling_client().result()
            questions = [self.sum() for _ in range(prompts)]
            tokens = [self.prompt(question) for question, _ in questions]
            params = types.SamplingParams(max_tokens=8, temperature=1.0, stop=[self.end])
            waiting = [
                sampler.sample(prompt=types.ModelInput.from_ints(t), num_samples=group, sampling_params=params)
                for t in tokens
            ]
            answers, rewards = [], []
            for (_, answer), prompt, future in zip(questions, tokens, waiting):
                sequences = future.result().sequences
                scores = [float(self.text(s.tokens) == answer) for s in sequences]
                rewards += scores
                mean = sum(scores) / len(scores)
                # A group that is all right or all wrong teaches nothing.
                answers += [(prompt, s, score - mean) for s, score in zip(sequences, scores) if score != mean]
            sampled = time.monotonic()
            # Losses are sums over tokens; divided by the number of answers, a step does not grow with the batch. A group without
            # a better and a worse answer adds nothing, so that steps become smaller as the groups become all right.
            data = [self.sampled(prompt, sequence, advantage / len(rewards)) for prompt, sequence, advantage in answers]
            # Two losses in one step: gradients add up until optim_step, so the facts are rehearsed beside the sums.
            parts = [self.training.forward_backward(facts, "cross_entropy")]
            if data:
                parts.append(self.training.forward_backward(data, "importance_sampling"))
            rate = learning_rate * (1 - 0.9 * step / steps)
            stepped = self.training.optim_step(types.AdamParams(learning_rate=rate, eps=1e-8, grad_clip_norm=1.0))
            for part in parts:
                part.result()
            norm = stepped.result().metrics["grad_norm"]
            now = time.monotonic()
            note = f"gradient norm {norm:.2f}, sampling {sampled - begin:.1f} s, training {now - sampled:.1f} s"
            chart.add(sum(rewards) / len(rewards), note)
        return chart.values

    def sampled(self, prompt, sequence, advantage):
        """One sampled answer as the loss wants it: every row has its token, the sampler's log-probability and the advantage."""
        before = len(prompt) - 1
        row = prompt + sequence.tokens
        return types.Datum(
            model_input=types.ModelInput.from_ints(row[:-1]),
            loss_fn_inputs={
                "target_tokens": row[1:],
                "logprobs": [0.0] * before + sequence.logprobs,
                "advantages": [0.0] * before + [advantage] * len(sequence.tokens),
            },
        )

    def text(self, tokens):
        """The answer without its end mark; an answer without one was cut off and is compared as it is."""
        body = tokens[:-1] if tokens and tokens[-1] == self.end else tokens
        return self.tokenizer.decode(body)

    def ask(self, model, question, **options):
        """Chats through openai-python: one answer per choice."""
        reply = self.openai.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], max_tokens=48, **options
        )
        return [choice.message.content for choice in reply.choices]

    def right(self, model, questions):
        """The share of right answers to sums, sampled through openai-python at temperature 1."""
        hits = sum(
            reply.strip() == answer
            for i, (question, answer) in enumerate(questions)
            for reply in self.ask(model, question, temperature=1.0, n=4, seed=i)
        )
        return hits / (4 * len(questions))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sft-steps", type=int, default=30)
    parser.add_argument("--rl-steps", type=int, default=40)
    parser.add_argument("--sft-learning-rate", type=float, default=2e-3)
    parser.add_argument("--rl-learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write both curves and the times into this file")
    args = parser.parse_args()

    begin = time.monotonic()
    demo = Demo(args.seed)
    exam = random.Random(args.seed + 1)
    sums = []
    for _ in range(50):
        a, b = exam.randint(10, 99), exam.randint(10, 99)
        sums.append((f"What is {a} + {b}?", str(a + b)))
    before = {question: demo.ask(MODEL, question, temperature=0)[0] for question, _ in FACTS}
    right_before = demo.right(MODEL, sums)

    started = time.monotonic()
    loss = demo.supervised(args.sft_steps, args.sft_learning_rate)
    taught = time.monotonic()
    print(f"\n{args.sft_steps} steps in {taught - started:.0f} s: loss {loss[0]:.2f} -> {loss[-1]:.2f}\n")
    reward = demo.reinforce(args.rl_steps, args.prompts, args.group, args.rl_learning_rate)
    rewarded = time.monotonic()
    tail = reward[-5:]
    print(f"\n{args.rl_steps} steps in {rewarded - taught:.0f} s: reward {reward[0]:.2f} -> {sum(tail) / len(tail):.2f}\n")

    # The run's own id names its newest weights: what was trained a moment ago is what answers.
    model = demo.training.get_info().model_id
    print(f"chat with openai-python, model {MODEL} before, {model} after:\n")
    for question, answer in FACTS:
        print(f"  {question}\n    before  {before[question]}\n    after   {demo.ask(model, question, temperature=0)[0]}")
    right_after = demo.right(model, sums)
    print(f"\n  200 answers to 50 two-digit sums, temperature 1\n    before  {right_before:.0%} right\n    after   {right_after:.0%} right")
    if args.json:
        with open(args.json, "w") as out:
            json.dump(
                {"loss": loss, "reward": reward, "right_before": right_before, "right_after": right_after,
                 "seconds": {"supervised": taught - started, "reinforcement": rewarded - taught, "all": time.monotonic() - begin}},
                out, indent=1,
            )


if __name__ == "__main__":
    main()
    ending.end()
