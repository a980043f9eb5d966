"""Makes the table of docs/sdk-releases.md: every public method of the Tinker SDK's clients, by release, and whether a test calls it with that release.

usage: .venv/bin/python e2e/sdkmethods.py          # writes the table; needs every release that e2e/python.sh installs
       .venv/bin/python e2e/sdkmethods.py --print  # what the installed releases have, and the tests that call each method

Nothing is imported and nothing is run: methods are read from the source of the installed packages, and calls from the source of e2e/tinker, with the
marks and conditions by which pytest chooses the tests of a release. So the table says which tests exist, and `make test-all` says whether they pass."""

import ast
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "sdk-releases.md"
BEGIN, END = "<!-- made by e2e/sdkmethods.py -->", "<!-- end -->"
CLIENTS = ("ServiceClient", "TrainingClient", "SamplingClient", "RestClient", "AdminClient")
NEWEST = re.search(r"^tinker==(\S+)", (ROOT / "e2e" / "requirements.txt").read_text(), re.MULTILINE).group(1)
YES, SAME, LOCAL, NONE, ABSENT = "yes", "same", "local", "no test", "–"


def number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def installed() -> dict[str, pathlib.Path]:
    """The folders of the installed releases, oldest first."""
    found = {p.name: p for p in (ROOT / ".cache" / "sdk").glob("*.*.*")}
    found[NEWEST] = next((ROOT / ".venv" / "lib").glob("python*/site-packages"))
    return dict(sorted(found.items(), key=lambda item: number(item[0])))


def parse(source: pathlib.Path) -> ast.Module:
    """The syntax of a file. Python 3.11 counts the depth of all threads as one, and stumbles where another thread, such as a client's of the SDK, runs meanwhile: python/cpython#106905."""
    for _ in range(9):
        try:
            return ast.parse(source.read_text())
        except SystemError as e:
            if "recursion depth mismatch" not in str(e):
                raise
    return ast.parse(source.read_text())


