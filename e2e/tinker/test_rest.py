"""Management through the SDK and the `tinker` command: sessions, audit, usage, every command with its JSON."""

import datetime
import json
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import tinker

import hub
import sdkcalls
import tinsmith
from sdkcalls import VERSION

TINKER = pathlib.Path(sys.executable).parent / "tinker"


@pytest.fixture
def rest(service):
    return service.create_rest_client()


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def session_of(run) -> str:
    return run.get_info().model_id.split(":train:")[0]


@pytest.mark.skipif(VERSION < (0, 9), reason="0.3 shows no sessions")
@pytest.mark.version
def test_session_shows_its_runs_and_samplers(server):
    service = sdkcalls.service(server, user_metadata={"purpose": "listing"}, **({"project_id": "project-a"} if VERSION >= (0, 16) else {}))
    first, second = sdkcalls.trainer(service), sdkcalls.trainer(service)
    sampler = sdkcalls.client(first.save_weights_and_get_sampling_client())
    sdkcalls.sample(sampler)
    rest = service.create_rest_client()
    got = rest.get_session(session_of(first)).result()
    assert got.training_run_ids == [first.get_info().model_id, second.get_info().model_id]
    assert len(got.sampler_ids) == 1
    assert rest.get_sampler(got.sampler_ids[0]).result().base_model == tinsmith.MODEL
    if VERSION >= (0, 30):
        assert got.user_metadata == {"purpose": "listing"}
    assert session_of(first) in rest.list_sessions(limit=20).result().sessions
    if VERSION < (0, 22):
        return
    rest.assign_session_project(session_of(first), "project-b").result()
    in_project = rest.list_training_runs(project_id="project-b").result().training_runs if VERSION >= (0, 34) else None
    if in_project is not None:
        assert first.get_info().model_id in {r.training_run_id for r in in_project}


@pytest.mark.skipif(VERSION < (0, 36), reason="sessions are searched since 0.36")
def test_sessions_are_searched(server):
    from tinker.types import SessionSearchRequest

    name = f"evening run {time.monotonic_ns()}"
    made = []
    for i in range(3):
        service = sdkcalls.service(server, user_metadata={"i": str(i)}, display_name=name)
        run = sdkcalls.trainer(service)
        made.append(session_of(run))
        if i == 0:
            run.save_state("a").result()
            service.close("errored", "by the test").result()
    rest = service.create_rest_client()
    find = lambda **request: rest.search_sessions(SessionSearchRequest(**request)).result()  # noqa: E731
    page = find(display_name=name.upper(), limit=2)
    assert [s.session_id for s in page.sessions] == made[:0:-1] and page.next_cursor is not None
    rest_of_it = find(display_name=name, limit=2, cursor=page.next_cursor)
    assert [s.session_id for s in rest_of_it.sessions] == made[:1] and rest_of_it.next_cursor is None
    ended = rest_of_it.sessions[0]
    assert ended.checkpoints_count == 1 and ended.checkpoint_storage_bytes > 0 and ended.user_metadata == {"i": "0"}
    assert (ended.status.type, ended.status.reason.type, ended.status.detail) == ("client_finished", "errored", "by the test")
    assert page.sessions[0].status.type == "active"
    assert [s.session_id for s in find(display_name=name, user_metadata={"i": "1"}).sessions] == [made[1]]
    assert [s.session_id for s in find(session_id=made[2]).sessions] == [made[2]]
    assert [s.session_id for s in find(display_name=name, statuses=[{"type": "client_finished"}]).sessions] == made[:1]


@pytest.mark.skipif(VERSION < (0, 38), reason="0.27.2 and newer finish sessions; the newest stands for them")
def test_finished_session_frees_its_models_and_keeps_checkpoints(server):
    with sdkcalls.service(server) as service:
        run = sdkcalls.trainer(service)
        sdkcalls.train(run)
        path = run.save_weights_for_sampler("kept").result().path
        model, session = run.get_info().model_id, session_of(run)
        assert model in fetch(server.url + "/v1/models").decode()
    later = sdkcalls.service(server)
    rest = later.create_rest_client()
    from tinker.types import SessionSearchRequest

    ended = rest.search_sessions(SessionSearchRequest(session_id=session)).result().sessions[0]
    assert (ended.status.type, ended.status.reason.type) == ("client_finished", "success")
    assert model not in {m["id"] for m in json.loads(fetch(server.url + "/v1/models"))["data"]}
    assert sdkcalls.sample(sdkcalls.client(later.create_sampling_client(model_path=path))).sequences


