"""Every line of docs/cookbook.md that runs a recipe, exactly as it is printed there, in a shell that knows only what `tinsmith env` sets."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import tinsmith
import world
from test_env import shell
from test_recipes import ALL

DOCUMENT = (tinsmith.ROOT / "docs" / "cookbook.md").read_text()
COMMANDS = [line.removeprefix("    ") for line in DOCUMENT.splitlines() if line.startswith("    ")]
LINES = [command for command in COMMANDS if "tinker_cookbook.recipes." in command]
ENV = 'eval "$(bin/tinsmith env)"'
ALWAYS = ("logs/first",)  # with `make test`; the rest with `make test-all`


def setting(line, name):
    return re.search(rf"\b{name}=(\S+)", line).group(1)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The server that the document starts: the built-in model under its name and the alias that is printed."""
    start = shlex.split(next(command for command in COMMANDS if "--config configs/default.yaml" in command))
    folder = tmp_path_factory.mktemp("served")
    config = tinsmith.default_config(folder)
    config["models"][0]["aliases"] = [start[i + 1] for i, word in enumerate(start) if word == "--alias"]
    server = tinsmith.Server(folder, config=config).start()
    yield server
    assert not tinsmith.trouble(server.log()), tinsmith.trouble(server.log())
    server.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder in which the lines are typed: with the data sets, without a tokenizer."""
    folder = tmp_path_factory.mktemp("typed")
    world.data(folder)
    (folder / "bin").mkdir()
    (folder / "bin" / "tinsmith").symlink_to(tinsmith.BINARY)
    return folder


def test_all_recipes_are_there():
    recipes = ("sl_loop", "rl_loop", "sl_basic", "rl_basic", "math_rl.train", "preference.dpo.train")
    for prefix in ("logs/", "logs/real-"):
        for recipe in recipes:
            assert any(f"recipes.{recipe} " in line and setting(line, "log_path") == prefix + recipe.split(".")[-2 if "." in recipe else -1] for line in LINES), (prefix, recipe)
    assert ENV in COMMANDS
    assert len({setting(line, "log_path") for line in LINES}) == len(LINES)


@pytest.mark.parametrize("version", ["0.5.8", "0.6.1"])
@pytest.mark.parametrize("line", LINES, ids=[setting(line, "log_path").removeprefix("logs/") for line in LINES])
def test_line(served, place, line, version):
    if not ALL and (setting(line, "log_path") not in ALWAYS or version != "0.5.8"):
        pytest.skip("this line on this cookbook version runs with make test-all")
    cookbook = tinsmith.ROOT / ".cache" / "cookbook" / version
    assert cookbook.is_dir(), f"tinker-cookbook {version} is not there: run e2e/python.sh"
    shutil.rmtree(place / "logs", ignore_errors=True)
    try:
        done = shell(
            f"{ENV}\n{line}", place, timeout=1800, TINSMITH_URL=served.url, PYTHONPATH=str(cookbook),
            PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", OMP_NUM_THREADS="1",
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"{line}: not ended after {late.timeout} s", pytrace=False)
    if not tinsmith.ended(done.returncode) and done.returncode != 128 + 6:
        pytest.fail(f"{line}: {done.returncode}\n{(done.stdout + done.stderr)[-6000:]}", pytrace=False)
    rows = [json.loads(row) for row in (place / setting(line, "log_path") / "metrics.jsonl").read_text().splitlines()]
    assert rows
    if setting(line, "log_path") == "logs/first":  # what the document promises
        reward = [row["env/all/reward/total"] for row in rows if "env/all/reward/total" in row]
        assert reward[0] < 0.6 and max(reward) > reward[0] + 0.2, reward
