"""`eval "$(tinsmith env)"` in a shell: the SDKs, transformers and the cookbook find the server and its tokenizers without a network and without further settings."""

import os
import subprocess
import sys

import tinsmith

CLIENT = """
import openai, tinker, transformers
for name in ["tinsmith/tiny-chat", "Qwen/Qwen3-8B", "meta-llama/Llama-3.2-1B"]:
    assert transformers.AutoTokenizer.from_pretrained(name).decode([483]) == "Hello", name
    assert transformers.AutoConfig.from_pretrained(name).hidden_size == 192
    from tinker_cookbook.tokenizer_utils import get_tokenizer
    assert get_tokenizer(name).decode([483]) == "Hello", name
assert transformers.AutoTokenizer.from_pretrained("mine/own").decode([483]) == "Hello", "the user's own cache"
training = tinker.ServiceClient().create_lora_training_client(base_model="tinsmith/tiny-chat", rank=4).result()
assert training.get_tokenizer().decode([483]) == "Hello"
assert any(m.id == "tinsmith/tiny-chat" for m in openai.OpenAI().models.list())
print("all found")
"""


def shell(script, folder, timeout=200, **more):
    """Runs a script in a shell that knows nothing of the server."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "OPENAI_", "HF_", "TINSMITH_"))}
    clean |= {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "NO_PROXY": "127.0.0.1,localhost", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(["sh", "-euc", script], cwd=folder, env=clean | more, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def test_clients_find_everything(server, tmp_path):
    own = tmp_path / "hf" / "hub" / "models--mine--own"
    (own / "refs").mkdir(parents=True)
    (own / "refs" / "main").write_text("0" * 40)
    (own / "snapshots").mkdir()
    (own / "snapshots" / ("0" * 40)).symlink_to(tinsmith.ROOT / "configs" / "models" / "tiny-chat")
    cookbook = tinsmith.ROOT / ".cache" / "cookbook" / "0.6.1"
    (tmp_path / "client.py").write_text(CLIENT)
    done = shell(
        f'eval "$({tinsmith.BINARY} env)"; eval "$({tinsmith.BINARY} env)"; echo "$HF_HUB_CACHE"; exec {sys.executable} client.py',
        tmp_path, TINSMITH_URL=server.url, PYTHONPATH=str(cookbook),
    )
    assert tinsmith.ended(done.returncode) and "all found" in done.stdout, done.stderr
    assert done.stdout.splitlines()[0] == server.config["data_dir"] + "/huggingface/hub"


def test_a_key_is_asked_for(own_server, tmp_path):
    server = own_server(keys=("ann",))
    done = shell(f'eval "$({tinsmith.BINARY} env)"; echo "url ${{TINKER_BASE_URL-none}}"', tmp_path, TINSMITH_URL=server.url)
    assert "url none" in done.stdout
    assert "needs a key: give yours with --key" in done.stderr
    done = shell(f'eval "$({tinsmith.BINARY} env --key {server.key})"; echo "$OPENAI_API_KEY $HF_HUB_CACHE"', tmp_path, TINSMITH_URL=server.url)
    key, cache = done.stdout.split()
    assert key == server.key
    assert cache.startswith(str(tmp_path))
