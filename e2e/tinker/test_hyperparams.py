"""`tinsmith hyperparams` says what tinker-cookbook's hyperparam_utils says, of every model that the cookbook knows."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

import tinsmith
from sdkcalls import VERSION

pytestmark = pytest.mark.skipif(VERSION < (0, 38), reason="one version is enough: no SDK is in it")

COOKBOOK = "0.6.1"

# Runs with the cookbook of that version, in a process of its own.
ASK = """
import json, sys
from tinker_cookbook import hyperparam_utils as h
from tinker_cookbook.exceptions import ConfigurationError
found = {}
for name in json.load(sys.stdin):
    try:
        rate = h.get_lr(name)
    except (NotImplementedError, ConfigurationError):
        rate = None
    try:
        parameters = {str(rank): h.get_lora_param_count(name, lora_rank=rank) for rank in (32, 64)}
        parts = {part: h.get_lora_param_count(name, 1, **{f"train_{p}": p == part for p in ("mlp", "attn", "unembed")}) for part in ("mlp", "attn", "unembed")}
    except ConfigurationError:
        parameters = parts = None
    found[name] = {"rate": rate, "parameters": parameters, "parts": parts, "hidden": h._get_hidden_size(name)}
json.dump(found, sys.stdout)
"""
KNOWN = sorted(json.loads((tinsmith.ROOT / "gateway" / "internal" / "hyperparams" / "cookbook.json").read_text())["models"])


def run(*arguments):
    return subprocess.run([tinsmith.BINARY, "hyperparams", *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def cookbook():
    place = tinsmith.ROOT / ".cache" / "cookbook" / COOKBOOK
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TINKER_")} | {"PYTHONPATH": str(place), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", ASK], input=json.dumps(KNOWN), env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_known_model(cookbook):
    assert len(KNOWN) > 40
    for name, want in cookbook.items():
        done = run("--model", name, "--json")
        assert done.returncode == 0, (name, done.stderr)
        said = json.loads(done.stdout)
        assert said["calibrated"] == (want["rate"] is not None), name
        if want["rate"] is not None:
            assert said["learning_rate"] == want["rate"], name
        assert said["hidden_size"] == want["hidden"], name
        assert said["parameters_per_rank"] == want["parts"], name
        assert said["parameters"] == (want["parameters"] and want["parameters"]["32"]), name


def test_dataset(cookbook):
    name = "Qwen/Qwen3-8B"
    small = cookbook[name]["parameters"]["32"]
    for tokens, rank in ((small, 32), (small + 1, 64)):
        said = json.loads(run("--model", name, "--dataset-tokens", str(tokens), "--json").stdout)
        assert (said["rank"], said["parameters"], said["enough"]) == (rank, cookbook[name]["parameters"][str(rank)], True)
    text = run("--model", name, "--dataset-tokens", "1000000000000").stdout
    assert "less well than full fine-tuning" in text and "thinkingmachines.ai/blog/lora" in text


def test_other_models(tmp_path):
    said = json.loads(run("--model", str(tinsmith.ROOT / "configs" / "models" / "tiny-chat"), "--json").stdout)
    assert said["hidden_size"] == 192 and said["calibrated"] and said["notes"]
    named = json.loads(run("--config", str(tinsmith.ROOT / "configs" / "default.yaml"), "--model", tinsmith.MODEL, "--json").stdout)
    assert named == said | {"model": tinsmith.MODEL}
    for arguments, words in (
        (["--model", str(tmp_path)], "config.json"),
        (["--model", "nobody/knows-this"], "tinker-cookbook does not know the name either"),
        (["--model", "Qwen/Qwen3-8B", "--dataset-tokens", "0"], "--dataset-tokens is 0"),
        ([], "model"),
    ):
        done = run(*arguments)
        assert done.returncode == 1 and words in done.stderr, done.stderr


def test_command_of_the_page():
    (command,) = re.findall(r"^    bin/tinsmith hyperparams (.*)$", (tinsmith.ROOT / "docs" / "training.md").read_text(), re.M)
    done = run(*shlex.split(command))
    assert done.returncode == 0 and "0.000473, at any rank" in done.stdout and re.search(r"^rank +128, 369\.1 million parameters for 200\.0 million tokens$", done.stdout, re.M), done.stdout
