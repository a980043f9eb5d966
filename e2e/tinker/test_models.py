"""Models that cannot be loaded, beside one that can: who asks for one is told why, at once, and nobody else notices."""

import json
import shutil
import subprocess
import urllib.request

import openai
import pytest
import tinker

import proxy
import sdkcalls
import tinsmith

TINY = tinsmith.ROOT / "configs" / "models" / "tiny-chat"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 597352\n"
PAGE = "<!doctype html><html><body>Sign in</body></html>"


def without(name):
    return lambda folder: (folder / name).unlink()


def holding(name, text):
    return lambda folder: (folder / name).write_text(text)


def only_sentencepiece(folder):
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (folder / name).unlink()
    (folder / "tokenizer.model").write_text("not read")


# What is wrong with each model, and a part of what is said about it.
BROKEN = {
    "no-weights": (without("model.safetensors"), "neither model.safetensors nor model.safetensors.index.json"),
    "no-config": (without("config.json"), "config.json"),
    "weights-pointer": (holding("model.safetensors", POINTER), "holds a Git LFS pointer in place of its 597352 bytes"),
    "config-page": (holding("config.json", PAGE), "config.json: holds a web page"),
    "tokenizer-pointer": (holding("tokenizer.json", POINTER), "tokenizer.json: holds a Git LFS pointer"),
    "template-page": (holding("chat_template.jinja", PAGE), "chat_template.jinja: holds a web page"),
    "only-sentencepiece": (only_sentencepiece, "there is tokenizer.model but no tokenizer.json"),
    "no-directory": (shutil.rmtree, "file does not exist"),
}


@pytest.fixture(scope="module")
def broken_server(tmp_path_factory):
    """A server of the built-in model and of all of BROKEN, which come before it."""
    folder = tmp_path_factory.mktemp("broken")
    config = tinsmith.default_config(folder / "server")
    models = []
    for name, (damage, _) in BROKEN.items():
        shutil.copytree(TINY, folder / name, ignore=shutil.ignore_patterns("make"))
        damage(folder / name)
        models.append({"name": name, "path": str(folder / name), "backend": {"plugin": "single", "device": "cpu", "dtype": "float32"}})
    config["models"] = models + config["models"]
    server = tinsmith.Server(folder / "server", config=config).start(status="degraded")
    yield server
    server.stop()


@pytest.mark.parametrize("name", BROKEN)
def test_asking_for_a_model_that_cannot_load_fails_at_once(broken_server, name):
    reason = BROKEN[name][1]
    with proxy.Proxy(broken_server.url) as between:
        service = sdkcalls.service(broken_server, base_url=between.url)
        with pytest.raises(tinker.APIStatusError) as training:
            sdkcalls.trainer(service, base_model=name)
        with pytest.raises(tinker.APIStatusError) as sampling:
            sdkcalls.client(service.create_sampling_client(base_model=name))
        for refused in (training, sampling):
            assert refused.value.status_code == 424 and reason in str(refused.value)
        assert len(between.to("/create_model")) == len(between.to("/create_sampling_session")) == 1
    client = openai.OpenAI(base_url=broken_server.url + "/v1", api_key="tml-local")
    with pytest.raises(openai.APIStatusError) as chatting:
        client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hello"}], max_tokens=2)
    assert chatting.value.status_code == 424 and reason in str(chatting.value)


def test_the_other_model_is_not_harmed(broken_server):
    service = sdkcalls.service(broken_server)
    assert {m.model_name for m in service.get_server_capabilities().supported_models} == {tinsmith.MODEL, *tinsmith.ALIASES}
    trainer = sdkcalls.trainer(service)
    assert sdkcalls.train(trainer).metrics["loss:sum"] > 0
    assert len(sdkcalls.sample(sdkcalls.client(service.create_sampling_client(base_model=tinsmith.MODEL))).sequences[0].tokens) > 0
    client = openai.OpenAI(base_url=broken_server.url + "/v1", api_key="tml-local")
    assert not {m.id for m in client.models.list()} & set(BROKEN)
    assert client.chat.completions.create(model=tinsmith.MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=2).usage.completion_tokens > 0
    request = urllib.request.Request(broken_server.url + "/tokenize", data=json.dumps({"prompt": "Hello"}).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["count"] > 0


def test_health_says_what_is_wrong_with_each(broken_server):
    states = {m["name"]: m for m in broken_server.health()["models"]}
    assert states[tinsmith.MODEL]["state"] == "ready"
    for name, (_, reason) in BROKEN.items():
        assert states[name]["state"] == "failed" and reason in states[name]["reason"]


@pytest.mark.parametrize("name", BROKEN)
def test_serving_such_a_model_alone_ends_with_the_reason(tmp_path, name):
    damage, reason = BROKEN[name]
    shutil.copytree(TINY, tmp_path / name, ignore=shutil.ignore_patterns("make"))
    damage(tmp_path / name)
    ended = subprocess.run(
        [tinsmith.BINARY, "serve", "--model", f"./{name}", "--listen", "127.0.0.1:0"], cwd=tmp_path, capture_output=True, text=True, timeout=tinsmith.READY_WITHIN
    )
    assert ended.returncode == 1
    assert reason in ended.stderr.splitlines()[-1]
