"""`tinsmith selftest` on the built-in model: it passes, it agrees with transformers by a reference file, and says what differs when something does."""

import json
import os
import signal
import subprocess

import psutil
import pytest

import tinsmith
from sdkcalls import VERSION

pytestmark = pytest.mark.skipif(VERSION < (0, 38), reason="one version is enough: no SDK is in it")

CHECKS = ["order", "accumulation", "crowd", "agreement", "plugin killed", "server killed", "export", "reference"]


def run(*arguments):
    return subprocess.run([tinsmith.BINARY, "selftest", *arguments], capture_output=True, text=True, timeout=600)


@pytest.fixture
def configuration(tmp_path):
    """A configuration whose data directory and address the self-test must leave alone."""
    path = tmp_path / "tinsmith.yaml"
    path.write_text(json.dumps(tinsmith.default_config(tmp_path) | {"listen": "127.0.0.1:1", "auth": {"keys_file": str(tmp_path / "keys")}}))
    (tmp_path / "keys").write_text("")
    return path


def by_transformers(path):
    """A reference that transformers computes, in float32."""
    import torch
    import transformers

    where = tinsmith.ROOT / "configs" / "models" / "tiny-chat"
    model = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    sequences = []
    for tokens in ([11, 502, 77, 1300, 9, 9, 2048, 640, 33, 3001, 12, 7], list(range(100, 160)), [5, 4, 3, 2, 1]):
        with torch.no_grad():
            logprobs = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        sequences.append({"tokens": tokens, "logprobs": logprobs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()})
    reference = {"format": "tinsmith-reference-1", "source": f"transformers {transformers.__version__}, float32", "arithmetic": "", "tolerance": 0, "tolerance_elsewhere": 1e-3, "sequences": sequences}
    path.write_text(json.dumps(reference))
    return reference


def test_passes_and_agrees_with_transformers(tmp_path, configuration):
    by_transformers(tmp_path / "reference.json")
    page = tmp_path / "report.md"
    done = run("--config", configuration, "--model", tinsmith.MODEL, "--reference", tmp_path / "reference.json", "--json", "--markdown", page)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert [c["name"] for c in report["checks"]] == CHECKS
    assert all(c["result"] == "passed" and c["compared"] > 10 and c["seconds"] > 0 for c in report["checks"]), report["checks"]
    assert report["passed"] and report["device"] == "cpu" and report["dtype"] == "float32" and report["arithmetic"] and report["tinsmith"] and report["processor"]
    assert report["seconds"] > report["start_seconds"] > 0
    text = page.read_text()
    assert all(f"| {name} | passed |" in text for name in CHECKS) and "8 passed" in text and len(text.splitlines()) < 40
    assert not (tmp_path / "data").exists(), "it has touched the user's data directory"


def test_a_difference_is_shown(tmp_path, configuration):
    """The reference is made by the model, and one value of it is changed by its last bit."""
    path = tmp_path / "reference.json"
    made = run("--config", configuration, "--reference", path, "--write-reference")
    assert made.returncode == 0 and str(path) in made.stdout, made.stderr
    again = run("--config", configuration, "--reference", path, "--write-reference")
    assert again.returncode == 1 and "is there already" in again.stderr
    reference = json.loads(path.read_text())
    assert reference["arithmetic"] and reference["tolerance"] == 0
    value = reference["sequences"][2]["logprobs"][3]
    reference["sequences"][2]["logprobs"][3] = value * (1 + 2**-22)
    path.write_text(json.dumps(reference))
    page = tmp_path / "report.md"
    done = run("--config", configuration, "--reference", path, "--markdown", page)
    assert done.returncode == 1 and "1 of 8" in done.stderr and "reference differs" in done.stderr, done.stderr
    for text in (done.stdout, page.read_text()):
        assert "sequence 2 of the reference, position 4" in text and f"{value:.7g}"[:6] in text and "0x" in text
    assert "7 passed, 1 differ" in done.stdout


def test_refusals(tmp_path, configuration):
    (tmp_path / "bad.json").write_text('{"format": "tinsmith-reference-1", "sequences": []}')
    for arguments, words in (
        (["--config", configuration, "--model", "another"], "it has tinsmith/tiny-chat"),
        (["--config", configuration, "--reference", tmp_path / "none.json"], "none.json"),
        (["--config", configuration, "--reference", tmp_path / "bad.json"], "sequences: there are 0"),
        (["--replace"], "--replace needs --write-reference"),
        (["--write-reference", "--json"], "--write-reference makes no report"),
        (["--model", tmp_path / "nothing"], "nothing"),
    ):
        done = run(*arguments)
        assert done.returncode == 1 and words in done.stderr, done.stderr


def test_interrupted(tmp_path, configuration):
    """ctrl-C ends the server of the self-test too, and leaves nothing behind."""
    place = tmp_path / "temporary"
    place.mkdir()
    process = subprocess.Popen([tinsmith.BINARY, "selftest", "--config", configuration], env=os.environ | {"TMPDIR": str(place)}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith("order"):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2 and list(place.iterdir()), seen
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    assert process.wait(timeout=120) == 1
    _, left = psutil.wait_procs(children, timeout=30)
    assert not left and not list(place.iterdir())
