"""Checkpoints through the SDK: saving, resuming, sharing, copying, exporting, ending."""

import io
import json
import subprocess
import sys
import tarfile
import time
import urllib.request

import numpy as np
import pytest
import tinker
from tinker import types

import proxy
import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION, datum

OTHER = TOKENS[::-1]


def fetch(url: str) -> bytes:
    """What a plain GET without any credential gives."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


@pytest.fixture
def rest(service):
    return service.create_rest_client()


@pytest.mark.skipif(VERSION < (0, 6), reason="before 0.6 every load has the state of the optimizer, which test_first_release tests")
@pytest.mark.version
def test_resumed_run_equals_the_uninterrupted_one(service):
    run = sdkcalls.trainer(service)
    for _ in range(2):
        sdkcalls.train(run, weight_decay=0.1, rate=2e-3)
    path = run.save_state("middle").result().path
    assert path == f"tinker://{run.get_info().model_id}/weights/middle"
    resumed = sdkcalls.client(service.create_training_client_from_state_with_optimizer(path))
    fresh = sdkcalls.client(service.create_training_client_from_state(path))
    for each in (resumed, fresh):
        assert np.array_equal(sdkcalls.logprobs(each), sdkcalls.logprobs(run))
        assert each.get_info().lora_rank == 8
    for each in (run, resumed, fresh):
        sdkcalls.train(each, OTHER, rate=2e-3)
        sdkcalls.train(each, OTHER, rate=2e-3)
    assert np.array_equal(sdkcalls.logprobs(resumed), sdkcalls.logprobs(run))
    assert not np.array_equal(sdkcalls.logprobs(fresh), sdkcalls.logprobs(run))
    assert resumed.get_info().model_id.removesuffix(":train:1") == run.get_info().model_id.removesuffix(":train:0")


@pytest.mark.skipif(VERSION < (0, 6), reason="loads with the optimizer came with 0.6")
@pytest.mark.version
def test_resumed_run_trains_the_same_parts(service, rest):
    run = sdkcalls.trainer(service, train_unembed=False, train_attn=False)
    sdkcalls.train(run)
    path = run.save_state("parts").result().path
    info = rest.get_weights_info_by_tinker_path(path).result()
    assert (info.train_unembed, info.train_attn, info.train_mlp) == (False, False, True)
    resumed = sdkcalls.client(service.create_training_client_from_state_with_optimizer(path))
    for each in (run, resumed):
        sdkcalls.train(each)
    assert np.array_equal(sdkcalls.logprobs(resumed), sdkcalls.logprobs(run))


@pytest.mark.skipif(VERSION < (0, 38), reason="0.38 makes a client from a state with one load_weights and one get_info")
def test_requests_of_a_client_from_a_state(server):
    with proxy.Proxy(server.url) as between:
        service = sdkcalls.service(server, base_url=between.url)
        run = sdkcalls.trainer(service)
        path = run.save_state("a").result().path
        before = len(between.seen)
        resumed = sdkcalls.client(service.create_training_client_from_state(path))
        assert {e.path.removeprefix(proxy.API) for e in between.seen[before:]} - {"/telemetry", "/session_heartbeat"} == {"/load_weights", "/retrieve_future", "/get_info"}
        sdkcalls.train(resumed)
        assert [json.loads(e.body)["seq_id"] for e in between.to("/optim_step")] == [2]


@pytest.mark.version
def test_name_that_is_taken(service):
    run = sdkcalls.trainer(service)
    run.save_state("a").result()
    begun = time.monotonic()
    with pytest.raises((tinker.RequestFailedError, tinker.BadRequestError), match="a"):
        run.save_state("a").result()
    assert time.monotonic() - begun < 25
    sdkcalls.train(run)
    if VERSION >= (0, 25):
        path = run.save_state("a", overwrite=True).result().path
        assert np.array_equal(sdkcalls.logprobs(sdkcalls.client(service.create_training_client_from_state(path))), sdkcalls.logprobs(run))
    run.save_weights_for_sampler("a").result()  # the two kinds are separate name spaces


@pytest.mark.version
@pytest.mark.parametrize("name", ["", "..", "a/b", "../../etc/passwd", "x" * 300, "a\nb"])
def test_names_that_lead_elsewhere_are_refused(service, name):
    run = sdkcalls.trainer(service)
    with pytest.raises((tinker.RequestFailedError, tinker.BadRequestError)):
        run.save_state(name).result()
    with pytest.raises((tinker.RequestFailedError, tinker.BadRequestError, AssertionError)):
        run.save_weights_for_sampler(name).result()
    assert sdkcalls.train(run).metrics["loss:sum"] > 0


SAMPLE = """
import sys
import sdkcalls, tinker
if __name__ == "__main__":
    sampler = sdkcalls.client(tinker.ServiceClient().create_sampling_client(model_path=sys.argv[1]))
    print(sampler.compute_logprobs(sdkcalls.prompt()).result()[1:])
