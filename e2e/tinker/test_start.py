"""The beginning of every program: what is sent when, and who may do it."""

import pytest

import tinker
import tinsmith


@pytest.mark.version
def test_capabilities_name_every_model_and_alias(server):
    answer = tinker.ServiceClient(base_url=server.url, api_key=server.key).get_server_capabilities()
    assert {m.model_name for m in answer.supported_models} == {tinsmith.MODEL, *tinsmith.ALIASES}
    assert {m.max_context_length for m in answer.supported_models} == {4096}
