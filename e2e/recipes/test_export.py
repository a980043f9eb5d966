"""A trained adapter leaves as a PEFT adapter, means the same to transformers + PEFT, and comes back with equal bits.

Both ways out: the archive of SDKs up to 0.35 (a tar behind one link) and the external weights of 0.38 (a link per file)."""

import math
import pathlib
import subprocess
import sys
import tarfile
import urllib.request

import numpy as np
import pytest
import tinker
import torch
from peft import PeftModel
from tinker import types
from transformers import AutoModelForCausalLM, AutoTokenizer

import tinsmith
import world

TOLERANCE = 1e-4

LEFT_BY_ARCHIVE = """
import sys, tinker
assert tinker.__version__.startswith("0.35."), tinker.__version__
rest = tinker.ServiceClient().create_rest_client()
print(rest.get_checkpoint_archive_url_from_tinker_path(sys.argv[1]).result().url)
"""


class Trained:
    """An adapter after a few steps on every kind of layer, and rows of text with the server's log-probabilities of them."""

    def __init__(self, server):
        self.server = server
        self.service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        self.training = self.service.create_lora_training_client(base_model=tinsmith.MODEL, rank=8, seed=7).result()
        tokenizer = AutoTokenizer.from_pretrained(world.MODEL)
        self.rows = [
            tokenizer.encode(f"<|im_start|>user\nWhat is {a} + {b}?<|im_end|>\n<|im_start|>assistant\n{a * b}<|im_end|>\n")
            for a, b in world.sums(11, 8)
        ]
        for _ in range(4):
            self.training.forward_backward([datum(row) for row in self.rows], "cross_entropy")
            self.training.optim_step(types.AdamParams(learning_rate=3e-3)).result()

    def trainers(self, training=None):
        """The trainer's log-probabilities of every row after its first token."""
        outputs = (training or self.training).forward([datum(row) for row in self.rows], "cross_entropy").result().loss_fn_outputs
        return [np.asarray(output["logprobs"].data, np.float32) for output in outputs]

    def samplers(self, path):
        """The same of the sampler, for the weights at `path`."""
        client = self.service.create_sampling_client(model_path=path).result()
        futures = [client.compute_logprobs(types.ModelInput.from_ints(row)) for row in self.rows]
        return [np.asarray(future.result()[1:], np.float32) for future in futures]

    def by_transformers(self, folder):
        """The same by transformers and PEFT in float32, with the adapter in `folder`, and of the base model alone."""
        base = AutoModelForCausalLM.from_pretrained(world.MODEL, dtype=torch.float32).eval()
        alone = [reference(base, row) for row in self.rows]
        adapted = PeftModel.from_pretrained(base, folder).eval()
        return [reference(adapted, row) for row in self.rows], alone


def datum(row):
    return types.Datum(
        model_input=types.ModelInput.from_ints(row[:-1]),
        loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0 / len(row)] * (len(row) - 1)},
    )


def reference(model, row):
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([row])).logits[0, :-1].double(), -1)
    return scores.gather(1, torch.tensor(row[1:])[:, None])[:, 0].numpy()


def apart(left, right):
    """The largest difference over all rows."""
    return max(float(np.max(np.abs(np.asarray(a, np.float64) - b))) for a, b in zip(left, right, strict=True))


def equal(left, right):
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def archive(trained, folder):
    """Downloads sampler weights as SDK 0.35 gets them: a tar that any client can fetch without a key."""
    path = trained.training.save_weights_for_sampler("leaves").result().path
    link = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEFT_BY_ARCHIVE, path], capture_output=True, text=True, timeout=120,
        env=tinsmith.environment(trained.server, PYTHONPATH=str(tinsmith.ROOT / ".cache" / "sdk" / "0.35.0")),
    )
    assert link.returncode == 0, link.stderr
    file, _ = urllib.request.urlretrieve(link.stdout.strip().splitlines()[-1], folder.parent / "archive.tar")
    with tarfile.open(file) as tar:
        assert all(member.isreg() for member in tar.getmembers())
        tar.extractall(folder, filter="data")


def external(trained, folder):
    """Downloads external weights as SDK 0.38 gets them, file by file."""
    path = trained.training.save_weights_external("leaves-too").result().path
    rest = trained.service.create_rest_client()
    for name, url in rest.get_external_weights_urls(path).result().urls.items():
        assert pathlib.PurePosixPath(name).name == name
        urllib.request.urlretrieve(url, folder / name)


@pytest.mark.parametrize("leave", [archive, external])
def test_adapter_leaves_and_returns(server, tmp_path, leave):
    trained = Trained(server)
    folder = tmp_path / "adapter"
    folder.mkdir()
    leave(trained, folder)
    ours = trained.trainers()

    theirs, base = trained.by_transformers(folder)
    assert apart(ours, theirs) < TOLERANCE
    assert apart(ours, base) > 1.0, "the training has changed too little to show anything"

    imported = subprocess.run(
        [tinsmith.BINARY, "import", folder, "--base", tinsmith.MODEL, "--url", server.url, "--key", server.key],
        capture_output=True, text=True, timeout=120,
    )
    assert imported.returncode == 0, imported.stderr
    paths = dict(line.split(":", 1) for line in imported.stdout.strip().splitlines())
    assert equal(trained.samplers(paths["sample it"].strip()), ours)
    again = trained.service.create_training_client_from_state(paths["train it on"].strip()).result()
    assert equal(trained.trainers(again), ours)

    # Training goes on from it as from the original's weights.
    again.forward_backward([datum(row) for row in trained.rows], "cross_entropy")
    norm = again.optim_step(types.AdamParams(learning_rate=1e-3)).result().metrics["grad_norm"]
    trained.training.forward_backward([datum(row) for row in trained.rows], "cross_entropy")
    assert norm == trained.training.optim_step(types.AdamParams(learning_rate=1e-3)).result().metrics["grad_norm"]
    assert math.isfinite(norm) and norm > 0
    assert not equal(trained.trainers(again), ours)
