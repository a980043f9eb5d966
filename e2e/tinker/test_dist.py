"""What `make dist` makes runs on a machine without Go: unpacked elsewhere, with an empty environment."""

import hashlib
import json
import os
import pathlib
import platform
import subprocess
import tarfile
import urllib.request

import pytest

import tinsmith

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
VERSION = "v0.0.0-test"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pathlib.Path:
    """The folder with the archive for this machine."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(["make", "--no-print-directory", "dist", f"ARCH={ARCHITECTURE}", f"DIST={folder}", f"VERSION={VERSION}", "IMAGE=no"], cwd=tinsmith.ROOT, check=True, timeout=1200)
    return folder


@pytest.fixture(scope="module")
def unpacked(made, tmp_path_factory) -> pathlib.Path:
    sums = dict(reversed(line.split()) for line in (made / "SHA256SUMS").read_text().splitlines())
    archive = made / f"tinsmith-{VERSION}-linux-{ARCHITECTURE}.tar.gz"
    assert sums[archive.name] == hashlib.sha256(archive.read_bytes()).hexdigest()
    folder = tmp_path_factory.mktemp("elsewhere")
    with tarfile.open(archive) as tar:
        assert all(member.name.startswith(f"tinsmith-{VERSION}-linux-{ARCHITECTURE}") for member in tar)
        tar.extractall(folder, filter="data")
    return folder / f"tinsmith-{VERSION}-linux-{ARCHITECTURE}"


def test_it_serves_the_built_in_model(unpacked, tmp_path):
    config = tinsmith.default_config(tmp_path)
    config["models"][0]["path"] = str(unpacked / "configs" / "models" / "tiny-chat")
    server = tinsmith.Server(tmp_path, config=config, binary=unpacked / "bin" / "tinsmith", environment={}).start()
    try:
        body = {"model": tinsmith.MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "What is 3 + 4?"}]}
        request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=60))
        assert answer["choices"][0]["message"]["content"]
    finally:
        server.stop()


def test_its_configurations_name_what_is_there(unpacked):
    checked = subprocess.run([unpacked / "bin" / "tinsmith", "check-config", unpacked / "configs" / "default.yaml"], env={}, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_what_it_holds(unpacked):
    said = subprocess.run([unpacked / "bin" / "tinsmith", "version"], env={}, capture_output=True, text=True, check=True).stdout
    assert VERSION in said
    licences = {str(p.relative_to(unpacked / "licences")) for p in (unpacked / "licences").rglob("*") if p.is_file()}
    assert any(name.startswith("github.com/gin-gonic/gin@") for name in licences)
    assert "go/LICENSE" in licences
    assert not (unpacked / "bin" / "plugins" / "fake").exists()
    for program in (unpacked / "bin").rglob("*"):
        if program.is_file():
            needed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
            assert "not found" not in needed
            assert os.access(program, os.X_OK)
