"""The methods of the SDK's clients: those that no other test calls, and the table of all of them in docs/sdk-releases.md."""

import urllib.request

import numpy as np
import pytest
import tinker

import sdkcalls
import sdkmethods
import tinsmith
from sdkcalls import TOKENS, VERSION, datum


@pytest.mark.skipif(VERSION < (0, 38), reason="once, with the newest version")
def test_table_of_releases():
    """The committed table is what sdkmethods.py makes of the releases that are installed here. `same` and `no test` depend on all of them."""
    releases, page = sdkmethods.installed(), sdkmethods.committed()
    assert len(page) > 50 and sdkmethods.NEWEST in releases
    made = sdkmethods.cells(releases)
    assert set(made) <= set(page)
    for method, row in page.items():
        for release in releases:
            want = made.get(method, {}).get(release, sdkmethods.ABSENT)
            got = row[release]
            if len(releases) < len(row):
                want, got = (sdkmethods.SAME if cell in (sdkmethods.SAME, sdkmethods.NONE) else cell for cell in (want, got))
            assert got == want, f"{method} with {release}: run .venv/bin/python e2e/sdkmethods.py"


def test_what_the_table_is_made_from():
    """A test counts for a release only where pytest runs it, and a call only where the branch that it is in is taken."""
    assert "search_sessions" in sdkmethods.tested(sdkmethods.NEWEST) and "search_sessions" not in sdkmethods.tested("0.35.0")
    assert "assign_session_project" in sdkmethods.tested("0.23.4") and "assign_session_project" not in sdkmethods.tested("0.20.0")
    assert "export_session_trace" not in sdkmethods.tested("0.30.4")  # without the mark `version`


@pytest.mark.skipif(VERSION >= (0, 36), reason="archives went with 0.36")
@pytest.mark.version
def test_archive_by_its_ids(service):
    run = sdkcalls.trainer(service)
    path = run.save_weights_for_sampler("mine").result().path
    run_id, checkpoint_id = path.removeprefix("tinker://").split("/", 1)
    url = service.create_rest_client().get_checkpoint_archive_url(run_id, checkpoint_id).result().url
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert b"adapter_model.safetensors" in answer.read()


@pytest.mark.skipif(VERSION < (0, 35), reason="handles of samplers came with 0.35")
@pytest.mark.version
def test_sampler_from_a_handle(server, service):
    sampler = sdkcalls.client(service.create_sampling_client(base_model=tinsmith.MODEL))
    other = tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle(), api_key=server.key)
    answers = [sdkcalls.sample(each, max_tokens=6, seed=3, stop=[]).sequences[0].tokens for each in (sampler, other)]
    assert answers[0] == answers[1] and len(answers[0]) == 6


@pytest.mark.skipif(VERSION < (0, 36), reason="created losses came with 0.36")
@pytest.mark.version
def test_created_custom_loss(service):
    """The server says that it does not run them, so the SDK does."""

    def neg_ll(logprobs, weights):
        loss = -(logprobs * weights).sum()
        return loss, {"custom/neg_ll:sum": loss}

    created, direct = sdkcalls.trainer(service), sdkcalls.trainer(service)
    handle = service.create_custom_loss(neg_ll, input_ranks={"logprobs": 1, "weights": 1}).result()
    weights = np.ones(len(TOKENS) - 1, np.float32)
    output = created.forward_backward_custom([datum(weights=weights)], handle).result()
    expected = direct.forward_backward([datum(weights=weights)], "cross_entropy").result()
    assert output.metrics["custom/neg_ll:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-5)
    for each in (created, direct):
        each.optim_step(tinker.AdamParams(learning_rate=1e-3, eps=1e-8)).result()
    assert np.array_equal(sdkcalls.logprobs(created), sdkcalls.logprobs(direct))
