"""The two programs that README.md prints run as they are printed and do what it says."""

import re
import subprocess
import sys

import tinsmith


def test_programs_of_the_readme(server, tmp_path):
    programs = re.findall(r"^```python\n(.*?)^```$", (tinsmith.ROOT / "README.md").read_text(), re.M | re.S)
    assert len(programs) == 2

    def run(program):
        done = subprocess.run(
            [sys.executable, "-c", program], env=tinsmith.environment(server), cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert tinsmith.ended(done.returncode), done.stderr
        return done.stdout.splitlines()

    train, chat = map(run, programs)
    assert re.fullmatch(r"tinker://\S+/sampler_weights/tin says I am Tin\.(<\|im_end\|>)?", train[-1]), train
    base, latest, named = (line.partition(" → ")[2] for line in chat)
    assert (latest, named) == ("I am Tin.", "I am Tin.") and base != latest, chat


def commands(page: str) -> list[str]:
    """The lines of a page that are to be typed, without comments, runs of spaces and the folder of the user's environment."""
    lines = re.findall(r"^    (\S.*)$", re.sub(r"^```.*?^```$", "", (tinsmith.ROOT / page).read_text(), flags=re.M | re.S), re.M)
    return [re.sub(r"\s+", " ", line.partition(" #")[0].replace("venv/bin/", "")).strip() for line in lines]


def test_commands_of_the_readme_are_those_of_the_pages():
    """What the pages print is run by their own tests."""
    pages = commands("docs/cookbook.md") + commands("docs/adapters.md") + commands("docs/serving.md")
    known = ("make run", "make test", "python3 -m venv venv && pip install tinker==0.38.0 openai", 'pip install "tinker-cookbook[math-rl]==0.5.8"')
    for command in commands("README.md"):
        assert command in known or command in pages, command
