"""What the tests of the Tinker SDK share: calls that look alike in all its versions, and small pieces of data."""

import numpy as np
import tinker
from tinker import types

import tinsmith

VERSION = tuple(int(part) for part in tinker.__version__.split(".")[:2])

if VERSION < (0, 9):
    # SDK 0.3 waits for its own event loop when a client is collected, and hangs where the thread of that loop collects it.
    from tinker.lib.internal_client_holder import InternalClientHolder

    del InternalClientHolder.__del__

# A sequence that means nothing; the numbers are token ids of the built-in model.
TOKENS = [11, 502, 77, 1300, 9, 9, 2048, 640, 33, 3001, 12, 7]


def sends(loss: str) -> bool:
    """Whether this release sends a loss: those before 0.20 know the names themselves."""
    return VERSION >= (0, 20) or loss in {"cross_entropy", "importance_sampling", "ppo"} or VERSION >= (0, 6) and loss in {"cispo", "dro"}


def client(made):
    """The client that a constructor of ServiceClient made: 0.38 returns a future of it."""
    return made.result() if hasattr(made, "result") else made


def service(server, **options) -> tinker.ServiceClient:
    return tinker.ServiceClient(**({"base_url": server.url, "api_key": server.key} | options))


def trainer(service_client, **options):
    """A training client of the built-in model, by default rank 8 from a fixed seed."""
    return client(service_client.create_lora_training_client(**({"base_model": tinsmith.MODEL, "rank": 8, "seed": 5} | options)))


def prompt(tokens=TOKENS) -> types.ModelInput:
    return types.ModelInput.from_ints(list(tokens))


def datum(tokens=TOKENS, **inputs) -> types.Datum:
    """A datum of a token sequence: all but the last predict all but the first. Without inputs: weights of one."""
    tokens = list(tokens)
    given = inputs or {"weights": [1.0] * (len(tokens) - 1)}
    converted = {k: v if isinstance(v, types.TensorData) else np.asarray(v, np.float32) for k, v in given.items()}
    return types.Datum(model_input=prompt(tokens[:-1]), loss_fn_inputs={"target_tokens": np.asarray(tokens[1:], np.int64), **converted})


def arrays(output) -> list[np.ndarray]:
    """The log-probabilities of every datum of a forward or forward_backward, in the shape of its targets."""
    found = []
    for each in output.loss_fn_outputs:
        tensor = each["logprobs"]
        flat = np.asarray(tensor.data, np.float32)
        found.append(flat.reshape(tensor.shape) if tensor.shape else flat)
    return found


def logprobs(training_client, tokens=TOKENS) -> np.ndarray:
    """The trainer's log-probabilities of a sequence after its first token, as float32; they identify the weights."""
    return arrays(training_client.forward([datum(tokens)], "cross_entropy").result())[0]


def train(training_client, tokens=TOKENS, *, rate=5e-3, **adam) -> types.ForwardBackwardOutput:
    """One step of cross-entropy."""
    done = training_client.forward_backward([datum(tokens)], "cross_entropy")
    stepped = training_client.optim_step(types.AdamParams(learning_rate=rate, **adam))
    stepped.result()
    return done.result()


def sample(sampling_client, tokens=TOKENS, *, num_samples=1, options=None, **params):
    """One finished sample call; params are those of SamplingParams."""
    params = {"max_tokens": 8} | params
    return sampling_client.sample(
        prompt=prompt(tokens), num_samples=num_samples, sampling_params=types.SamplingParams(**params), **(options or {})
    ).result()


def sampled_logprobs(training_client, tokens, continuation) -> np.ndarray:
    """The trainer's log-probabilities of tokens that followed a prompt."""
    return logprobs(training_client, [*tokens, *continuation])[len(tokens) - 1 :]
