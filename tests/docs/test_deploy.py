"""What is in deploy/ and in its guide holds together, as far as can be seen without systemd and containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from cascade.cli.main import main as cli
from cascade.db import CONNECT_TIMEOUT_S
from cascade.node.daemon import STOP_WITHIN_S
from cascade.topology import load
from tests.docs.markdown import TOP, statements
from tests.docs.runner import drop_role
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database, eventually

DEPLOY = TOP / "deploy"
GUIDE = TOP / "docs" / "howto" / "deploy.md"
UNIT = DEPLOY / "systemd" / "cascade-node@.service"


def check_command(words: list[str]) -> None:
    """Have the real command line read a command, without running it; an option it does not know is an error."""
    command: click.Command = cli
    name, rest = "cascade", words
    # Options such as -h come from the context above, and a command remembers them from its first use.
    context = click.Context(command, info_name=name, **command.context_settings)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, *rest = rest
        found = command.get_command(context, name)
        assert found is not None, f"cascade {shlex.join(words)}: there is no {name}"
        command = found
        if isinstance(command, click.Group):
            context = click.Context(command, context, info_name=name, **command.context_settings)
    if not isinstance(command, click.Group):
        command.make_context(name, list(rest), parent=context)


# systemd


@pytest.fixture
def unit() -> dict[str, dict[str, list[str]]]:
    """The unit file: section, key, values in order."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), defaultdict(list))
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals and key.isalnum(), f"not a setting: {line}"
            section[key].append(value)
    return sections


def unit_environment(unit: dict[str, dict[str, list[str]]]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit["Service"]["Environment"])


def test_the_unit_runs_a_command_that_exists(unit: dict[str, dict[str, list[str]]]) -> None:
    [start] = unit["Service"]["ExecStart"]
    environment = unit_environment(unit)
    assert set(re.findall(r"\$\{?(\w+)", start)) <= environment.keys(), "a variable of ExecStart has no default"
    words = shlex.split(re.sub(r"\$\{?(\w+)\}?", lambda match: environment[match[1]], start.replace("%i", "ams1")))
    assert words[0] == "/opt/cascade/bin/cascade"
    check_command(words[1:])


def test_the_unit_speaks_to_systemd_as_the_daemon_does(unit: dict[str, dict[str, list[str]]]) -> None:
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"]) == (["notify"], ["main"])
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert service["EnvironmentFile"] == ["-/etc/cascade/%i.env"]
    assert service["Restart"] == ["on-failure"] and service["RestartPreventExitStatus"] == ["2"]
    assert unit["Unit"]["StartLimitBurst"] and unit["Unit"]["StartLimitIntervalSec"]
    assert service["TimeoutStartSec"] == ["infinity"], "the daemon waits for its database before it is ready"


def test_the_unit_gives_the_daemon_time_to_stop(unit: dict[str, dict[str, list[str]]]) -> None:
    longest_s = STOP_WITHIN_S * 1.5 + CONNECT_TIMEOUT_S
    assert int(unit["Service"]["TimeoutStopSec"][0]) > longest_s
    assert int(unit["Service"]["WatchdogSec"][0]) > longest_s


def test_the_unit_is_not_root_and_has_no_capabilities(unit: dict[str, dict[str, list[str]]]) -> None:
    service = unit["Service"]
    assert service["User"] == ["cascade"]
    assert service["CapabilityBoundingSet"] == [""]
    assert service["ProtectSystem"] == ["strict"]
    assert set(service["RestrictAddressFamilies"][0].split()) == {"AF_INET", "AF_INET6", "AF_UNIX"}
    assert service["SystemCallFilter"][0] == "@system-service"
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "LockPersonality", "MemoryDenyWriteExecute"):
        assert service[key] == ["yes"], key


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/cascade/bin/cascade", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    # Units of the machine itself may be at fault too; those are not ours to mend.
    ours = [line for line in done.stdout.splitlines() if "cascade-node@" in line]
    assert ours == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_the_unit_well_confined(tmp_path: Path) -> None:
    copy = tmp_path / "cascade-node@ams1.service"
    copy.write_text(UNIT.read_text())
    done = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", str(copy)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if "unrecognized option" in done.stdout:
        pytest.skip("this systemd cannot review a file")
    assert done.returncode == 0, done.stdout


# The image

KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD", "LABEL", "ARG"}


