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
