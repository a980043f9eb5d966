"""The beginning of every program: what is sent when, and who may do it."""

import json
import time
import urllib.request

import pytest
import tinker

import proxy
import sdkcalls
import tinsmith

START = ["/client/config", "/auth/token", "/client/dynamic_config"]


def start_of_version() -> list[str]:
    if sdkcalls.VERSION < (0, 18):
        return []
    return START if sdkcalls.VERSION >= (0, 25) else START[:2]


@pytest.mark.version
def test_capabilities_name_every_model_and_alias(server):
    answer = sdkcalls.service(server).get_server_capabilities()
    assert {m.model_name for m in answer.supported_models} == {tinsmith.MODEL, *tinsmith.ALIASES}
    if sdkcalls.VERSION >= (0, 18):
        assert {m.max_context_length for m in answer.supported_models} == {4096}


@pytest.mark.skipif(sdkcalls.VERSION < (0, 23), reason="before 0.23 the constructor makes the session")
@pytest.mark.version
def test_constructing_a_service_client_sends_nothing(server):
    with proxy.Proxy(server.url) as between:
        sdkcalls.service(server, base_url=between.url)
        time.sleep(0.2)
        assert between.seen == []


@pytest.mark.skipif(sdkcalls.VERSION < (0, 23), reason="before 0.23 the constructor makes the session")
@pytest.mark.version
def test_capabilities_need_no_session(server):
    with proxy.Proxy(server.url) as between:
        sdkcalls.service(server, base_url=between.url).get_server_capabilities()
        assert between.paths() == [*start_of_version(), "/get_server_capabilities"]


@pytest.mark.version
def test_requests_of_a_training_client(server):
    with proxy.Proxy(server.url) as between:
        trainer = sdkcalls.trainer(sdkcalls.service(server, base_url=between.url))
        trainer.get_info()
        seen = between.paths()
        assert seen[: len(start_of_version()) + 2] == [*start_of_version(), "/create_session", "/create_model"]
        assert set(seen[len(start_of_version()) + 2 :]) == {"/retrieve_future", "/get_info"}


@pytest.mark.version
def test_address_with_a_path_prefix(server):
    with proxy.Proxy(server.url, prefix="/behind/a/proxy") as between:
        trainer = sdkcalls.trainer(sdkcalls.service(server, base_url=between.url))
        assert sdkcalls.train(trainer).metrics["loss:sum"] > 0
        assert all(e.status == 200 for e in between.seen if e.answer is not None)


def test_tokens_replace_the_key(two_key_server):
    with proxy.Proxy(two_key_server.url) as between:
        rest = sdkcalls.service(two_key_server, base_url=between.url).create_rest_client()
        who = rest.whoami().result()
        rest.list_training_runs().result()
        key = two_key_server.keys["ann"]
        assert {e.headers["x-api-key"] for e in between.to("/client/config")} == {key}
        assert all(e.headers["x-api-key"].startswith("eyJ") for e in between.to("/training_runs"))
        assert "ann" in who.user_urn
        assert len(between.to("/auth/token")) == 1


def exchanged(server, credential):
    request = urllib.request.Request(server.url + "/api/v1/auth/token", data=b"{}", headers={"X-API-Key": credential})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())["jwt"]


@pytest.mark.skipif(sdkcalls.VERSION < (0, 23), reason="whoami came with 0.23")
@pytest.mark.version
def test_token_in_place_of_a_key(two_key_server):
    token = exchanged(two_key_server, two_key_server.keys["ann"])
    rest = sdkcalls.service(two_key_server, api_key=token).create_rest_client()
    rest.list_training_runs().result()
    assert "ann" in rest.whoami().result().user_urn
    assert exchanged(two_key_server, token) == token  # it is never renewed


def test_everything_ends_with_its_key(own_server):
    server = own_server(keys=("ann", "ann", "bob"))
    service = sdkcalls.service(server, api_key=server.keys["ann"])
    rest = service.create_rest_client()
    rest.list_training_runs().result()
    of_a_token = sdkcalls.service(server, api_key=exchanged(server, server.keys["ann"])).create_rest_client()
    of_a_token.list_training_runs().result()
    request = urllib.request.Request(server.url + "/api/v1/auth/apikey/me", method="DELETE", headers={"X-API-Key": server.keys["ann"]})
    urllib.request.urlopen(request, timeout=30).close()
    for client in (rest, of_a_token):
        with pytest.raises(tinker.AuthenticationError):
            client.list_training_runs().result()
    sdkcalls.service(server, api_key=server.keys["bob"]).create_rest_client().list_training_runs().result()


@pytest.mark.version
def test_wrong_key_fails_at_once(two_key_server):
    begun = time.monotonic()
    with pytest.raises(tinker.AuthenticationError):
        sdkcalls.service(two_key_server, api_key="tml-wrong").get_server_capabilities()
    assert time.monotonic() - begun < 25  # a repeated request would take half a minute


@pytest.mark.version
def test_unknown_base_model_fails_with_its_name(service):
    with pytest.raises((tinker.APIStatusError, tinker.RequestFailedError), match="no/such-model"):
        sdkcalls.trainer(service, base_model="no/such-model")


@pytest.mark.parametrize("rank", [3, 0, -8, 100000])
def test_bad_rank_is_refused(service, rank):
    with pytest.raises((tinker.APIStatusError, tinker.RequestFailedError), match="rank"):
        sdkcalls.trainer(service, rank=rank)


def test_optimizer_that_is_not_offered_is_refused(service):
    with pytest.raises((tinker.APIStatusError, tinker.RequestFailedError), match="dimuon"):
        sdkcalls.trainer(service, optimizer=tinker.DimuonOptimizerConfig())


@pytest.mark.version
def test_two_training_clients_of_a_session(service):
    first, second = sdkcalls.trainer(service), sdkcalls.trainer(service, rank=4)
    a, b = first.get_info(), second.get_info()
    session = a.model_id.removesuffix(":train:0")
    assert (a.model_id, b.model_id) == (f"{session}:train:0", f"{session}:train:1")
    assert (a.lora_rank, b.lora_rank) == (8, 4)
    for info in (a, b):
        assert info.is_lora and info.model_data.model_name == tinsmith.MODEL


@pytest.mark.version
def test_tokenizer_of_training_and_sampling_clients(service):
    tokenizer = sdkcalls.trainer(service).get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("What is 12 + 30?")) == "What is 12 + 30?"
    assert len(tokenizer.encode("<|im_end|>", add_special_tokens=False)) == 1
