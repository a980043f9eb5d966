"""An adapter that PEFT made comes in as it is, trains on as PyTorch trains it on, survives a power failure with the same bits, and leaves as PEFT reads it."""

import pathlib
import re
import subprocess
import urllib.request

import pytest
import tinker
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from test_export import apart, datum, reference
from tinker import types
from transformers import AutoModelForCausalLM, AutoTokenizer

import tinsmith
import world

TOLERANCE = 1e-4
STEPS, RATE = 3, 2e-3
ADAM = types.AdamParams(learning_rate=RATE, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01)


def base():
    return AutoModelForCausalLM.from_pretrained(world.MODEL, dtype=torch.float32).eval()


def made(folder, **options):
    """An adapter with random A and B, as after a training, in `folder`."""
    torch.manual_seed(3)
    adapted = get_peft_model(base(), LoraConfig(target_modules=["q_proj", "down_proj", "lm_head"], task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if ".lora_B" in name:
                weight.copy_(torch.randn(weight.shape) * 0.05)
    adapted.save_pretrained(folder)


def texts():
    tokenizer = AutoTokenizer.from_pretrained(world.MODEL)
    return [tokenizer.encode(f"<|im_start|>user\nWhat is {a} + {b}?<|im_end|>\n<|im_start|>assistant\n{a * b}<|im_end|>\n") for a, b in world.sums(12, 4)]


def trained_by_torch(folder, rows):
    """Losses of AdamW on the adapter in `folder`, and the log-probabilities of the rows after it, by PyTorch."""
    adapted = PeftModel.from_pretrained(base(), folder, is_trainable=True).eval()  # eval: no dropout
    optimizer = torch.optim.AdamW(
        [p for p in adapted.parameters() if p.requires_grad], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01
    )
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for row in rows:
            scores = torch.log_softmax(adapted(torch.tensor([row])).logits[0, :-1], -1)
            loss = loss - scores.gather(1, torch.tensor(row[1:])[:, None]).sum() / len(row)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [reference(adapted, row) for row in rows]


def step(training, rows):
    loss = training.forward_backward([datum(row) for row in rows], "cross_entropy").result().metrics["loss:sum"]
    training.optim_step(ADAM).result()
    return loss


def logprobs(service, path, rows):
    client = service.create_sampling_client(model_path=path).result()
    return [client.compute_logprobs(types.ModelInput.from_ints(row)).result()[1:] for row in rows]


def taken(server, folder):
    """What `tinsmith import` says of an adapter: the training path, the sampler path, its notes."""
    done = subprocess.run(
        [tinsmith.BINARY, "import", folder, "--base", tinsmith.MODEL, "--url", server.url, "--key", server.key], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    paths = dict(line.split(":", 1) for line in done.stdout.strip().splitlines())
    return paths["train it on"].strip(), paths["sample it"].strip(), done.stderr


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(dict(r=8, lora_alpha=16, lora_dropout=0.05), id="alpha"),
        pytest.param(
            dict(r=6, lora_alpha=9, use_rslora=True, alpha_pattern={"lm_head": 2}, rank_pattern={r"layers\.[0-2].*q_proj": 2}), id="everything"
        ),
    ],
)
def test_trains_on_as_with_peft(own_server, tmp_path, options):
    folder = tmp_path / "adapter"
    made(folder, **options)
    rows = texts()
    losses, after = trained_by_torch(folder, rows)

    server = own_server()
    training_path, sampler_path, notes = taken(server, folder)
    assert ("lora_dropout 0.05 is not applied" in notes) == ("lora_dropout" in options), notes
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    alone = [reference(PeftModel.from_pretrained(base(), folder).eval(), row) for row in rows]
    assert apart(logprobs(service, sampler_path, rows), alone) < TOLERANCE

    training = service.create_training_client_from_state(training_path).result()
    for i, loss in enumerate(losses):
        assert step(training, rows) == pytest.approx(loss, rel=1e-5)
        if i == 1 and "rank_pattern" in options:  # a power failure in the middle of the one; the other goes on without
            straight = service.create_training_client_from_state(training_path).result()
            for _ in losses:
                step(straight, rows)
            path = straight.save_weights_for_sampler("straight").result().path
            server.kill()
            server.start()
    ours = [output["logprobs"].data for output in training.forward([datum(row) for row in rows], "cross_entropy").result().loss_fn_outputs]
    assert apart(ours, after) < TOLERANCE
    if "rank_pattern" in options:
        assert equal_bits(logprobs(service, path, rows), ours), "a power failure has changed what the training gives"

    # From a checkpoint with its optimizer, and out of the server.
    state = training.save_state("scaled").result().path
    again = service.create_training_client_from_state_with_optimizer(state).result()
    assert step(again, rows) == step(training, rows)
    path = training.save_weights_for_sampler("leaves").result().path
    ours = logprobs(service, path, rows)
    assert equal_bits(logprobs(service, again.save_weights_for_sampler("leaves").result().path, rows), ours)
    out = tmp_path / "out"
    out.mkdir()
    path = training.save_weights_external("leaves-too").result().path
    for name, url in service.create_rest_client().get_external_weights_urls(path).result().urls.items():
        urllib.request.urlretrieve(url, out / pathlib.PurePosixPath(name).name)
    left = PeftModel.from_pretrained(base(), out).eval()
    assert apart(ours, [reference(left, row) for row in rows]) < TOLERANCE

    merged = subprocess.run(
        [tinsmith.BINARY, "export", path, tmp_path / "merged", "--merge", "--dtype", "float32", "--url", server.url, "--key", server.key],
        capture_output=True, text=True, timeout=120,
    )
    assert merged.returncode == 0, merged.stderr
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    assert apart(ours, [reference(whole, row) for row in rows]) < TOLERANCE


def equal_bits(left, right):
    return all(list(a) == list(b) for a, b in zip(left, right, strict=True))


def test_what_cannot_be_taken(server, tmp_path):
    """PiSSA's A and B belong to a base model that PEFT has changed."""
    folder = tmp_path / "pissa"
    get_peft_model(base(), LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa")).save_pretrained(folder)
    done = subprocess.run(
        [tinsmith.BINARY, "import", folder, "--base", tinsmith.MODEL, "--url", server.url, "--key", server.key], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert 'init_lora_weights "pissa"' in done.stderr and "path_initial_model_for_weight_conversion" in done.stderr, done.stderr


def documented(number, **instead):
    """A block of Python in docs/adapters.md, with words of it replaced."""
    block = re.findall(r"```python\n(.*?)```", (tinsmith.ROOT / "docs" / "adapters.md").read_text(), re.S)[number]
    for word, other in instead.items():
        assert word in block
        block = block.replace(word, str(other))
    return block


def test_conversion_as_documented(server, tmp_path, monkeypatch):
    """PiSSA's adapter, trained, comes in by both ways that the documentation has, and means what it meant."""
    monkeypatch.chdir(tmp_path)
    rows = texts()

    def train(model):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([rows[0]]), labels=torch.tensor([rows[0]])).loss.backward()
            optimizer.step()
        model.save_pretrained("adapters/trained")

    names = {"train": train}
    exec(documented(0, BASE=world.MODEL), names)
    wanted = [reference(names["model"].eval(), row) for row in rows]
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    alone = [reference(base(), row) for row in rows]
    assert apart(wanted, alone) > 0.1, "the training has changed too little to show anything"
    _, sampler_path, _ = taken(server, tmp_path / "adapters" / "converted")
    assert apart(logprobs(service, sampler_path, rows), wanted) < 1e-3

    exec(documented(1, BASE=world.MODEL), {})
    merged = AutoModelForCausalLM.from_pretrained("merged", dtype=torch.float32).eval()
    assert apart([reference(merged, row) for row in rows], wanted) < 1e-3
