"""Clusters for the tests of cascade.dev: real servers, whose templates the tests of one worker share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cascade.dev import Cluster


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of templates, so that initdb runs once for each version of PostgreSQL."""
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def cluster_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory for a cluster; whatever still runs in it afterwards is stopped."""
    directory = tmp_path / "c"
    yield directory
    if (directory / "cluster.json").exists():
        Cluster.open(directory).remove()


@pytest.fixture
def make_cluster(cluster_dir: Path, templates: Path) -> Callable[..., Cluster]:
    """Makes the object for the cluster in `cluster_dir`; it is not up."""

    def make(nodes: int = 1, **options: object) -> Cluster:
        settings = {"fsync": "off", **options.pop("settings", {})}  # type: ignore[dict-item]
        return Cluster(cluster_dir, nodes=nodes, templates=templates, settings=settings, **options)  # type: ignore[arg-type]

    return make