@pytest.fixture
def stages() -> list[list[tuple[str, str]]]:
    """The Dockerfile: for each stage its instructions and their arguments."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found: list[list[tuple[str, str]]] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        instruction, _, arguments = line.partition(" ")
        assert instruction in KNOWN, f"unknown instruction: {line}"
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, arguments.strip()))
    return found


def the(stage: list[tuple[str, str]], instruction: str) -> str:
    """Return what one instruction of a stage says; it must stand there once."""
    [arguments] = [arguments for name, arguments in stage if name == instruction]
    return arguments


def copied(stages: list[list[tuple[str, str]]]) -> list[str]:
    """Return what is copied from the tree."""
    words = [arguments.split() for stage in stages for name, arguments in stage if name == "COPY"]
    return [source for found in words if not found[0].startswith("--from=") for source in found[:-1]]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path of the tree through; the last rule that fits it or a folder above decides."""
    sent = True
    parts = path.split("/")
    heads = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for rule in (TOP / ".dockerignore").read_text().splitlines():
        pattern = rule.removeprefix("!")
        names = parts if pattern.startswith("**/") else heads
        if rule and not rule.startswith("#") and any(fnmatch(name, pattern.removeprefix("**/")) for name in names):
            sent = rule.startswith("!")
    return sent


def test_the_image_does_not_run_as_root(stages: list[list[tuple[str, str]]]) -> None:
    user = the(stages[-1], "USER").split(":")
    assert all(part.isdigit() and int(part) > 0 for part in user)
    last = [name for name, _ in stages[-1]]
    assert "RUN" not in last, "the last stage only copies"
    assert last.index("USER") < last.index("ENTRYPOINT")


def test_the_image_stands_on_pinned_versions(stages: list[list[tuple[str, str]]]) -> None:
    for stage in stages:
        assert re.fullmatch(r"python:3\.\d+-slim( AS \w+)?", stage[0][1]), stage[0][1]
    assert len({stage[0][1].split()[0] for stage in stages}) == 1, "what one Python built another would run"


def test_what_the_image_is_built_from_exists_and_is_sent(stages: list[list[tuple[str, str]]]) -> None:
    sources = copied(stages)
    assert [source for source in sources if not (TOP / source).exists()] == []
    assert [source for source in sources if not is_sent(source)] == []
    links = [path for path in (TOP / "cascade").iterdir() if path.is_symlink()]
    assert links and {path.resolve().name for path in links} <= set(sources), "a link would lead nowhere"


def test_nothing_else_is_sent_to_the_builder(stages: list[list[tuple[str, str]]]) -> None:
    top = {path.name for path in TOP.iterdir()} | {".git", ".venv", ".cascade"}
    assert {name for name in top if is_sent(name)} == set(copied(stages))
    assert not is_sent("deploy/secrets/pg_service.conf")
    assert not is_sent("cascade/cli/__pycache__/main.cpython-312.pyc")


