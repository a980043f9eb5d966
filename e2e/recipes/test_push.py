"""What `tinsmith push` uploads, the real huggingface_hub downloads, and PEFT and transformers load; what that library uploads, `tinsmith pull` takes."""

import os
import subprocess
import sys

import tinker
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from test_export import apart, datum, reference
from tinker import types
from transformers import AutoModelForCausalLM, AutoTokenizer

import hub
import tinsmith
import world

TOLERANCE = 1e-4
TOKEN = "hf_secret"


def base():
    return AutoModelForCausalLM.from_pretrained(world.MODEL, dtype=torch.float32).eval()


def texts():
    tokenizer = AutoTokenizer.from_pretrained(world.MODEL)
    return [tokenizer.encode(f"<|im_start|>user\nWhat is {a} + {b}?<|im_end|>\n<|im_start|>assistant\n{a * b}<|im_end|>\n") for a, b in world.sums(12, 4)]


def environment(there, folder):
    """Nothing but the local hub, its token in the file that Hugging Face's own tool writes, and a cache in the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(TOKEN + "\n")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    return clean | {"HF_ENDPOINT": there.url, "HF_HOME": str(folder), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def command(server, there, folder, *arguments):
    done = subprocess.run([tinsmith.BINARY, *arguments, "--url", server.url, "--key", server.key], env=environment(there, folder), capture_output=True, text=True, timeout=120)
    assert TOKEN not in done.stdout + done.stderr
    return done


def library(there, folder, code):
    """Runs a line of Python with the real huggingface_hub, which reads its settings when it is imported."""
    done = subprocess.run([sys.executable, "-c", "import huggingface_hub as h; " + code], env=environment(there, folder), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def logprobs(service, path, rows):
    client = service.create_sampling_client(model_path=path).result()
    return [client.compute_logprobs(types.ModelInput.from_ints(row)).result()[1:] for row in rows]


def test_push_and_pull(server, tmp_path):
    rows = texts()
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    training = service.create_lora_training_client(base_model=tinsmith.MODEL, rank=8).result()
    for _ in range(3):
        training.forward_backward([datum(row) for row in rows], "cross_entropy").result()
        training.optim_step(types.AdamParams(learning_rate=2e-3)).result()
    path = training.save_weights_for_sampler("pushed").result().path
    ours = logprobs(service, path, rows)

    with hub.Hub(part=50_000) as there:
        done = command(server, there, tmp_path / "push", "push", path, "hf://ann/adapter", "--private")
        assert done.returncode == 0, done.stderr
        assert there.private and f"hf://ann/adapter@{there.sha()}" in done.stdout and path in there.files["README.md"].decode()
        assert len(there.parts) > 1 and set(there.files) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
        for method, asked, token in there.requests:
            assert token == ("" if asked.startswith(("/part/", "/complete/")) else "Bearer " + TOKEN), (method, asked)

        folder = library(there, tmp_path / "library", "print(h.snapshot_download('ann/adapter'))")
        theirs = PeftModel.from_pretrained(base(), folder).eval()
        assert apart(ours, [reference(theirs, row) for row in rows]) < TOLERANCE
        card = library(there, tmp_path / "library", "c = h.ModelCard.load('ann/adapter'); print(c.data.base_model, c.data.library_name, c.data.tags)")
        assert card == f"{tinsmith.MODEL} peft ['lora', 'tinsmith']"

        done = command(server, there, tmp_path / "pull", "pull", "hf://ann/adapter")  # its configuration names the base model
        assert done.returncode == 0, done.stderr
        sampler = done.stdout.split("sample it:")[1].strip()
        assert logprobs(service, sampler, rows) == ours, "pushed and pulled it is another adapter"
        shown = command(server, there, tmp_path / "pull", "runs").stdout
        assert f"imported from hf://ann/adapter@{there.sha()}" in shown and f"sha256 {there.digest('adapter_model.safetensors')}" in shown

        # The merged model does not go beside the adapter unasked, and is whole.
        done = command(server, there, tmp_path / "push", "push", path, "hf://ann/adapter", "--merge", "--dtype", "float32")
        assert done.returncode != 0 and "--replace" in done.stderr, done.stderr
        done = command(server, there, tmp_path / "push", "push", path, "hf://ann/adapter", "--merge", "--dtype", "float32", "--replace")
        assert done.returncode == 0, done.stderr
        folder = library(there, tmp_path / "library", "print(h.snapshot_download('ann/adapter'))")
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        assert apart(ours, [reference(whole, row) for row in rows]) < TOLERANCE
        done = command(server, there, tmp_path / "pull", "pull", "hf://ann/adapter")
        assert done.returncode == 0 and f"tinsmith serve --model hf://ann/adapter@{there.sha()}" in done.stdout, done.stderr


def test_pull_what_the_library_pushed(server, tmp_path):
    torch.manual_seed(3)
    adapted = get_peft_model(base(), LoraConfig(r=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if ".lora_B" in name:
                weight.copy_(torch.randn(weight.shape) * 0.05)
    adapted.save_pretrained(tmp_path / "adapter")
    rows = texts()
    with hub.Hub() as there:
        library(there, tmp_path / "library", f"a = h.HfApi(); a.create_repo('ann/adapter'); a.upload_folder(repo_id='ann/adapter', folder_path={str(tmp_path / 'adapter')!r})")
        done = command(server, there, tmp_path / "pull", "pull", f"hf://ann/adapter@{there.sha()}", "--base", tinsmith.MODEL, "--name", "theirs")
        assert done.returncode == 0, done.stderr
        sampler = done.stdout.split("sample it:")[1].strip()
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    assert sampler.endswith("/theirs")
    assert apart(logprobs(service, sampler, rows), [reference(adapted.eval(), row) for row in rows]) < TOLERANCE
