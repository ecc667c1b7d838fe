"""Following the root: when a call goes on, and what a location of somebody else's may decide."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from cascade.errors import FencedError, TransientError
from cascade.follow import Chase, Trail, root_dsn
from cascade.names import QueueName

Q = QueueName("q")


def refused(
    node: str, root: str | None, dsn: str | None = "host=b dbname=app", database: str | None = None
) -> FencedError:
    return FencedError("refused", node=node, root=root, dsn=dsn, database=database)


class Clock:
    """A clock that waits are added to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_root_that_is_named_for_the_first_time_is_asked_at_once() -> None:
    chase = Chase(10, Clock())
    assert not chase.is_on
    assert chase.wait_s(refused("s1", "s2")) == 0
    assert chase.wait_s(refused("s2", "s3")) == 0
    assert chase.is_on


def test_going_in_circles_grows_slower_and_ends() -> None:
    clock = Clock()
    chase = Chase(10, clock)
    assert chase.wait_s(refused("s1", "s2")) == 0
    waits = []
    with pytest.raises(FencedError, match=r"looked for the root for 10 s"):
        for _ in range(1000):
            for pair in (("s2", "s1"), ("s1", "s2")):
                waits.append(chase.wait_s(refused(*pair)))
                clock.now += waits[-1]
    assert all(0 < wait <= 0.5 for wait in waits)
    assert sum(waits) == pytest.approx(10)
    assert len(waits) < 200


def test_a_root_that_is_being_moved_is_waited_for() -> None:
    clock = Clock()
    chase = Chase(2, clock)
    assert 0 < chase.wait_s(refused("s1", "s1")) <= 0.04
    clock.now += 2
    with pytest.raises(FencedError):
        chase.wait_s(refused("s1", "s1"))


def test_a_root_that_cannot_be_reached_is_waited_for_just_as_long() -> None:
    clock = Clock()
    chase = Chase(2, clock)
    chase.wait_s(refused("s1", "s2"))
    assert chase.wait_after_loss_s(TransientError("no answer")) > 0
    clock.now += 2
    with pytest.raises(TransientError, match="no answer"):
        chase.wait_after_loss_s(TransientError("no answer"))


@pytest.mark.parametrize(("follow_s", "root"), [(0, "s2"), (10, None)])
def test_a_refusal_stands_when_following_is_off_or_nobody_is_named(follow_s: float, root: str | None) -> None:
    error = refused("s1", root)
    assert error.is_retryable is (root is not None)
    with pytest.raises(FencedError) as caught:
        Chase(follow_s).wait_s(error)
    assert caught.value is error


def test_a_trail_leads_there_and_back() -> None:
    trail = Trail("host=a", follow_s=10, databases={"bb": "service=mine"})
    assert trail.route(Q) is None
    trail.learn(Q, refused("s1", "s1"))
    assert trail.route(Q) is None, "it is being moved: wait where we are"
    trail.learn(Q, refused("s1", "s2", database="bb"))
    route = trail.route(Q)
    assert route is not None and (route.root, route.dsn) == ("s2", "service=mine")
    trail.learn(Q, refused("s2", "s2"))
    assert trail.route(Q) == route
    assert trail.route(QueueName("other")) is None, "each set has a root of its own"
    trail.learn(Q, refused("s2", "s1"))
    assert trail.route(Q) is None, "home, on the connection that is there already"


def test_a_location_that_is_not_known_or_not_readable_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    trail = Trail("host=a", follow_s=10, databases=None)
    for dsn in (None, "nonsense", "host=${NOT_SET_ANYWHERE}"):
        with pytest.raises(FencedError, match=r"databases=\{name: DSN\}") as caught:
            trail.learn(Q, refused("s1", "s2", dsn=dsn))
        assert caught.value.root == "s2"
    assert trail.route(Q) is None
    monkeypatch.setenv("ROOT_HOST", "c")
    trail.learn(Q, refused("s1", "s2", dsn="host=${ROOT_HOST} port=${ROOT_PORT:-6000}"))
    route = trail.route(Q)
    assert route is not None and conninfo_to_dict(route.dsn) == {"host": "c", "port": "6000"}


OWN = {"user": "shop", "sslmode": "verify-full", "sslrootcert": "mine.crt", "host": "a", "port": "1", "dbname": "home",
       "service": "home"}  # fmt: skip


def test_the_place_is_the_locations_and_everything_else_the_callers() -> None:
    location = (
        "host=b port=2 dbname=app user=cascade passfile=/node/pgpass sslcert=/node.crt options=-crole=x sslmode=disable"
        " require_auth=scram-sha-256"
    )
    assert conninfo_to_dict(root_dsn(location, home="service=home", own=OWN)) == {
        "host": "b", "port": "2", "dbname": "app", "user": "shop", "sslmode": "verify-full", "sslrootcert": "mine.crt",
        "require_auth": "scram-sha-256",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("home", "location", "is_sent"),
    [
        ("host=a dbname=x", "host=a dbname=y", True),
        ("host=a port=5432", "host=a", True),
        ("host=a,b port=1,2", "host=b port=2", True),
        ("host=a,b port=5", "host=b,a port=5", True),
        ("host=a", "host=b", False),
        ("host=a", "host=a port=6000", False),
        ("host=a,b port=1,2", "host=b port=1", False),
        ("host=a", "host=a,b", False),
        ("host=a", "host=a hostaddr=10.0.0.1", False),
        ("host=a hostaddr=10.0.0.1", "host=evil hostaddr=10.0.0.1", True),
        ("host=a", "service=b", False),
        ("service=a", "host=a", False),
        ("service=a", "dbname=y", False),
        ("postgresql://shop@a:1/x", "postgresql://cascade@a:1/y", True),
    ],
)
def test_a_password_goes_only_to_hosts_that_the_caller_named(
    home: str, location: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGPORT", raising=False)
    given = psycopg.conninfo.make_conninfo(home, password="geheim")
    assert ("geheim" in root_dsn(location, home=given, own={"password": "geheim"})) is is_sent