@pytest.mark.skipif(VERSION < (0, 20), reason="the audit log came with 0.20")
@pytest.mark.version
def test_audit_log_names_what_was_done(service, rest):
    run = sdkcalls.trainer(service)
    path = run.save_state("audited").result().path
    rest.delete_checkpoint_from_tinker_path(path).result()
    entries = [e for e in rest.get_audit_log("checkpoints").result().entries if path in e.model_dump_json()]
    assert len(entries) >= 2
    assert [e.timestamp for e in entries] == sorted(e.timestamp for e in entries)
    assert len({e.event for e in entries}) >= 2


@pytest.mark.skipif(VERSION < (0, 23), reason="usage came with 0.23")
@pytest.mark.version
def test_usage_counts_tokens(service, rest):
    run = sdkcalls.trainer(service)
    sdkcalls.train(run)
    sampler = sdkcalls.client(run.save_weights_and_get_sampling_client())
    sdkcalls.sample(sampler, num_samples=2, max_tokens=5, stop=[])
    now = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0)
    usage = rest.get_billing_usage(now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1)).result()
    counted = {}
    for event in usage.data:
        if event.session_id == session_of(run):
            counted[event.event_info.type] = counted.get(event.event_info.type, 0) + getattr(event.event_info, "token_count", 0)
    assert counted["training"] == len(sdkcalls.TOKENS) - 1
    assert counted["sampling_sample"] == 10
    assert counted["sampling_prefill"] >= len(sdkcalls.TOKENS)


@pytest.mark.skipif(VERSION < (0, 32), reason="storage is shown since 0.32")
def test_storage_of_checkpoints(service, rest):
    before = rest.get_current_checkpoint_storage_usage().result().data
    path = sdkcalls.trainer(service).save_state("stored").result().path
    after = rest.get_current_checkpoint_storage_usage().result().data
    total = lambda rows: (sum(r.checkpoint_count for r in rows), sum(r.size_bytes for r in rows))  # noqa: E731
    assert total(after)[0] == total(before)[0] + 1 and total(after)[1] > total(before)[1]
    rest.delete_checkpoint_from_tinker_path(path).result()


@pytest.mark.skipif(VERSION < (0, 38), reason="once, with the newest version")
def test_trace_of_a_session(service, rest, tmp_path):
    run = sdkcalls.trainer(service)
    sdkcalls.train(run)
    assert len(fetch(rest.export_session_trace(session_of(run)).result())) > 100


def command(server, *arguments, typed=None, **environment):
    """Runs one command of the `tinker` program in this process: a process of its own spends seconds on imports. `typed` is its input,
    `environment` goes over the one that names the server; None takes a variable away."""
    from click.testing import CliRunner
    from tinker.cli.__main__ import main_cli

    done = CliRunner().invoke(main_cli, ["-f", "json", *arguments], input=typed, env=tinsmith.environment(server) | environment)
    assert done.exit_code == 0, f"tinker {' '.join(arguments)} ended with {done.exit_code}:\n{done.output}\n{done.exception!r} {getattr(done.exception, 'details', '')}"
    return done.stdout


@pytest.mark.skipif(VERSION < (0, 38), reason="the command of the installed version")
def test_command_as_a_process(server):
    done = subprocess.run([TINKER, "-f", "json", "model", "list"], env=tinsmith.environment(server), capture_output=True, text=True, timeout=240)
    assert tinsmith.MODEL in {m["model_name"] for m in json.loads(done.stdout)["models"]}, done.stderr
    assert tinsmith.ended(done.returncode), done.stderr


@pytest.mark.skipif(VERSION < (0, 38), reason="the command of the installed version")
def test_every_command_answers_in_json(server, service, tmp_path):
    run = sdkcalls.trainer(service)
    sdkcalls.train(run)
    model = run.get_info().model_id
    state, extra, sampler = (run.save_state("cli").result().path, run.save_state("more").result().path, run.save_weights_for_sampler("cli").result().path)
    command(server, "version")
    assert tinsmith.MODEL in json.dumps(json.loads(command(server, "model", "list")))
    assert "accessible: yes" in command(server, "auth", "status")  # the one command that has no JSON
    assert json.loads(command(server, "auth", "whoami"))
    assert model in json.dumps(json.loads(command(server, "run", "list", "--limit", "5")))
    assert model in json.dumps(json.loads(command(server, "run", "info", model)))
    listed = json.dumps(json.loads(command(server, "checkpoint", "list", "--run-id", model)))
    assert state in listed and sampler in listed
    assert state in json.dumps(json.loads(command(server, "checkpoint", "list")))
    assert state in json.dumps(json.loads(command(server, "checkpoint", "info", state)))
    rest = service.create_rest_client()
    shown = lambda path: next(c for c in rest.list_checkpoints(model).result().checkpoints if c.tinker_path == path)  # noqa: E731
    command(server, "checkpoint", "publish", sampler)
    assert shown(sampler).public
    command(server, "checkpoint", "unpublish", sampler)
    assert not shown(sampler).public
    command(server, "checkpoint", "set-ttl", state, "--ttl", "7200")
    assert shown(state).expires_at is not None
    command(server, "checkpoint", "set-ttl", state, "--remove")
    assert shown(state).expires_at is None
    command(server, "checkpoint", "download", state, "--output", str(tmp_path))
    found = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= found
    assert not [c for c in rest.list_user_checkpoints(limit=1000).result().checkpoints if c.checkpoint_id == "external_weights/download"]
    command(server, "checkpoint", "delete", "--yes", extra)
    command(server, "checkpoint", "delete", "--yes", "--run-id", model, "--type", "sampler_weights")
    assert [c.tinker_path for c in rest.list_checkpoints(model).result().checkpoints] == [state]
    now = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0, microsecond=0)
    stamps = [(now + datetime.timedelta(hours=h)).strftime("%Y-%m-%dT%H:00:00Z") for h in (-1, 1)]
    json.loads(command(server, "billing", "usage", *stamps))
    json.loads(command(server, "billing", "checkpoint-storage"))
    command(server, "session", "export-trace", session_of(run), "--output", str(tmp_path / "trace"))
    assert (tmp_path / "trace").stat().st_size > 0


