"""A real server for tests: bin/tinsmith with its plugins, on a free port and with a data folder of its own.

With TINSMITH_POSTGRES, the URL of a PostgreSQL database, servers keep their records there, each in a schema of its own
that goes with the test process; making it needs psql.

Nothing here knows a client. `Server` is started by the fixtures of conftest.py; a test that wants to stop, kill or restart
a server makes its own.
"""

import atexit
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "bin" / "tinsmith"
MODEL = "tinsmith/tiny-chat"

# Names that the cookbook's closed list knows; the server answers to them with its built-in model.
ALIASES = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-4B-Instruct-2507",
    "Qwen/Qwen3.5-9B-Base",
    "Qwen/Qwen3.5-9B",
    "meta-llama/Llama-3.2-1B",
)

COMING_UP = ("downloading", "starting", "loading", "restarting")  # states of a model that is not yet served, nor given up
READY_WITHIN = 120  # seconds from start to a ready model; a machine under load is slow
STOP_WITHIN = 40


def default_config(folder: pathlib.Path) -> dict:
    """The configuration of the tests: the built-in model in float32 under all its names, on a free port, state in `folder`."""
    return {
        "listen": "127.0.0.1:0",
        "data_dir": str(folder / "data"),
        "models": [
            {
                "name": MODEL,
                "path": str(ROOT / "configs" / "models" / "tiny-chat"),
                "aliases": list(ALIASES),
                "backend": {"plugin": "single", "device": "cpu", "dtype": "float32"},
            }
        ],
    }


def postgres_schema(database: str) -> str:
    """Makes an empty schema in the database with this URL and gives the URL that selects it."""
    schema = f"tinsmith_e2e_{uuid.uuid4().hex}"

    def execute(statement):
        subprocess.run(["psql", "--quiet", "--command", statement, database], check=True, env=os.environ | {"PGOPTIONS": "-c client_min_messages=warning"})

    execute(f"CREATE SCHEMA {schema}")
    atexit.register(execute, f"DROP SCHEMA {schema} CASCADE")
    return f"{database}{'&' if urllib.parse.urlsplit(database).query else '?'}search_path={schema}"


