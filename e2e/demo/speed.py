"""Times what a client of the Tinker SDK waits for, with the built-in model (3 million parameters), the SDK's own time included.

    python speed.py [--also MODEL]

Lines of NAME VALUE UNIT: the smallest forward_backward, training steps of 8 sequences of 128 tokens, 16 prompts with 64 sampled tokens each,
and what the first of such a kind takes; the training steps of another model as well. TINKER_BASE_URL says which server; `make bench CASE=sdk` starts one for itself."""

import argparse
import random
import statistics
import time

import tinker
from tinker import types

import ending

MODEL = "tinsmith/tiny-chat"
ADAM = types.AdamParams(learning_rate=1e-4)


def tokens(source, count):
    return [source.randrange(4, 400) for _ in range(count)]


def data(source, rows, length):
    made = []
    for _ in range(rows):
        ids = tokens(source, length + 1)
        made.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(ids[:-1]),
                loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * length},
            )
        )
    return made


def timed(work, repeats):
    """Seconds of each repetition."""
    took = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return took


def train(source, run, suffix=""):
    """Steps of which each is waited for before the next is sent, and steps that are all sent at once."""
    rows, length, steps = 8, 128, 12
    batches = [data(source, rows, length) for _ in range(steps)]

    def waiting():
        for batch in batches:
            pass_, step = run.forward_backward(batch, "cross_entropy"), run.optim_step(ADAM)
            pass_.result(), step.result()

    def pipelined():
        sent = [(run.forward_backward(batch, "cross_entropy"), run.optim_step(ADAM)) for batch in batches]
        for pass_, step in sent:
            pass_.result(), step.result()

    for name, work in ("waiting", waiting), ("pipelined", pipelined):
        print(f"train-{name}{suffix} {steps * rows * length / min(timed(work, 3)):.0f} tok/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--also", metavar="MODEL")
    also = parser.parse_args().also
    source = random.Random(1)
    service = tinker.ServiceClient()
    run = service.create_lora_training_client(base_model=MODEL, rank=32, seed=1).result()

    smallest = data(source, 1, 1)
    took = timed(lambda: run.forward_backward(smallest, "cross_entropy").result(), 40)
    print(f"smallest-forward_backward {1000 * statistics.median(took):.1f} ms", flush=True)
    train(source, run)
    if also:
        train(source, service.create_lora_training_client(base_model=also, rank=32, seed=1).result(), "-also")

    sampler = run.save_weights_and_get_sampling_client().result()
    parameters = types.SamplingParams(max_tokens=64, temperature=1.0)

    def sample():
        prompts = [types.ModelInput.from_ints(tokens(source, 16)) for _ in range(16)]
        sent = [sampler.sample(prompt, num_samples=1, sampling_params=parameters) for prompt in prompts]
        for future in sent:
            future.result()

    took = timed(sample, 6)
    print(f"sample-first {took[0]:.2f} s")
    print(f"sample {statistics.median(took[1:]):.2f} s", flush=True)


if __name__ == "__main__":
    main()
    ending.end()