"""


@pytest.mark.version
def test_saved_sampler_in_another_process(server, service, tmp_path):
    run = sdkcalls.trainer(service)
    sdkcalls.train(run)
    path = run.save_weights_for_sampler("b").result().path
    assert path == f"tinker://{run.get_info().model_id}/sampler_weights/b"
    script = tmp_path / "sample.py"
    script.write_text(SAMPLE)
    done = subprocess.run([sys.executable, script, path], env=tinsmith.environment(server, PYTHONPATH=tinsmith.modules()), capture_output=True, text=True, timeout=240)
    assert tinsmith.ended(done.returncode), done.stderr
    assert np.array_equal(np.asarray(json.loads(done.stdout.strip().splitlines()[-1]), np.float32), sdkcalls.logprobs(run))


@pytest.mark.version
def test_paths_of_the_wrong_kind_or_of_nothing(service):
    run = sdkcalls.trainer(service)
    state = run.save_state("a").result().path
    sampler = run.save_weights_for_sampler("a").result().path
    refused = (tinker.APIStatusError, tinker.RequestFailedError)
    with pytest.raises(refused):
        sdkcalls.sample(sdkcalls.client(service.create_sampling_client(model_path=state)))
    with pytest.raises(refused):
        sdkcalls.client(service.create_training_client_from_state(sampler))
    begun = time.monotonic()
    with pytest.raises(refused, match="nothing"):
        sdkcalls.sample(sdkcalls.client(service.create_sampling_client(model_path=sampler.replace("/a", "/nothing"))))
    with pytest.raises(refused, match="nothing"):
        sdkcalls.client(service.create_training_client_from_state(state.replace("/a", "/nothing")))
    assert time.monotonic() - begun < 28


@pytest.mark.skipif(VERSION < (0, 9), reason="lifetimes came with 0.9")
@pytest.mark.version
def test_lists_of_checkpoints(server, service, rest):
    run = sdkcalls.trainer(service)
    model = run.get_info().model_id
    run.save_state("a").result()
    run.save_weights_for_sampler("a", ttl_seconds=3600).result()
    run.save_state("b").result()
    found = {c.checkpoint_id: c for c in rest.list_checkpoints(model).result().checkpoints}
    assert {k: c.checkpoint_type for k, c in found.items()} == {"weights/a": "training", "sampler_weights/a": "sampler", "weights/b": "training"}
    assert found["weights/a"].tinker_path == f"tinker://{model}/weights/a"
    assert not found["weights/a"].public and found["weights/a"].expires_at is None
    lifetime = (found["sampler_weights/a"].expires_at - found["sampler_weights/a"].time).total_seconds()
    assert lifetime == pytest.approx(3600, abs=2)
    assert all(c.size_bytes > 1000 for c in found.values())
    assert found["weights/a"].size_bytes > found["sampler_weights/a"].size_bytes
    mine = rest.list_user_checkpoints(limit=100).result()
    assert {c.tinker_path for c in found.values()} <= {c.tinker_path for c in mine.checkpoints}
    first = rest.list_user_checkpoints(limit=1).result()
    assert len(first.checkpoints) == 1 and first.cursor.total_count == mine.cursor.total_count
    seen = rest.get_training_run(model).result()
    assert seen.last_checkpoint.checkpoint_id == "weights/b" and seen.last_sampler_checkpoint.checkpoint_id == "sampler_weights/a"
    assert rest.get_training_run_by_tinker_path(found["weights/a"].tinker_path).result().training_run_id == model
    for listed in (f"/training_runs/{model}/checkpoints", f"/models/{model}/checkpoints", "/checkpoints"):
        assert {c["base_model"] for c in json.loads(fetch(server.url + "/api/v1" + listed))["checkpoints"]} == {tinsmith.MODEL}, listed
    raw = json.loads(fetch(f"{server.url}/api/v1/training_runs/{model}"))
    assert raw["last_checkpoint"]["base_model"] == raw["last_sampler_checkpoint"]["base_model"] == tinsmith.MODEL
    info = rest.get_weights_info_by_tinker_path(found["weights/a"].tinker_path).result()
    assert (info.base_model, info.is_lora, info.lora_rank) == (tinsmith.MODEL, True, 8)


@pytest.mark.version
def test_deleted_checkpoint_is_gone(service, rest):
    run = sdkcalls.trainer(service)
    model, path = run.get_info().model_id, run.save_state("a").result().path
    rest.delete_checkpoint(model, "weights/a").result()
    assert rest.list_checkpoints(model).result().checkpoints == []
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint_from_tinker_path(path).result()
    with pytest.raises((tinker.APIStatusError, tinker.RequestFailedError)):
        sdkcalls.client(service.create_training_client_from_state(path))


@pytest.mark.skipif(VERSION < (0, 16), reason="lifetimes are changed since 0.16")
@pytest.mark.version
def test_lifetime_of_checkpoints(service, rest):
    run = sdkcalls.trainer(service)
    model = run.get_info().model_id
    path = run.save_state("a").result().path
    shown = lambda: rest.list_checkpoints(model).result().checkpoints  # noqa: E731
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
    assert shown()[0].expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert shown()[0].expires_at is None
    for bad in (0, -5):
        with pytest.raises(tinker.BadRequestError):
            rest.set_checkpoint_ttl_from_tinker_path(path, bad).result()
    rest.set_checkpoint_ttl_from_tinker_path(path, 1).result()
    deadline = time.monotonic() + 60
    while shown() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert shown() == []
    with pytest.raises((tinker.APIStatusError, tinker.RequestFailedError)):
        sdkcalls.client(service.create_training_client_from_state(path))


@pytest.mark.skipif(VERSION < (0, 16), reason="what it calls came by 0.16")
@pytest.mark.version
def test_other_keys_see_only_what_is_published(two_key_server):
    ann, bob = (sdkcalls.service(two_key_server, api_key=two_key_server.keys[name]) for name in ("ann", "bob"))
    run = sdkcalls.trainer(ann)
    sdkcalls.train(run)
    model, path = run.get_info().model_id, run.save_weights_for_sampler("mine").result().path
    state = run.save_state("mine").result().path
    owner, stranger = ann.create_rest_client(), bob.create_rest_client()

    def hidden():
        refused = (tinker.NotFoundError, tinker.PermissionDeniedError, tinker.RequestFailedError)
        for call in (
            lambda: stranger.get_training_run(model).result(),
            lambda: stranger.list_checkpoints(model).result(),
            lambda: stranger.get_weights_info_by_tinker_path(path).result(),
            lambda: stranger.delete_checkpoint_from_tinker_path(path).result(),
            lambda: stranger.publish_checkpoint_from_tinker_path(path).result(),
            lambda: stranger.set_checkpoint_ttl_from_tinker_path(path, 3600).result(),
            lambda: sdkcalls.sample(sdkcalls.client(bob.create_sampling_client(model_path=path))),
            lambda: sdkcalls.client(bob.create_training_client_from_state(state)),
            lambda: stranger.get_session(model.split(":train:")[0]).result(),
        ):
            with pytest.raises(refused):
                call()
        assert model not in {r.training_run_id for r in stranger.list_training_runs(limit=100).result().training_runs}
        assert stranger.list_user_checkpoints().result().checkpoints == []

    hidden()
    owner.publish_checkpoint_from_tinker_path(path).result()
    assert [c.public for c in owner.list_checkpoints(model).result().checkpoints if c.tinker_path == path] == [True]
    shared = sdkcalls.client(bob.create_sampling_client(model_path=path))
    assert np.array_equal(np.asarray(shared.compute_logprobs(sdkcalls.prompt()).result()[1:], np.float32), sdkcalls.logprobs(run))
    assert stranger.get_weights_info_by_tinker_path(path).result().lora_rank == 8
    for found in (stranger.get_training_run(model, access_scope="accessible"), stranger.get_training_run_by_tinker_path(path, access_scope="accessible")):
        run_of = found.result()
        assert (run_of.training_run_id, run_of.lora_rank, run_of.last_checkpoint) == (model, 8, None)
        assert run_of.last_sampler_checkpoint.tinker_path == path
    with pytest.raises(tinker.NotFoundError, match="access_scope=accessible"):  # it is not among his own
        stranger.get_training_run(model).result()
    assert [(c.tinker_path, c.public) for c in stranger.list_checkpoints(model).result().checkpoints] == [(path, True)]

    def plain(route, body=None):
        headers = {"X-API-Key": two_key_server.keys["bob"]}
        request = urllib.request.Request(two_key_server.url + route, data=None if body is None else json.dumps(body).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    assert plain(f"/api/v1/training_runs/{model}")["last_sampler_checkpoint"]["tinker_path"] == path
    with tarfile.open(fileobj=io.BytesIO(fetch(plain(f"/api/v1/training_runs/{model}/checkpoints/sampler_weights/mine/archive")["url"]))) as archive:
        assert "adapter_model.safetensors" in [m.name.removeprefix("./") for m in archive.getmembers()]
    assert plain("/v1/models/" + path)["training_run_id"] == model
    for name in (path, f"tinker://{model}"):
        answer = plain("/v1/completions", {"model": name, "prompt": sdkcalls.TOKENS, "max_tokens": 2})
        assert answer["usage"]["completion_tokens"] in (1, 2)  # the first may be the end
    with pytest.raises((tinker.NotFoundError, tinker.PermissionDeniedError)):
        stranger.delete_checkpoint_from_tinker_path(path).result()
    owner.unpublish_checkpoint_from_tinker_path(path).result()
    hidden()


@pytest.mark.version
def test_runs_are_listed_page_by_page(two_key_server):
    service = sdkcalls.service(two_key_server, api_key=two_key_server.keys["bob"], user_metadata={"purpose": "paging"})
    made = [sdkcalls.trainer(service, user_metadata={"n": str(i)}).get_info().model_id for i in range(5)]
    rest = service.create_rest_client()
    whole = rest.list_training_runs(limit=100).result()
    pages = [rest.list_training_runs(limit=2, offset=o).result() for o in range(0, whole.cursor.total_count, 2)]
    assert [r.training_run_id for p in pages for r in p.training_runs] == [r.training_run_id for r in whole.training_runs]
    newest = whole.training_runs[: len(made)]
    assert [r.training_run_id for r in newest] == made[::-1]
    assert [r.user_metadata["n"] for r in newest] == ["4", "3", "2", "1", "0"]
    assert all(r.base_model == tinsmith.MODEL and r.is_lora and r.lora_rank == 8 and not r.corrupted for r in newest)


def exported(service, run, name) -> dict[str, bytes]:
    """The files of the run's adapter as this version of the SDK gets them."""
    rest = service.create_rest_client()
    if VERSION < (0, 36):
        path = run.save_weights_for_sampler(name).result().path
        link = rest.get_checkpoint_archive_url_from_tinker_path(path).result()
        with tarfile.open(fileobj=io.BytesIO(fetch(link.url))) as archive:
            assert all(m.isfile() or m.isdir() for m in archive.getmembers())
            return {m.name.removeprefix("./"): archive.extractfile(m).read() for m in archive.getmembers() if m.isfile()}
    saved = run.save_weights_external(name).result()
    urls = rest.get_external_weights_urls(saved if isinstance(saved, str) else saved.path).result().urls
    return {file: fetch(url) for file, url in urls.items()}