@functools.cache
def methods(package: pathlib.Path) -> dict[str, dict[str, ast.AST]]:
    """The methods of each client. A second form of a call (`_async`) is with the first; properties are no calls."""
    found = {}
    for source in (package / "tinker" / "lib" / "public_interfaces").glob("*.py"):
        for node in parse(source).body:
            if isinstance(node, ast.ClassDef) and node.name in CLIENTS:
                defined = [f for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
                calls = [f for f in defined if "property" not in {getattr(d, "id", "") for d in f.decorator_list}]
                found[node.name] = {f.name.removesuffix("_async"): f for f in calls}
    return found


@functools.cache
def own(method: ast.AST) -> set[str]:
    """The methods of clients that a method of the SDK calls itself."""
    calls = [n for n in ast.walk(method) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    return {n.attr.removesuffix("_async") for n in calls if n.value.id in ("self", "cls", *CLIENTS)}


# What a method that sends a request has somewhere in its source.
SENDS = re.compile(r"run_coroutine|_submit\(|_impl\(|_async\(|_unpickle|execute_with_retries|aclient\(")


class Calls(ast.NodeVisitor):
    """What a piece of a test's source calls and names, under one release: branches that the release does not take are left out."""

    def __init__(self, version):
        self.version, self.called, self.named = version, set(), set()

    def holds(self, condition):
        """The value of a condition on VERSION; None where it asks for something else too."""
        names = {n.id for n in ast.walk(condition) if isinstance(n, ast.Name)}
        if not names or names - {"VERSION", "sdkcalls"} or "VERSION" not in ast.unparse(condition):
            return None
        text = ast.unparse(condition).replace("sdkcalls.VERSION", "VERSION")
        return bool(eval(text, {"__builtins__": {}}, {"VERSION": self.version}))  # of our own tests

    def block(self, statements):
        """Visits statements up to the first that ends the test; tells whether there was one."""
        for statement in statements:
            if isinstance(statement, ast.If) and (held := self.holds(statement.test)) is not None:
                if self.block(statement.body if held else statement.orelse):
                    return True
                continue
            self.visit(statement)
            if isinstance(statement, ast.Return) or isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("pytest.skip("):
                return True
        return False

    def visit_If(self, node):
        self.block([node]) if self.holds(node.test) is not None else self.generic_visit(node)

    def visit_IfExp(self, node):
        held = self.holds(node.test)
        for part in [node.body, node.orelse] if held is None else [node.body if held else node.orelse]:
            self.visit(part)

    def visit_FunctionDef(self, node):
        self.named.update(a.arg for a in node.args.args)  # fixtures
        self.block(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id in HELPERS:
            self.named.add(node.attr)
        elif getattr(node.value, "attr", "") != "completions":  # the OpenAI SDK's
            self.called.add(node.attr.removesuffix("_async"))
        self.generic_visit(node)

    def visit_Name(self, node):
        self.named.add(node.id)

    def visit_Constant(self, node):
        if isinstance(node.value, str):  # a program that the test runs
            self.called.update(name.removesuffix("_async") for name in re.findall(r"\.(\w+)\(", node.value))


@functools.cache
def scan(node: ast.AST, version: tuple[int, ...]) -> tuple[set[str], set[str]]:
    """What a definition calls, and what it names."""
    calls = Calls(version)
    calls.visit(node)
    return calls.called, calls.named


HELPERS = {"sdkcalls": "sdkcalls.py", "tinsmith": "tinsmith.py"}


@functools.cache
def definitions(source: pathlib.Path) -> dict[str, ast.AST]:
    """What a module defines at its top, by name."""
    found = {}
    for node in parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found.update({t.id: node.value for t in node.targets if isinstance(t, ast.Name)})
    return found


def chosen(node, module_marks, version, newest) -> bool:
    """Whether pytest runs a test with a release: with the newest all, with others those with the mark `version`; but none that a skipif excludes."""
    marks = [ast.unparse(m) for m in [*node.decorator_list, *module_marks]]
    if not newest and "pytest.mark.version" not in marks:
        return False
    for mark in [*node.decorator_list, *module_marks]:
        if ast.unparse(mark).startswith("pytest.mark.skipif") and Calls(version).holds(mark.args[0]):
            return False
    return True


def tested(release: str) -> dict[str, list[str]]:
    """The tests that call a method with a release, by the method's name."""
    shared = {}
    for helper in ["conftest.py", *HELPERS.values()]:
        shared.update(definitions(ROOT / "e2e" / helper))
    version = number(release)[:2]
    found = {}
    for source in sorted((ROOT / "e2e" / "tinker").glob("test_*.py")):
        defined = shared | definitions(source)
        marks = defined.get("pytestmark")
        marks = marks.elts if isinstance(marks, ast.List) else [marks] if marks else []
        for name, node in definitions(source).items():
            if not name.startswith("test_") or not chosen(node, marks, version, release == NEWEST):
                continue
            called, seen, waiting = set(), set(), [name]
            while waiting:
                one = waiting.pop()
                if one in seen or one not in defined:
                    continue
                seen.add(one)
                calls, names = scan(defined[one], version)
                called |= calls
                waiting.extend(names - seen)
            for method in called:
                found.setdefault(method, []).append(f"{source.name}::{name}")
    return found


def cells(releases: dict[str, pathlib.Path]) -> dict[tuple[str, str], dict[str, str]]:
    """What the table says of each method: `yes` where a test calls it with the release, or calls what calls it; `same` where tests do with other releases
    only; `local` where it sends nothing; `no test` otherwise."""
    have = {r: methods(folder) for r, folder in releases.items()}
    tests = {}
    for release, clients in have.items():
        tests[release] = set(tested(release))
        while more := {c for members in clients.values() for n, f in members.items() if n in tests[release] for c in own(f)} - tests[release]:
            tests[release] |= more
    found = {}
    for client in CLIENTS:
        names = sorted(set().union(*(h.get(client, ()) for h in have.values())))
        for name in (n for n in names if not n.startswith("_")):
            where = {r: have[r][client][name] for r in releases if name in have[r].get(client, ())}
            with_test = {r for r in where if name in tests[r]}
            other = SAME if with_test else NONE if any(SENDS.search(ast.unparse(f)) for f in where.values()) else LOCAL
            found[client, name] = {r: ABSENT if r not in where else YES if r in with_test else other for r in releases}
    return found


def table(made) -> str:
    releases = list(next(iter(made.values())))
    lines = ["| client | method | " + " | ".join(releases) + " |", "|---" * (2 + len(releases)) + "|"]
    for (client, name), row in made.items():
        lines.append(f"| {client} | `{name}` | " + " | ".join(row[r] for r in releases) + " |")
    return "\n".join(lines)


def committed() -> dict[tuple[str, str], dict[str, str]]:
    """The table of the page, as cells gives it."""
    text = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    head, _, *rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return {(row[0], row[1].strip("`")): dict(zip(head[2:], row[2:], strict=True)) for row in rows}


def main():
    releases = installed()
    made = cells(releases)
    if "--print" in sys.argv:
        print(table(made))
        for method, tests in sorted(tested(NEWEST).items()):
            if any(method == name for _, name in made):
                print(method, *tests[:3])
        return
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(made)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