@pytest.mark.skipif(VERSION < (0, 38), reason="the command of the installed version")
def test_revoked_key_is_refused(own_server):
    server = own_server(keys=("ann", "bob"))
    def ask(key, method="GET"):
        request = urllib.request.Request(server.url + "/api/v1/auth/apikey/me", method=method, headers={"X-API-Key": key})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    assert json.loads(ask(server.keys["ann"]))["name"] == "ann"
    ask(server.keys["ann"], "DELETE")
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server.keys["ann"])
    assert refused.value.code == 401
    assert json.loads(ask(server.keys["bob"]))["name"] == "bob"


@pytest.mark.skipif(VERSION < (0, 38), reason="the command of the installed version")
def test_login_stores_a_key_that_works(two_key_server, tmp_path):
    server = two_key_server
    alone = {"HOME": str(tmp_path), "TINKER_API_KEY": None}
    said = command(server, "auth", "login", typed=server.keys["bob"] + "\n", **alone)
    assert "Logged in as" in said and "'bob'" in said
    # The clients of one process share what they learnt from its environment, so who the stored key makes one is asked by another.
    environment = {k: v for k, v in tinsmith.environment(server, HOME=str(tmp_path)).items() if k != "TINKER_API_KEY"}
    who = subprocess.run([TINKER, "-f", "json", "auth", "whoami"], env=environment, capture_output=True, text=True, timeout=240)
    assert tinsmith.ended(who.returncode), who.stderr
    assert "bob" in json.loads(who.stdout)["user_urn"]
    assert "still active" in command(server, "auth", "logout", **alone)
    assert sdkcalls.service(server, api_key=server.keys["bob"]).get_server_capabilities().supported_models


@pytest.mark.skipif(VERSION < (0, 38), reason="the command of the installed version")
def test_login_with_a_wrong_key_fails(two_key_server, tmp_path):
    with pytest.raises(AssertionError, match="401"):
        command(two_key_server, "auth", "login", typed="tml-wrong\n", HOME=str(tmp_path), TINKER_API_KEY=None)


@pytest.mark.skipif(VERSION < (0, 38), reason="the command of the installed version")
def test_checkpoint_is_pushed_to_a_hub(server, service, tmp_path):
    """A training checkpoint arrives, as a PEFT adapter with a model card, in a repository of a hub that runs here."""
    run = sdkcalls.trainer(service)
    sdkcalls.train(run)
    path = run.save_state("pushed").result().path
    with hub.Hub() as there:
        # huggingface_hub reads its settings when it is imported, so the command is a process of its own.
        done = subprocess.run(
            [TINKER, "-f", "json", "checkpoint", "push-hf", path, "--repo", "ann/adapter"],
            env=tinsmith.environment(server, HF_ENDPOINT=there.url, HF_TOKEN="hf_test", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1"),
            capture_output=True, text=True, timeout=240,
        )
        assert tinsmith.ended(done.returncode), done.stdout + done.stderr
        assert json.loads(done.stdout)["repo_id"] == "ann/adapter"
        assert {"README.md", "adapter_config.json", "adapter_model.safetensors"} <= set(there.files)
        assert json.loads(there.files["adapter_config.json"])["r"] == 8 and path in there.files["README.md"].decode()
        header = int.from_bytes(there.files["adapter_model.safetensors"][:8], "little")
        assert "lora_A" in there.files["adapter_model.safetensors"][8 : 8 + header].decode()
