"""The commands of docs/sizing.md run as they are printed, and print what the page shows."""

import json
import re
import shlex
import shutil
import subprocess

import pytest

import tinsmith
from sdkcalls import VERSION

pytestmark = pytest.mark.skipif(VERSION < (0, 38), reason="one version is enough: no SDK is in it")

PAGE = (tinsmith.ROOT / "docs" / "sizing.md").read_text()
COMMANDS = re.findall(r"^    bin/tinsmith (plan .*)$", PAGE, re.M)
SHAPES = tinsmith.ROOT / "backends" / "internal" / "engine" / "testdata" / "plans"


@pytest.fixture
def place(tmp_path):
    """A folder with what the commands name."""
    (tmp_path / "Qwen3-32B").mkdir()
    shutil.copy(SHAPES / "qwen3-32b" / "config.json", tmp_path / "Qwen3-32B")
    (tmp_path / "configs").symlink_to(tinsmith.ROOT / "configs")
    return tmp_path


def run(place, *arguments):
    return subprocess.run([tinsmith.BINARY, *arguments], cwd=place, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(place, command):
    done = run(place, *shlex.split(command))
    assert done.returncode == 0, done.stderr
    if "--json" in command:
        plan = json.loads(done.stdout)
        assert plan["model"]["architecture"] == "Qwen3ForCausalLM" and plan["model"]["source"] == "the headers of the weights' files"
        assert plan["placements"][0]["fits"] == "training" and plan["placements"][0]["memories"][0]["weight_bytes"] > 0
        return
    assert max(map(len, done.stdout.splitlines())) <= 80
    if command == COMMANDS[1]:
        assert done.stdout in re.findall(r"^```\n(.*?)^```$", PAGE, re.M | re.S)


def test_there_are_commands():
    assert len(COMMANDS) == 4


def test_what_cannot_be_planned(place):
    (place / "config.yaml").write_text("models: [{name: other, path: ./Qwen3-32B, backend: {plugin: transformers, python: /usr/bin/python3}}]\n")
    for arguments, told in (
        (("plan", "other", "--config", "config.yaml"), "the plugin transformers cannot tell what memory a model takes"),
        (("plan", "./Qwen3-32B", "--device", "cuda"), "--memory is not known"),
        (("plan", "./Qwen3-32B", "--memory", "80"), "--memory is"),
        (("plan", "./nothing"), "nothing"),
        (("plan", "hf://org/name"), "is not in the cache"),
        (("plan", "missing", "--config", "config.yaml"), "has no model"),
    ):
        done = run(place, *arguments)
        assert done.returncode == 1 and told in done.stderr, (arguments, done.stderr)
