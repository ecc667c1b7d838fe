"""Imports point one way, as STYLE draws it; these tests read them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]

#: What each part may import, besides itself and the leaves below.
ALLOWED = {
    "cli": {"node", "spark", "client", "topology", "sql", "db", "dev"},
    "node": {"client", "topology", "sql", "db"},
    "spark": {"client", "db", "topology"},
    "client": {"db"},
    "dev": set(),
    "topology": set(),
    "sql": set(),
    "db": set(),
}
LEAVES = {"errors", "names", "config", "retry", "__version__"}
CLIENT = {"client", "producer", "consumer", "batch", "worker", "sync", "codec", "event", "follow"}
CLIENT |= {"work", "calling", "hand", "handlers", "testing"}


def part(module: str) -> str:
    """Return the part that a module of the package belongs to."""
    name = module.split(".")[1] if "." in module else ""
    return "client" if name in CLIENT else name


def imports(path: Path) -> set[str]:
    found = set()
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            found |= {statement.module} | {f"{statement.module}.{alias.name}" for alias in statement.names}
    return {name for name in found if name.startswith("cascade.")}


MODULES = [
    path.relative_to(TOP)
    for folder in ("cascade", "node", "topology", "sql")
    for path in sorted((TOP / folder).rglob("*.py"))
]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_downward(path: Path) -> None:
    module = ".".join(path.with_suffix("").parts)
    own = part(module if module.startswith("cascade.") else f"cascade.{module}")
    if own in ("", "__init__") or own in LEAVES:
        return
    reached = {part(name) for name in imports(TOP / path)} - LEAVES - {own, ""}
    assert reached <= ALLOWED[own], f"{path} imports {sorted(reached - ALLOWED[own])}"


def test_the_topology_pulls_in_no_driver() -> None:
    code = "import cascade.topology, sys; assert 'psycopg' not in sys.modules, 'psycopg was imported'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=TOP)


def test_every_public_name_can_be_imported() -> None:
    import cascade

    assert [name for name in cascade.__all__ if getattr(cascade, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        cascade.nonsense  # noqa: B018


@pytest.mark.parametrize("name", ["node", "topology", "sql"])
def test_bare_imports_of_the_folders_are_refused_by_the_linter(name: str, tmp_path: Path) -> None:
    """From the repository root `import node` would load a second copy of every module."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(f"import {name}\n\nprint({name})\n")
    ruff = Path(sys.executable).with_name("ruff")
    result = subprocess.run(
        [ruff, "check", "--config", TOP / "pyproject.toml", "--select", "TID251", wrong], capture_output=True, text=True
    )
    assert "TID251" in result.stdout


@pytest.mark.parametrize("name", ["node", "topology", "sql"])
def test_the_folders_at_the_top_are_the_package(name: str) -> None:
    link = TOP / "cascade" / name
    assert link.is_symlink()
    assert link.resolve() == TOP / name
