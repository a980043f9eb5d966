"""Recipes of the real cookbooks, run as published against the shared server."""

import json
import os
import subprocess
import sys

import pytest

import tinsmith

sys.path.insert(0, os.path.dirname(__file__))
import world  # noqa: E402  (beside this file, which pytest does not put on the path by itself)


class Recipes:
    """Runs modules of one cookbook version as published and reads what they write below `folder`."""

    def __init__(self, server, folder, version):
        self.server, self.folder, self.version = server, folder, version
        self.cookbook = tinsmith.ROOT / ".cache" / "cookbook" / version
        if not self.cookbook.is_dir():
            raise RuntimeError(f"tinker-cookbook {version} is not in {self.cookbook}: run e2e/python.sh")

    def log(self, name):
        return self.folder / "logs" / self.version / name

    def run(self, module, name, timeout, **flags):
        """Runs `python -m tinker_cookbook.recipes.MODULE` to its end, at most `timeout` seconds, and returns the rows of its
        metrics.jsonl. Its log folder is log(name); sl_loop goes on from the checkpoint that it finds there."""
        place = self.log(name)
        flags = {"log_path": place, "model_name": "Qwen/Qwen3-8B"} | flags
        command = [sys.executable, "-m", f"tinker_cookbook.recipes.{module}", *(f"{k}={v}" for k, v in flags.items())]
        environment = tinsmith.environment(
            self.server, PYTHONPATH=str(self.cookbook), PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore",
            HF_HOME=str(self.folder / "hf"), OMP_NUM_THREADS="1",
        )
        output = self.folder / f"{self.version}-{name}.txt"
        with output.open("w") as out:
            try:
                code = subprocess.run(
                    command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                    stderr=subprocess.STDOUT, timeout=timeout,
                ).returncode
            except subprocess.TimeoutExpired:
                code = f"not ended after {timeout} s"
        if not tinsmith.ended(code):
            pytest.fail(f"{' '.join(command[2:])}: {code}\n{output.read_text()[-6000:]}", pytrace=False)
        return read(place / "metrics.jsonl")

    def state(self, name):
        """The path of the last training state that a run saved."""
        return [row["state_path"] for row in read(self.log(name) / "checkpoints.jsonl") if "state_path" in row][-1]

    def sampler(self, name):
        """The path of the last sampler weights that a run saved."""
        return [row["sampler_path"] for row in read(self.log(name) / "checkpoints.jsonl") if "sampler_path" in row][-1]

    def taught(self):
        """The state of a short supervised run on world.sentences, some way off the base model; trained once per version."""
        if not self.log("taught").exists():
            self.run("sl_loop", "taught", 400, batch_size=32, learning_rate=2e-3, max_steps=12, lora_rank=16, save_every=0)
        return self.state("taught")


def read(path):
    """The rows of a .jsonl file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder in which recipes start."""
    place = tmp_path_factory.mktemp("world")
    world.build(place)
    return place


@pytest.fixture
def recipes(request, server, folder):
    """A Recipes for the cookbook version that the test is parametrised with."""
    return Recipes(server, folder, request.param)
