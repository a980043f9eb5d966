"""What the tools of tinker-cookbook make of an adapter of this server, run by test_tools.py with a cookbook on its path.

tools.py URL NAME BASE FOLDER: trains an adapter on the model NAME, whose files are in BASE, with the SDK's defaults and once without
the output head, downloads it with the SDK's command, and gives it to build_lora_adapter and build_hf_model as they are by default.
Prints one JSON object: for each adapter and tool the distance of its log-probabilities from the server's, or why it refused."""

import json
import os
import pathlib
import subprocess
import sys

import tinker
import torch
from peft import PeftModel
from tinker import types
from tinker_cookbook import weights
from transformers import AutoModelForCausalLM, AutoTokenizer

url, name, base, folder = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(base)
prompt = tokenizer.encode("<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n")
row = prompt + tokenizer.encode("Zed the great.<|im_end|>")
datum = types.Datum(
    model_input=types.ModelInput.from_ints(row[:-1]),
    loss_fn_inputs={"target_tokens": row[1:], "weights": [0.0] * (len(prompt) - 1) + [1.0] * (len(row) - len(prompt))},
)


def apart(model, wanted):
    with torch.no_grad():
        scores = torch.log_softmax(model.eval()(torch.tensor([row])).logits[0, :-1], -1)
    return (scores.gather(1, torch.tensor(row[1:])[:, None])[:, 0] - torch.tensor(wanted)).abs().max().item()


def whole(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def tried(tool):
    try:
        return tool()
    except Exception as refused:
        return f"{type(refused).__name__}: {refused}"


service = tinker.ServiceClient(base_url=url)
found = {}
for head, flags in (("head", {}), ("no head", {"train_unembed": False})):
    training = service.create_lora_training_client(base_model=name, rank=16, seed=5, **flags).result()
    for _ in range(15):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=3e-3)).result()
    state, path = training.save_state("w").result().path, training.save_weights_for_sampler("s").result().path
    wanted = service.create_sampling_client(model_path=path).result().compute_logprobs(types.ModelInput.from_ints(row)).result()[1:]
    place = pathlib.Path(folder) / head
    subprocess.run(
        [pathlib.Path(sys.executable).with_name("tinker"), "checkpoint", "download", state, "-o", place / "download"],
        check=True, env=os.environ | {"TINKER_BASE_URL": url}, stdout=subprocess.DEVNULL,
    )
    adapter = str(next(place.rglob("adapter_config.json")).parent)

    def lora():
        weights.build_lora_adapter(base_model=base, adapter_path=adapter, output_path=str(place / "lora"))
        return apart(PeftModel.from_pretrained(whole(base), place / "lora"), wanted)

    def merged():
        weights.build_hf_model(base_model=base, adapter_path=adapter, output_path=str(place / "merged"))
        return apart(whole(place / "merged"), wanted)

    found[head] = {
        "untrained": apart(whole(base), wanted),
        "download": tried(lambda: apart(PeftModel.from_pretrained(whole(base), adapter), wanted)),
        "build_lora_adapter": tried(lora),
        "build_hf_model": tried(merged),
    }
print(json.dumps(found))