def test_the_image_is_the_command(stages: list[list[tuple[str, str]]]) -> None:
    assert json.loads(the(stages[-1], "ENTRYPOINT")) == ["cascade"]
    check_command(json.loads(the(stages[-1], "CMD")))


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False)])
def test_the_health_check_of_the_image_asks_the_daemon(
    stages: list[list[tuple[str, str]]], status: int, is_healthy: bool
) -> None:
    python, *words = json.loads(the(stages[-1], "HEALTHCHECK").partition("CMD ")[2])
    assert python == "python"
    with answering(status) as (port, asked):
        here = [word.replace(":8080/", f":{port}/") for word in words]
        done = subprocess.run([sys.executable, *here], stderr=subprocess.DEVNULL, timeout=20, check=False)
    assert asked == ["/health"]
    assert (done.returncode == 0) is is_healthy


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """Answer one request with a status, and remember what was asked."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        server.timeout = 10
        thread.start()
        yield server.server_address[1], asked
        thread.join()


# Compose


@pytest.fixture
def compose() -> dict[str, Any]:
    """The compose file, anchors and merges resolved."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def daemons(compose: dict[str, Any]) -> dict[str, list[str]]:
    """Return the commands of the services that are daemons."""
    services = compose["services"].items()
    return {name: service["command"] for name, service in services if service.get("command", [])[:2] == ["node", "run"]}


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_compose_refers_only_to_what_it_defines(compose: dict[str, Any]) -> None:
    services = compose["services"]
    used: dict[str, set[str]] = defaultdict(set)
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, f"{name} depends on {other}"
            if how["condition"] == "service_healthy":
                assert "test" in services[other]["healthcheck"], f"{other} has no health check"
            else:
                assert how["condition"] == "service_completed_successfully"
                assert services[other].get("restart", "no") == "no", f"{other} never ends"
        for secret in service.get("secrets", []):
            used["secrets"].add(secret if isinstance(secret, str) else secret["source"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name} mounts {source}"
                assert volume.endswith(":ro"), f"{name} may write to {source}"
            else:
                used["volumes"].add(source)
    assert used["secrets"] == set(compose["secrets"])
    assert used["volumes"] == set(compose["volumes"])


def test_compose_runs_commands_that_exist(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, service in compose["services"].items():
        if "command" in service:
            with monkeypatch.context() as patch:
                for key, value in service["environment"].items():
                    patch.setenv(key, value)
                check_command(service["command"])
                assert service["image"].startswith("cascade-node:"), name


def test_compose_pins_its_images(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert re.fullmatch(r"[a-z-]+:\d[\w.]*", service["image"]), f"{name}: {service['image']}"
        if "build" in service:
            assert (DEPLOY / service["build"]["context"]).resolve() == TOP
            assert (TOP / service["build"]["dockerfile"]).exists()


def test_compose_has_a_daemon_for_every_database_of_its_topology(compose: dict[str, Any]) -> None:
    topology = load(DEPLOY / "compose" / "orders.yaml")
    commands = daemons(compose)
    assert sorted(option(words, "--database") for words in commands.values()) == sorted(topology.databases)
    assert set(topology.databases) < set(compose["services"])
    [made] = [
        service["command"] for service in compose["services"].values() if service.get("command", [])[:1] == ["set"]
    ]
    assert made[:2] == ["set", "create"] and made[2:] == list(topology.sets)


def test_compose_runs_the_picture() -> None:
    nodes = load(DEPLOY / "compose" / "orders.yaml").sets["orders"].nodes
    found = {name: (str(node.role), node.provider) for name, node in nodes.items()}
    assert found == {"s1": ("root", None), "s2": ("branch", "s1"), "s3": ("branch", "s1"), "s4": ("leaf", "s3")}


def test_daemons_of_compose_read_the_mounted_topology_and_answer_the_health_check(
    compose: dict[str, Any], stages: list[list[tuple[str, str]]]
) -> None:
    for name, words in daemons(compose).items():
        service = compose["services"][name]
        assert service["volumes"] == ["./compose:/etc/cascade:ro"]
        assert option(words, "--topology") == service["environment"]["CASCADE_TOPOLOGY"] == "/etc/cascade/orders.yaml"
        assert option(words, "--health").endswith(":" + the(stages[-1], "EXPOSE")), "the image asks another port"
        assert "healthcheck" not in service, "the image has one"


def test_containers_of_compose_are_confined(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged") and service.get("user", "1") not in ("0", "root"), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        if service["image"].startswith("cascade-node"):
            assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name


def test_no_password_stands_in_compose_or_its_topology(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for key in service["environment"]:
            assert "PASSWORD" not in key or key.endswith("_FILE"), f"{name}: {key}"
    text = (DEPLOY / "compose.yaml").read_text() + (DEPLOY / "compose" / "orders.yaml").read_text()
    assert not re.search(r"password=|://[^/\s:]+:[^@\s]+@", text)


def test_the_script_makes_every_secret_that_compose_asks_for(compose: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "compose", tmp_path / "compose")
    script = [str(tmp_path / "compose" / "make-secrets.sh")]
    subprocess.run(script, check=True, capture_output=True)

    wanted = {secret["file"] for secret in compose["secrets"].values()}
    assert {f"./secrets/{path.name}" for path in (tmp_path / "secrets").iterdir()} == wanted
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in (tmp_path / "secrets").iterdir())
    services = read_services((tmp_path / "secrets" / "pg_service.conf").read_text())
    topology = load(DEPLOY / "compose" / "orders.yaml")
    assert {f"service={name}" for name in services} == {database.dsn for database in topology.databases.values()}
    for name, service in services.items():
        assert service["host"] == name and name in compose["services"]
        assert service["dbname"] == compose["services"][name]["environment"]["POSTGRES_DB"]
        assert service["password"] == (tmp_path / "secrets" / f"{name}_password").read_text()
        assert len(service["password"]) >= 32
    assert len({service["password"] for service in services.values()}) == len(services)

    again = subprocess.run(script, check=False, capture_output=True)
    assert again.returncode != 0, "the servers would not know the new passwords"


def read_services(text: str) -> dict[str, dict[str, str]]:
    """Read a service file of libpq."""
    found: dict[str, dict[str, str]] = {}
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            found[line.strip("[]")] = {}
        else:
            key, _, value = line.partition("=")
            found[[*found][-1]][key] = value
    return found


def test_git_does_not_see_the_secrets() -> None:
    assert "secrets/" in (DEPLOY / ".gitignore").read_text().splitlines()


# The guide


def fenced(language: str) -> list[str]:
    """Return the blocks of the guide in one language."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", GUIDE.read_text(), re.M | re.S)


def test_the_guide_shows_commands_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASCADE_TOPOLOGY", "/etc/cascade/topology.yaml")
    lines = "".join(fenced("console")).splitlines()
    commands = [found[1] for line in lines if (found := re.match(r" *\$ (?:PGUSER=\w+ )?cascade (.*)", line))]
    commands += re.findall(r"`cascade ((?:node|set|status|wait|schema|topology) [^`]*)`", GUIDE.read_text())
    commands += [found[1] for line in lines if (found := re.search(r"run --rm cascade(?:-node:0.1)? (.*)", line))]
    assert len(commands) > 20
    for command in commands:
        words = shlex.split(command.replace("/etc/cascade/topology.yaml", str(DEPLOY / "compose" / "orders.yaml")))
        if words != ["set", "create"]:
            check_command(words)


def test_the_guide_shows_a_topology_without_problems(tmp_path: Path) -> None:
    [text] = fenced("yaml")
    (tmp_path / "topology.yaml").write_text(text)
    load(tmp_path / "topology.yaml")


def test_the_guide_tells_the_defaults_of_the_unit(unit: dict[str, dict[str, list[str]]]) -> None:
    environment = unit_environment(unit)
    for name, default in re.findall(r"^\| `(CASCADE_\w+)` \| (?:`(.*?)`)? ?\|", GUIDE.read_text(), re.M):
        assert environment.pop(name) == default
    for name in environment:
        assert f"`{name}`" in GUIDE.read_text(), f"the guide says nothing of {name}"


def test_the_files_of_the_guide_are_those_of_the_unit(unit: dict[str, dict[str, list[str]]]) -> None:
    text = GUIDE.read_text()
    for path in re.findall(r"/(?:etc|opt)/cascade[\w./-]*", UNIT.read_text().replace("%i", "NAME")):
        assert path in text, f"the guide does not say where {path} comes from"


class Place:
    """Two databases set up as the guide says, and commands as the roles that it names."""

    def __init__(self, first: Database, second: Database, folder: Path, stack: ExitStack) -> None:
        self.databases = {"ams1": first, "ams2": second}
        self._folder, self._stack = folder, stack
        self._make_roles()
        self._write_files()

    def _make_roles(self) -> None:
        """Run the guide's SQL in each database; roles belong to the server and are made once."""
        [text] = fenced("sql")
        written = [statement.text for statement in statements(text)]
        for n, db in enumerate(self.databases.values()):
            with db.admin() as admin:
                admin.execute(f"revoke all on database {db.name} from public".encode())
                for statement in written:
                    new = re.match(r"create role (\w+)", statement)
                    if new and (n or admin.execute("select from pg_roles where rolname = %s", (new[1],)).rowcount):
                        continue
                    if new:
                        self._stack.callback(drop_role, db, new[1])
                    admin.execute(statement.replace("database app", f"database {db.name}").encode())
                    if new and "nologin" not in statement:
                        admin.execute(f"alter role {new[1]} password 'test'".encode())
        # What a role owns in the second database would keep it from being dropped.
        for role in ("cascade_owner", "cascade_daemon", "cascade_ops"):
            self._stack.callback(drop_owned, self.databases["ams2"], role)

    def _write_files(self) -> None:
        """Write the topology, the service file without users, and the password file."""
        services = []
        for name, db in self.databases.items():
            found = conninfo_to_dict(db.dsn)
            lines = [f"{key}={found[key]}" for key in ("host", "port", "dbname")]
            services.append("\n".join([f"[{name}]", *lines, ""]))
        (self._folder / "pg_service.conf").write_text("\n".join(services))
        (self._folder / "pgpass").write_text("*:*:*:*:test\n")
        (self._folder / "pgpass").chmod(0o600)
        nodes = {
            "s1": {"database": "ams1", "role": "root"},
            "s2": {"database": "ams2", "role": "branch", "provider": "s1"},
        }
        topology = {
            "version": 1,
            "databases": {name: {"dsn": f"service={name}"} for name in self.databases},
            "sets": {"orders": {"nodes": nodes}},
        }
        (self._folder / "topology.yaml").write_text(yaml.safe_dump(topology))

    def environment(self, role: str) -> dict[str, str]:
        """Return what the unit would give a daemon, or an operator would export."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "CASCADE_DSN"))}
        return kept | {
            "PYTHONPATH": str(TOP),
            "PGUSER": role,
            "PGPASSFILE": str(self._folder / "pgpass"),
            "PGSERVICEFILE": str(self._folder / "pg_service.conf"),
            "CASCADE_TOPOLOGY": str(self._folder / "topology.yaml"),
        }

    def run(self, role: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a role."""
        return subprocess.run(
            [sys.executable, "-m", "cascade.cli.main", *shlex.split(command)],
            env=self.environment(role),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=60,
        )

    def must(self, role: str, command: str) -> str:
        """Run a command that the guide lets this role run."""
        done = self.run(role, command)
        assert done.returncode == 0, f"{role}: cascade {command}: {done.stdout}"
        return done.stdout

    def start(self, role: str, database: str) -> subprocess.Popen[bytes]:
        """Start a daemon that is stopped at the end of the test."""
        log = self._stack.enter_context((self._folder / f"{database}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "cascade.cli.main", "node", "run",
             "--topology", str(self._folder / "topology.yaml"), "--database", database],
            env=self.environment(role), stdout=log, stderr=log,
        )  # fmt: skip
        self._stack.callback(stop, process)
        return process

    def connect(self, role: str, database: str) -> psycopg.Connection[Any]:
        return self.databases[database].connect(role)


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=25)
    finally:
        process.kill()


@pytest.fixture
def place(backend: Backend, tmp_path: Path) -> Iterator[Place]:
    """Databases, roles and files of the guide; everything is gone afterwards."""
    with (
        Database.fresh(backend, with_schema=False) as first,
        Database.fresh(backend, with_schema=False) as second,
        ExitStack() as stack,
    ):
        yield Place(first, second, tmp_path, stack)


def drop_owned(db: Database, role: str) -> None:
    with db.admin() as admin:
        if admin.execute("select from pg_roles where rolname = %s", (role,)).fetchone():
            admin.execute(f"drop owned by {role} cascade".encode())


def test_daemons_need_no_more_than_the_roles_of_the_guide(place: Place) -> None:
    for database in place.databases:
        place.must("cascade_owner", f"schema install --dsn service={database}")
    place.must("cascade_owner", "set create orders")
    running = [place.start("cascade_daemon", database) for database in place.databases]

    with place.connect("cascade_owner", "ams2") as branch, place.connect("cascade_owner", "ams1") as root:
        eventually(lambda: branch.execute("select from cascade.nodes").rowcount == 1)
        root.execute("insert into queue.orders (payload) select to_json(n) from generate_series(1, 100) as n")
        eventually(lambda: branch.execute("select from queue.orders where origin is null").rowcount == 100)
    for role in ("cascade_daemon", "cascade_ops"):
        place.must(role, "wait --set orders --node s2")
        eventually(lambda role=role: place.run(role, "status").returncode == 0, every_s=0.5)
        place.must(role, "node pause orders s2")
        place.must(role, "node resume orders s2")
    assert [process.poll() for process in running] == [None, None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(timeout=25) for process in running] == [0, 0]


def test_a_daemons_role_cannot_do_what_the_guide_denies_it(place: Place) -> None:
    place.must("cascade_owner", "schema install --dsn service=ams1")
    place.must("cascade_owner", "set create orders")

    for command in ("node drop orders s2", "node mark-dead orders s2", "queue create more --dsn service=ams1"):
        done = place.run("cascade_daemon", command)
        assert done.returncode != 0 and "permission denied" in done.stdout, command
    with place.connect("cascade_daemon", "ams1") as conn:
        for statement in (
            "insert into queue.orders (payload) values ('1')",
            "select cascade.post('orders', '1')",
            "insert into cascade_internal.event_1_0 (payload) values ('1')",
            "update cascade_internal.member set state = 'dead'",
            "select cascade.grant_producer('orders', 'cascade_daemon')",
            "create table public.mine ()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement.encode())


def test_a_daemon_without_a_schema_says_what_its_role_lacks(place: Place, tmp_path: Path) -> None:
    process = place.start("cascade_daemon", "ams1")
    assert process.wait(timeout=30) == 1
    assert "this role may not install Cascade" in (tmp_path / "ams1.log").read_text()
    assert "this role may not install Cascade" in GUIDE.read_text()


def test_a_daemon_that_owns_its_database_installs_the_schema(place: Place, tmp_path: Path) -> None:
    services = (tmp_path / "pg_service.conf").read_text()
    (tmp_path / "pg_service.conf").write_text(services.replace("[ams1]\n", "[ams1]\nuser=cascade_owner\n"))
    place.start("cascade_daemon", "ams1")
    eventually(lambda: "current" in place.run("cascade_daemon", "schema status --dsn service=ams1").stdout, every_s=0.3)
