"""Fixtures of all Python tests: servers, and the rule that no test may make the server log an error."""

import atexit
import contextlib
import os
import sys

import pytest

import tinsmith

# A test that ends in an error of the client must not leave for the network.
os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"})
for name in [n for n in os.environ if n.startswith(("TINKER_", "OPENAI_", "ANTHROPIC_"))]:
    del os.environ[name]


outcome = []


def pytest_sessionfinish(session):
    outcome.append(session)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """The SDK's daemon threads go on for servers that have ended. The interpreter can abort when it ends below them,
    after the last test; so it does not end, the process does."""
    if outcome:
        atexit._run_exitfuncs()
        config.get_terminal_writer().flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(outcome[0].exitstatus))


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    """One server without keys for all tests of the session that only talk to it."""
    server = tinsmith.Server(tmp_path_factory.mktemp("server")).start()
    yield server
    server.stop()


def watched(server):
    """The body of a fixture that gives a server and fails the test if the server logged an error meanwhile."""
    before = len(server.log())
    yield server
    logged = server.log()[before:]
    assert not tinsmith.trouble(logged), "the server logged:\n" + "\n".join(tinsmith.trouble(logged))


@pytest.fixture
def server(shared_server):
    """The shared server, watched."""
    yield from watched(shared_server)


@pytest.fixture
def own_server(tmp_path):
    """A server for this test alone, which it may kill: make(keys=…, config=…) starts one. Its log is not judged, for
    a killed plugin is an error that the server must log."""
    made = []

    def make(**options):
        made.append(tinsmith.Server(tmp_path / f"server{len(made)}", **options).start())
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture(scope="session")
def shared_two_key_server(tmp_path_factory):
    server = tinsmith.Server(tmp_path_factory.mktemp("keys"), keys=("ann", "bob")).start()
    yield server
    server.stop()


@pytest.fixture
def two_key_server(shared_two_key_server):
    """A server that knows the keys `ann` and `bob` (server.keys) and refuses everybody else, watched."""
    yield from watched(shared_two_key_server)


@pytest.fixture
def service(server):
    """A ServiceClient of the shared server, whose session ends with the test."""
    import sdkcalls

    made = sdkcalls.service(server)
    yield made
    if hasattr(made, "close"):
        ended = made.close("success")
        if ended is not None:
            # The SDK cancels its pollers and waits for their ends. asyncio.wait_for of Python 3.11 forgets a cancellation that comes with the answer of the
            # request, and the poller then waits for work forever. The session has ended by then: what hangs is the client's tidying up.
            with contextlib.suppress(TimeoutError):
                ended.result(timeout=30)
