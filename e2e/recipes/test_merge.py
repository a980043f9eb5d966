"""`tinsmith export`: what leaves the server is a PEFT adapter or a whole model, and transformers computes with it what the server does."""

import json
import pathlib
import subprocess
import urllib.request

import numpy as np
import pytest
import tinker
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tinker import types
from transformers import AutoModelForCausalLM, AutoTokenizer

import tinsmith
import world
from test_export import TOLERANCE, Trained, apart, reference


def export(server, what, folder, *flags, fails=False):
    """Runs the command; what it said."""
    done = subprocess.run(
        [tinsmith.BINARY, "export", what, folder, *flags, "--url", server.url, "--key", server.key], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def post(server, path, body):
    request = urllib.request.Request(
        f"{server.url}/api/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json", "X-API-Key": server.key}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def of_transformers(trained, folder, dtype=torch.float32):
    """The log-probabilities of a model directory, loaded as anybody would."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return [reference(model.eval(), row) for row in trained.rows]


def weights(folder):
    """All tensors of a model directory by name."""
    out = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        out |= load_file(file)
    return out


@pytest.fixture(scope="module")
def trained(shared_server):
    return Trained(shared_server)


@pytest.mark.parametrize("kind", ["live run", "sampler checkpoint", "training checkpoint"])
def test_every_source(trained, tmp_path, kind):
    """The head is trained too, on a model whose head is its embedding: the merged one has a head of its own."""
    training = trained.training
    what = {
        "live run": lambda: f"tinker://{training.get_info().model_id}",
        "sampler checkpoint": lambda: training.save_weights_for_sampler("to-merge").result().path,
        "training checkpoint": lambda: training.save_state("to-merge").result().path,
    }[kind]()
    ours = trained.trainers()
    said = export(trained.server, what, tmp_path / "peft")
    assert said.startswith(f"{what}, step 4, of {tinsmith.MODEL}"), said
    theirs, base = trained.by_transformers(tmp_path / "peft")
    assert apart(ours, theirs) < TOLERANCE
    assert apart(ours, base) > 1.0, "the training has changed too little to show anything"

    export(trained.server, what, tmp_path / "merged", "--merge", "--dtype", "float32")
    assert apart(ours, of_transformers(trained, tmp_path / "merged")) < TOLERANCE
    config = json.loads((tmp_path / "merged/config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").encode("What is 2 + 3?") == AutoTokenizer.from_pretrained(world.MODEL).encode("What is 2 + 3?")

    # A checkpoint that left comes back.
    back = subprocess.run(
        [tinsmith.BINARY, "import", tmp_path / "peft", "--base", tinsmith.MODEL, "--url", trained.server.url, "--key", trained.server.key],
        capture_output=True, text=True, timeout=120,
    )
    assert back.returncode == 0, back.stderr


def test_ended_run_gives_its_newest_checkpoint(shared_server, tmp_path):
    trained = Trained(shared_server)
    run = trained.training.get_info().model_id
    trained.training.save_weights_for_sampler("older").result()
    newest = trained.training.save_state("newest").result().path
    ours = trained.trainers()
    ended = post(shared_server, "unload_model", {"model_id": run})
    assert "error" not in post(shared_server, "retrieve_future", {"request_id": ended["request_id"]})
    said = export(shared_server, run, tmp_path / "peft")
    assert said.startswith(f"{newest}, step 4"), said
    theirs, _ = trained.by_transformers(tmp_path / "peft")
    assert apart(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("dtype", ["", "float32", "float16"])
def test_equals_merge_and_unload(shared_server, tmp_path, dtype):
    """Without LoRA on the head PEFT's own merging is right for a tied model, so every tensor can be compared."""
    service = tinker.ServiceClient(base_url=shared_server.url, api_key=shared_server.key)
    training = service.create_lora_training_client(base_model=tinsmith.MODEL, rank=2, seed=3, train_unembed=False).result()
    tokens = AutoTokenizer.from_pretrained(world.MODEL).encode("What is 2 + 3? It is 7, of course.")
    datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)})
    for _ in range(3):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=5e-3)).result()
    path = training.save_weights_for_sampler("both").result().path
    export(shared_server, path, tmp_path / "peft")
    export(shared_server, path, tmp_path / "merged", "--merge", "--shard-mib", "2", *(["--dtype", dtype] if dtype else []))
    base = AutoModelForCausalLM.from_pretrained(world.MODEL, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, tmp_path / "peft").merge_and_unload()
    stored = getattr(torch, dtype) if dtype else next(iter(weights(world.MODEL).values())).dtype
    ours, theirs = weights(tmp_path / "merged"), merged.state_dict()
    assert set(ours) == set(theirs) - {"lm_head.weight"} or set(ours) == set(theirs)
    changed = 0
    for name, value in ours.items():
        assert value.dtype == stored, name
        wanted = theirs[name].to(stored)
        # The sums of the products have other orders; where that changes a rounding it is by one step of the type.
        np.testing.assert_allclose(value.double().numpy(), wanted.double().numpy(), rtol=2 * torch.finfo(stored).eps, atol=1e-6, err_msg=name)
        changed += not torch.equal(value, weights(world.MODEL).get(name, value).to(stored))
    assert changed > 10
    index = json.loads((tmp_path / "merged/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in ours.values())
    assert json.loads((tmp_path / "merged/config.json").read_text())["tie_word_embeddings"] is True
    rows = [tokens]
    with torch.no_grad():
        expected = [reference(merged.to(stored).float(), row) for row in rows]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=stored).float()
    assert apart([reference(model.eval(), row) for row in rows], expected) < (TOLERANCE if stored == torch.float32 else 0.1)


@pytest.mark.parametrize("options", [{"lora_alpha": 11}, {"lora_alpha": 3, "use_rslora": True}, {"lora_alpha": 8, "alpha_pattern": {"down_proj": 24}}], ids=str)
def test_scales_of_imports(shared_server, tmp_path, options):
    """An adapter of PEFT's own comes in, and goes out merged as PEFT would merge it."""
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(world.MODEL, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **options))
    model.save_pretrained(tmp_path / "own")
    done = subprocess.run(
        [tinsmith.BINARY, "import", tmp_path / "own", "--base", tinsmith.MODEL, "--url", shared_server.url, "--key", shared_server.key],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    path = next(line.split(":", 1)[1].strip() for line in done.stdout.splitlines() if line.startswith("sample it"))
    export(shared_server, path, tmp_path / "merged", "--merge", "--dtype", "float32")
    theirs = model.merge_and_unload().state_dict()
    for name, value in weights(tmp_path / "merged").items():
        np.testing.assert_allclose(value.numpy(), theirs[name].numpy(), rtol=1e-6, atol=1e-6, err_msg=name)


def test_base_of_the_user_is_compared(trained, tmp_path):
    """--base DIR is taken if it is the model that the adapter was trained on, and refused if one weight differs."""
    path = trained.training.save_weights_for_sampler("own-base").result().path
    export(trained.server, path, tmp_path / "from-server", "--merge")
    export(trained.server, path, tmp_path / "from-folder", "--merge", "--base", world.MODEL)
    for file in (tmp_path / "from-server").iterdir():
        assert file.read_bytes() == (tmp_path / "from-folder" / file.name).read_bytes(), file.name
    other = tmp_path / "other"
    other.mkdir()
    for file in world.MODEL.iterdir():
        if file.is_file():
            (other / file.name).write_bytes(file.read_bytes())
    raw = bytearray((other / "model.safetensors").read_bytes())
    raw[-100] ^= 1
    (other / "model.safetensors").write_bytes(raw)
    said = export(trained.server, path, tmp_path / "wrong", "--merge", "--base", other, fails=True)
    assert "not the files of the base model" in said
    assert not (tmp_path / "wrong").exists()
    assert not list(tmp_path.glob(".wrong*"))


def test_nothing_is_overwritten(trained, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    said = export(trained.server, trained.training.get_info().model_id, tmp_path / "full", fails=True)
    assert "is not empty" in said
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    export(trained.server, trained.training.get_info().model_id, tmp_path / "empty")
    assert (tmp_path / "empty" / "adapter_model.safetensors").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "full"]


def test_keys(own_server, tmp_path):
    """With keys the base model's weights are the administrator's to give; the user's own copy serves as well."""
    server = own_server(keys=("ann", "bob"))
    trained = Trained(server)
    path = trained.training.save_weights_for_sampler("mine").result().path
    said = export(server, path, tmp_path / "merged", "--merge", fails=True)
    assert "administrators' keys only" in said and "copy" in said
    export(server, path, tmp_path / "merged", "--merge", "--base", world.MODEL, "--dtype", "float32")
    assert apart(trained.trainers(), of_transformers(trained, tmp_path / "merged")) < TOLERANCE
    bob = subprocess.run(
        [tinsmith.BINARY, "export", path, tmp_path / "stolen", "--url", server.url, "--key", server.keys["bob"]], capture_output=True, text=True, timeout=60
    )
    assert bob.returncode != 0 and "404" in bob.stderr, bob.stderr
