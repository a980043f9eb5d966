"""The program in a real terminal: `tinsmith chat` with a person at the keys."""

import http.server
import json
import os
import pty
import select
import signal
import termios
import threading
import time

import pytest

import tinsmith

UP, LEFT, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x03", "\x04"
WITHIN = 60  # seconds


class Terminal:
    """A command on a pseudo-terminal of 80 columns. `screen` is all that it has written."""

    def __init__(self, *command):
        self.screen = ""
        self.process, self.keys = pty.fork()
        if self.process == 0:
            os.execv(tinsmith.BINARY, [str(tinsmith.BINARY), *command])
        termios.tcsetwinsize(self.keys, (24, 80))
        self.written = select.poll()  # a session of many tests has more descriptors than select.select takes
        self.written.register(self.keys, select.POLLIN)

    def type(self, text: str) -> None:
        os.write(self.keys, text.encode())

    def read(self, until) -> str:
        """What is written until a condition holds for it."""
        got, end = "", time.monotonic() + WITHIN
        while not until(got):
            assert time.monotonic() < end, self.screen
            if self.written.poll(100):
                try:
                    more = os.read(self.keys, 1 << 16).decode(errors="replace")
                except OSError:  # it has ended
                    break
                got, self.screen = got + more, self.screen + more
        return got

    def prompt(self) -> str:
        return self.read(lambda got: got.rstrip("\r").endswith("> "))

    def end(self) -> int:
        """The exit status."""
        self.read(lambda got: False)
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        os.close(self.keys)
        return status


@pytest.fixture
def chat(server):
    opened = []

    def open_chat(*arguments):
        opened.append(Terminal("chat", "--url", server.url, "--temperature", "0", *arguments))
        return opened[-1]

    yield open_chat
    for terminal in opened:
        try:
            os.kill(terminal.process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def answer(shown: str) -> str:
    """What stands between the line that was typed and the next prompt."""
    return shown.split("\r\n", 1)[1].rsplit("\r\n", 1)[0]


def test_editing_history_and_the_end(chat):
    person = chat()
    assert "talking to" in person.prompt()
    person.type("helo" + LEFT + "l\r")
    first = person.prompt()
    assert "\x1b[A" not in first
    assert answer(first)
    person.type(UP + "\r")  # the line before, as it was sent
    again = person.prompt()
    assert "hello" in again.split("\r\n")[0]
    person.type(CTRL_D)
    assert person.end() == 0


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D, "\r"], ids=["ctrl-C", "ctrl-D", "an empty line"])
def test_keys_that_end_it(chat, key):
    person = chat()
    person.prompt()
    person.type(key)
    assert person.end() == 0


class EndlessAnswer(http.server.BaseHTTPRequestHandler):
    """A server of which the first answer begins and does not end, and others are "done". The built-in model is too fast to be interrupted at a moment that a test knows."""

    def do_GET(self):
        body = b'{"id": "m", "object": "model"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        first, self.server.asked = not self.server.asked, True
        self.event("once upon" if first else "done")
        if first:
            self.connection.settimeout(WITHIN)
            self.connection.recv(1)  # until the client goes away
        else:
            self.wfile.write(b"data: [DONE]\n\n")

    def event(self, text):
        self.wfile.write(b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n")

    def log_message(self, *_):
        pass


@pytest.fixture
def endless():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), EndlessAnswer)
    server.asked = False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_interrupt_ends_an_answer_and_not_the_conversation(endless):
    person = Terminal("chat", "--url", endless, "--model", "m")
    try:
        person.prompt()
        person.type("tell me a story\r")
        person.read(lambda got: "once upon" in got)
        os.killpg(person.process, signal.SIGINT)
        person.prompt()
        person.type("hello\r")
        assert answer(person.prompt()).endswith("done")
        person.type(CTRL_C)
        assert person.end() == 0
    finally:
        try:
            os.kill(person.process, signal.SIGKILL)
        except ProcessLookupError:
            pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_terminated_at_the_prompt(chat, number):
    person = chat()
    before = termios.tcgetattr(person.keys)
    person.prompt()
    assert termios.tcgetattr(person.keys)[3] != before[3]  # raw
    os.kill(person.process, number)
    person.read(lambda got: termios.tcgetattr(person.keys)[3] == before[3])


def test_unknown_model(chat):
    person = chat("--model", "no/model")
    assert person.end() == 1
    assert "talking to" not in person.screen
    assert "no/model" in person.screen