@pytest.mark.version
def test_exported_adapter_has_the_three_files(service):
    from safetensors.numpy import load

    run = sdkcalls.trainer(service, train_mlp=False, train_unembed=False)
    sdkcalls.train(run)
    files = exported(service, run, "out")
    assert {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"} <= set(files)
    config = json.loads(files["adapter_config.json"])
    assert config["r"] == 8 and config["lora_alpha"] == 32 and config["base_model_name_or_path"] == tinsmith.MODEL
    tensors = load(files["adapter_model.safetensors"])
    assert len(tensors) == 6 * 4 * 2 and all(k.startswith("base_model.model.model.layers.") and ".self_attn." in k for k in tensors)
    assert tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape == (8, 192)
    assert all(np.isfinite(v).all() for v in tensors.values()) and any(v.any() for k, v in tensors.items() if "lora_B" in k)


@pytest.mark.version
def test_equal_runs_export_equal_bytes(server):
    """Two runs of two clients from one seed, with the same steps: their files are equal, and before SDK 0.36 so is the archive as a whole."""
    exports, archives = [], []
    for i in range(2):
        service = sdkcalls.service(server)
        run = sdkcalls.trainer(service)
        for _ in range(3):
            sdkcalls.train(run)
        exports.append(exported(service, run, f"export-{i}"))
        if VERSION < (0, 36):
            link = service.create_rest_client().get_checkpoint_archive_url_from_tinker_path(run.save_weights_for_sampler(f"archive-{i}").result().path).result()
            archives.append(fetch(link.url))
    assert exports[0] == exports[1]
    assert not archives or archives[0] == archives[1]


def peft_model(folder):
    import peft
    import torch
    import transformers

    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_pretrained(tinsmith.ROOT / "configs" / "models" / "tiny-chat", dtype=torch.float32)
    return peft.PeftModel.from_pretrained(base, folder, is_trainable=True)


def torch_logprobs(model, tokens):
    import torch

    logits = model(torch.tensor([tokens[:-1]])).logits[0].float()
    return torch.log_softmax(logits, -1)[range(len(tokens) - 1), tokens[1:]]


def write(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.skipif(VERSION < (0, 36), reason="once, with the newest form of the export")
@pytest.mark.parametrize("adam", [{}, {"weight_decay": 0.3}, {"grad_clip_norm": 0.5, "beta1": 0.8, "eps": 1e-8}], ids=["defaults", "weight decay", "clipped"])
def test_steps_equal_those_of_torch(service, tmp_path, adam):
    """Five steps of AdamW on the exported adapter in transformers, PEFT and torch end at the adapter that is exported after ours."""
    import torch

    run = sdkcalls.trainer(service)
    rate = 2e-3
    model = peft_model(write(tmp_path / "start", exported(service, run, "start")))
    settings = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0} | adam
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"], weight_decay=settings["weight_decay"])
    for _ in range(5):
        ours = sdkcalls.train(run, rate=rate, **adam).metrics["loss:sum"]
        loss = -torch_logprobs(model, TOKENS).sum()
        assert ours == pytest.approx(loss.item(), rel=1e-3)
        optimizer.zero_grad()
        loss.backward()
        if settings["grad_clip_norm"]:
            torch.nn.utils.clip_grad_norm_(trained, settings["grad_clip_norm"])
        optimizer.step()
    end = peft_model(write(tmp_path / "end", exported(service, run, "end")))
    with torch.no_grad():
        assert np.allclose(torch_logprobs(end, TOKENS).numpy(), sdkcalls.logprobs(run), rtol=0, atol=1e-4)
    theirs = dict(model.named_parameters())
    for name, ours in end.named_parameters():
        if "lora_" in name:
            difference = (ours - theirs[name]).norm() / theirs[name].norm()
            assert difference < 2e-2, name  # an element whose gradient is rounding noise moves by the whole rate in either direction


@pytest.mark.skipif(VERSION < (0, 36), reason="downloads file by file came with 0.36")
def test_external_export_can_be_listed_and_deleted(service, rest):
    run = sdkcalls.trainer(service)
    exported(service, run, "out")
    model = run.get_info().model_id
    listed = rest.list_checkpoints(model).result().checkpoints
    assert [(c.checkpoint_id, c.checkpoint_type) for c in listed] == [("external_weights/out", "external")]
    rest.delete_checkpoint(model, "external_weights/out").result()
    assert rest.list_checkpoints(model).result().checkpoints == []


@pytest.mark.skipif(VERSION < (0, 36), reason="encryption of exports came with 0.33")
def test_encrypted_export_is_refused(service):
    run = sdkcalls.trainer(service)
    with pytest.raises((tinker.RequestFailedError, tinker.BadRequestError), match="age_encryption"):
        run.save_weights_external("out", age_encryption_recipients=["age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"]).result()


@pytest.mark.skipif(VERSION < (0, 34), reason="copies into a project came with 0.34")
@pytest.mark.parametrize("kind", ["weights", "sampler_weights"])
def test_copy_outlives_its_source(service, rest, kind):
    run = sdkcalls.trainer(service)
    sdkcalls.train(run)
    path = (run.save_state("a") if kind == "weights" else run.save_weights_for_sampler("a")).result().path
    copied = rest.copy_weights(path, "archive").result()
    assert copied != path and f"/{kind}/" in copied
    rest.delete_checkpoint_from_tinker_path(path).result()
    if kind == "weights":
        got = sdkcalls.logprobs(sdkcalls.client(service.create_training_client_from_state(copied)))
    else:
        got = np.asarray(sdkcalls.client(service.create_sampling_client(model_path=copied)).compute_logprobs(sdkcalls.prompt()).result()[1:], np.float32)
    assert np.array_equal(got, sdkcalls.logprobs(run))


@pytest.mark.skipif(VERSION < (0, 27), reason="metadata of saves came with 0.27")
@pytest.mark.version
def test_metadata_of_saves_is_listed(service, rest):
    run = sdkcalls.trainer(service)
    run.save_state("a", user_metadata={"step": "7"}).result()
    assert rest.list_checkpoints(run.get_info().model_id).result().checkpoints[0].user_metadata == {"step": "7"}


@pytest.mark.version
def test_loading_into_a_run(service):
    source, target = sdkcalls.trainer(service), sdkcalls.trainer(service)
    sdkcalls.train(source)
    target.load_state(source.save_state("a").result().path).result()
    assert np.array_equal(sdkcalls.logprobs(target), sdkcalls.logprobs(source))
    smaller = sdkcalls.trainer(service, rank=4)
    with pytest.raises((tinker.RequestFailedError, tinker.BadRequestError), match="rank"):
        smaller.load_state(source.save_state("b").result().path).result()