class Server:
    """One server process, which can be started again over the same data folder and port.

    `url` is its address without a trailing slash. `key` is a key that it accepts, with `keys` all of them by name.
    """

    def __init__(self, folder: pathlib.Path, *, config: dict | None = None, keys: tuple[str, ...] = (), binary: pathlib.Path = BINARY, environment: dict[str, str] | None = None):
        self.binary, self.environment = binary, environment
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.config = config or default_config(folder)
        self.log_path = folder / "log"
        self.config_path = folder / "tinsmith.yaml"
        self.url = ""
        self.process: subprocess.Popen | None = None
        self.keys: dict[str, str] = {}
        if (database := os.environ.get("TINSMITH_POSTGRES")) and "store" not in self.config:
            (folder / "postgres").write_text(postgres_schema(database) + "\n")
            self.config["store"] = {"driver": "postgres", "url_file": str(folder / "postgres")}
        if keys:
            self.config["auth"] = {"keys_file": str(folder / "keys")}
        self.config_path.write_text(json.dumps(self.config))  # JSON is YAML
        for name in keys:
            made = subprocess.run(
                [BINARY, "key", "add", name, "--config", self.config_path], capture_output=True, text=True, check=True
            )
            self.keys[name] = made.stdout.strip()
        self.key = next(iter(self.keys.values()), "tml-local")

    def place(self, backend: dict) -> None:
        """Writes another section `backend:` of the one model, for the next start."""
        self.config["models"][0]["backend"] = backend
        self.config_path.write_text(json.dumps(self.config))

    def start(self, status: str = "ok") -> "Server":
        """Starts the process and waits until no model comes up any more and what /healthz calls it is `status`: "ok" when every model is ready."""
        if self.process is not None:
            raise RuntimeError("the server is running already")
        address = pathlib.Path(self.config["data_dir"]) / "address"
        address.unlink(missing_ok=True)
        arguments = [self.binary, "serve", "--config", self.config_path]
        if self.url:  # clients of the earlier process know this address
            arguments += ["--listen", self.url.removeprefix("http://")]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True, env=self.environment)
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log()[-4000:]}")
            if address.exists() and (text := address.read_text().strip()):
                self.url = text if text.startswith("http") else "http://" + text
                health = self.health()
                coming = [m for m in health.get("models", []) if m["state"] in COMING_UP]
                if health.get("status") == status and not coming:
                    return self
            time.sleep(0.05)
        raise RuntimeError(f"the server was not ready within {READY_WITHIN} s:\n{self.log()[-4000:]}")

    def health(self) -> dict:
        """The answer of /healthz, {} while nobody listens."""
        try:
            with urllib.request.urlopen(self.url + "/healthz", timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            try:
                return json.load(refused)
            except ValueError:
                return {}
        except OSError:
            return {}

    def stop(self) -> None:
        """Ends the process in the orderly way; what it leaves running is killed and is an error."""
        if self.process is None:
            return
        process, self.process = self.process, None
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the server did not end within {STOP_WITHIN} s of SIGTERM:\n{self.log()[-4000:]}") from None
        finally:
            _, left = psutil.wait_procs(children, timeout=10)
            for child in left:
                child.kill()
        if left:
            raise RuntimeError(f"plugins outlived the server: {left}")
        if code != 0:
            raise RuntimeError(f"the server ended with {code}:\n{self.log()[-4000:]}")

    def kill(self) -> None:
        """Ends gateway and plugins as a power failure would."""
        if self.process is None:
            return
        process, self.process = self.process, None
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(children, timeout=10)

    def kill_gateway(self) -> None:
        """Ends the gateway alone; its plugins end by themselves."""
        if self.process is not None:
            children = self.plugins()
            process, self.process = self.process, None
            process.kill()
            process.wait()
            _, left = psutil.wait_procs(children, timeout=30)
            if left:
                raise RuntimeError(f"plugins outlived the gateway: {left}")

    def checkpoint(self, name: str) -> dict[str, str]:
        """The checksums of the files of the one checkpoint of that name, whatever its kind and run."""
        found = [json.loads(path.read_text()) for path in pathlib.Path(self.config["data_dir"]).glob(f"checkpoints/*/*/{name}~*/checkpoint.json")]
        sums = [{file: digest for file, digest in one["sha256"].items() if file.endswith(".safetensors")} for one in found]
        if not sums or any(each != sums[0] for each in sums):
            raise RuntimeError(f"checkpoint {name}: {len(sums)} folders: {sums}")
        return sums[0]

    def plugins(self) -> list[psutil.Process]:
        """The running plugin processes."""
        if self.process is None:
            return []
        return psutil.Process(self.process.pid).children(recursive=True)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


TROUBLE = re.compile(r"level=ERROR|^panic:|\bhandler panicked\b|^fatal error:|^goroutine \d+ \[running\]|WARNING: DATA RACE|SIGSEGV", re.M)


def request(server, method, path, body=None, **headers):
    """One request without any SDK: status, headers, what it answers."""
    where = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=120)
    connection.request(method, path, body=None if body is None else json.dumps(body), headers={"X-API-Key": server.key, "Content-Type": "application/json"} | headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, content


def trouble(log: str) -> list[str]:
    """The lines of a log that no test may cause unless it means to."""
    return [line for line in log.splitlines() if TROUBLE.search(line)]


def modules() -> str:
    """PYTHONPATH of client processes that use the SDK under test and the modules of this folder."""
    return os.pathsep.join(p for p in (os.environ.get("PYTHONPATH"), str(ROOT / "e2e")) if p)


def environment(server: Server, **more: str) -> dict[str, str]:
    """An environment for client processes: the server's address and key, and nothing from outside that could lead elsewhere."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "OPENAI_", "HF_", "CLOUDFLARE_"))}
    return clean | {
        "TINKER_BASE_URL": server.url,
        "TINKER_API_KEY": server.key,
        "OPENAI_BASE_URL": server.url + "/v1",
        "OPENAI_API_KEY": server.key,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        **more,
    }


def ended(code):
    """Whether a client's process ended as it should. Once in many runs a Python process that used SDK 0.38 aborts at its very end, with its work done and its
    output complete, in threads of the SDK's own transport; what it printed is for the test to check."""
    return code in (0, -signal.SIGABRT)
