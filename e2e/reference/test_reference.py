"""The comparisons with a reference server, against a second Tinsmith: what is the same agrees to the bit, what is rounded otherwise agrees within what is allowed,
and a server with other weights is found out by every one of them."""

import json
import os
import shutil
import subprocess
import sys

import comparisons
import pytest
from safetensors.torch import load_file, save_file

import tinsmith


def config(folder, *, path=None, dtype="float32"):
    made = tinsmith.default_config(folder)
    made["models"][0]["backend"]["dtype"] = dtype
    if path:
        made["models"][0]["path"] = str(path)
    return made


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(name, …) starts a server; they end with the module."""
    made = []

    def begin(name, **options):
        folder = tmp_path_factory.mktemp(name)
        made.append(tinsmith.Server(folder, config=config(folder, **options)).start())
        return made[-1]

    yield begin
    for each in made:
        each.stop()


def collect(server):
    return comparisons.collect(comparisons.Side(server.url, server.key, tinsmith.MODEL), (*comparisons.COMPARISONS, *comparisons.EXTRA))


@pytest.fixture(scope="module")
def first(start):
    server = start("first")
    server.found = collect(server)
    return server


def test_there_are_thirteen():
    assert len(comparisons.COMPARISONS) == 13


def test_second_server_agrees_to_the_bit(first, start):
    rows = comparisons.compare(first.found, collect(start("second")), exact=True)
    assert len(rows) == 14 and all(agrees for _, agrees, _ in rows), rows


def test_other_rounding_is_allowed(first, start):
    other = collect(start("bfloat16", dtype="bfloat16"))
    rows = comparisons.compare(first.found, other)
    assert all(agrees for _, agrees, _ in rows), rows
    exact = comparisons.compare(first.found, other, exact=True)
    assert sum(not agrees for _, agrees, _ in exact) >= 13, exact


def test_other_weights_are_found_out(first, start, tmp_path):
    """One matrix of one layer is three times as large."""
    path = tmp_path / "tiny-chat"
    shutil.copytree(tinsmith.ROOT / "configs" / "models" / "tiny-chat", path)
    weights = load_file(path / "model.safetensors")
    weights["model.layers.2.mlp.down_proj.weight"] *= 3
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    other = collect(start("other", path=path))
    for exact in (False, True):
        rows = comparisons.compare(first.found, other, exact=exact)
        assert len(rows) == 14 and not any(agrees for _, agrees, _ in rows), [row for row in rows if row[1]]
        assert all("here" in said and "there" in said for _, _, said in rows), rows


def test_missing_answers_differ():
    """A server that fails, gives fewer values, or nothing, agrees with nobody."""
    whole = {"steps": {"losses": ("trained", comparisons.np.array([3.0, 2.0]))}}
    for other, words in (({"steps": "RuntimeError: no"}, "reference: RuntimeError"), ({"steps": {"losses": ("trained", comparisons.np.array([3.0]))}}, "2 values, the reference has 1")):
        ((_, agrees, said),) = comparisons.compare(whole, other)
        assert not agrees and words in said
    ((_, agrees, said),) = comparisons.compare({"steps": {}}, {"steps": {}})
    assert not agrees and said == "nothing was compared"


def test_program(first, monkeypatch, capsys):
    """As it is called by a person."""
    monkeypatch.setattr(sys, "argv", ["comparisons.py", "--model", tinsmith.MODEL])
    monkeypatch.delenv("REFERENCE_URL", raising=False)
    monkeypatch.delenv("REFERENCE_KEY", raising=False)
    with pytest.raises(SystemExit):
        comparisons.main()
    assert "REFERENCE_URL" in capsys.readouterr().err
    script = tinsmith.ROOT / "e2e" / "reference" / "comparisons.py"
    given = tinsmith.environment(first, REFERENCE_URL=first.url, REFERENCE_KEY=first.key, REFERENCE_MODEL=tinsmith.ALIASES[0])
    done = subprocess.run([sys.executable, script, "--model", tinsmith.MODEL, "--exact"], env=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "13 of 13 agree" in done.stdout, done.stdout + done.stderr[-2000:]


@pytest.mark.skipif("REFERENCE_KEY" not in os.environ, reason="no other server to compare with: REFERENCE_KEY and, unless it is the hosted service, REFERENCE_URL")
def test_the_reference():
    """Another server, if there is one. Tinsmith is at TINSMITH_URL and serves REFERENCE_MODEL."""
    model = os.environ["REFERENCE_MODEL"]
    ours = comparisons.collect(comparisons.Side(os.environ["TINSMITH_URL"], "tml-local", model))
    theirs = comparisons.collect(comparisons.Side(os.environ.get("REFERENCE_URL"), os.environ["REFERENCE_KEY"], model))
    rows = comparisons.compare(ours, theirs)
    assert all(agrees for _, agrees, _ in rows), json.dumps(rows, indent=1)
