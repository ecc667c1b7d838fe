"""Connection strings as libpq reads them: variables replaced, secrets found and hidden.

A DSN is 'name=value ...' or 'postgresql://...', and may hold ${NAME} and ${NAME:-default}.  It is read
here without libpq, since this package uses no driver.  No message repeats a value, for any may be secret.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from urllib.parse import unquote

from cascade.config import VARIABLE
from cascade.config import expand as expand

SECRETS = frozenset(["password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"])
PARAMETERS = SECRETS | set(
    re.findall(
        r"\w+",
        """
        host hostaddr port dbname user passfile service servicefile require_auth channel_binding connect_timeout
        client_encoding options application_name fallback_application_name keepalives keepalives_idle
        keepalives_interval keepalives_count tcp_user_timeout replication gssencmode sslmode requiressl
        sslnegotiation sslcompression sslcert sslkey sslkeylogfile sslcertmode sslrootcert sslcrl sslcrldir
        sslsni requirepeer ssl_min_protocol_version ssl_max_protocol_version min_protocol_version
        max_protocol_version krbsrvname gsslib gssdelegation target_session_attrs load_balance_hosts
        oauth_issuer oauth_client_id oauth_scope
        """,
    )
)
HIDDEN = "***"

#: What stands for a variable without a default while a DSN is read; no DSN may hold it otherwise.
_UNKNOWN = "\0"
_PAIR = re.compile(r"\s*(?P<name>[^\s=']+)\s*=\s*(?P<value>'(?:[^'\\]|\\.)*'|(?!')(?:[^\s\\]|\\.)*)")
_URI = re.compile(
    r"postgres(?:ql)?://"
    r"(?:(?P<user>[^:@/?]*)(?::(?P<password>[^@/?]*))?@)?"
    r"(?P<hosts>(?:[^\[\]:/@,?\s]*|\[[0-9A-Fa-f:.%\0]+\])(?::[0-9\0]*)?(?:,(?:[^\[\]:/@,?\s]*|\[[0-9A-Fa-f:.%\0]+\])(?::[0-9\0]*)?)*)"
    r"(?:/(?P<dbname>[^?\s]*))?"
    r"(?:\?(?P<query>\S*))?"
)
_QUERY = re.compile(r"(?P<name>[^&=]+)=(?P<value>[^&]*)(?:&|$)")
_LOOKS_SECRET = re.compile(r"(?:pas+w(?:or)?d|pwd|secret)\s*=|://[^/?\s]*:[^?\s]*@", re.I)


class UnreadableError(ValueError):
    """A DSN cannot be read; says why without repeating any of it, and what may help."""

    def __init__(
        self, fact: str, remedy: str = "write 'host=... dbname=...', service=NAME or postgresql://..."
    ) -> None:
        super().__init__(fact)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a DSN, and where its value stands in the text that was read."""

    name: str
    value: str
    start: int
    end: int

    @property
    def is_secret(self) -> bool:
        """Whether nobody may see the value; an empty one is none."""
        return self.name in SECRETS and self.value not in ("", "''")


def redact(dsn: str) -> str:
    """Return a DSN that may be shown: as it is if it holds no secret, else with the secrets hidden.

    What cannot be read is hidden altogether.
    """
    try:
        text = with_defaults(dsn)
        secrets = [parameter for parameter in _parameters(text) if parameter.is_secret]
    except UnreadableError:
        return HIDDEN
    if not secrets:
        return dsn
    for parameter in sorted(secrets, key=lambda found: found.start, reverse=True):
        text = text[: parameter.start] + HIDDEN + text[parameter.end :]
    return text.replace(_UNKNOWN, "${...}")


def holds_secret(dsn: str) -> bool:
    """Whether a DSN holds a password or the like, be it only as a variable; one that cannot be read may."""
    try:
        return any(parameter.is_secret for parameter in _parameters(with_defaults(dsn)))
    except UnreadableError:
        return bool(_LOOKS_SECRET.search(dsn))


def read(dsn: str) -> dict[str, str]:
    """Return the parameters of a DSN by name, or raise UnreadableError."""
    return {parameter.name: parameter.value for parameter in _parameters(with_defaults(dsn))}


def with_defaults(text: str) -> str:
    """Return a text as it is read: a variable's default in its place, a mark where there is none."""
    if not text.isprintable():
        raise UnreadableError("holds control characters", "remove them")
    if "${" in VARIABLE.sub("", text):
        raise UnreadableError("holds '${' that begins no variable", "write ${NAME} or ${NAME:-default}")
    return VARIABLE.sub(lambda match: _UNKNOWN if match["default"] is None else match["default"], text)


def _parameters(text: str) -> list[Parameter]:
    if not text.strip():
        raise UnreadableError("is empty")
    found = _from_uri(text) if re.match(r"postgres(ql)?://", text) else _from_pairs(text)
    for parameter in found:
        _check(parameter)
    return found


def _from_pairs(text: str) -> list[Parameter]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        # A variable may hold whole parameters, or the whole DSN.
        if match := re.compile(r"\s*\0+(?=\s|$)").match(text, at):
            at = match.end()
            continue
        match = _PAIR.match(text, at)
        if match is None:
            raise UnreadableError("holds something that is not name=value")
        found.append(_parameter(match["name"], match, "value"))
        at = match.end()
    return found


def _from_uri(text: str) -> list[Parameter]:
    match = _URI.fullmatch(text)
    if match is None:
        raise UnreadableError(
            "is no URI that libpq reads",
            "write postgresql://user@host:port/dbname?name=value, special characters as %XX",
        )
    names = {"user": "user", "password": "password", "hosts": "host", "dbname": "dbname"}
    found = [_parameter(name, match, group) for group, name in names.items() if match[group] is not None]
    if match["query"]:
        at, start = 0, match.start("query")
        while at < len(match["query"]):
            pair = _QUERY.match(match["query"], at)
            if pair is None:
                raise UnreadableError("holds something after '?' that is not name=value")
            first, last = pair.span("value")
            name = unquote(pair["name"])
            found.append(Parameter(name=name, value=unquote(pair["value"]), start=start + first, end=start + last))
            at = pair.end()
    return found


def _parameter(name: str, match: re.Match[str], group: str) -> Parameter:
    start, end = match.span(group)
    return Parameter(name=name, value=match[group], start=start, end=end)


def _check(parameter: Parameter) -> None:
    if parameter.name not in PARAMETERS and _UNKNOWN not in parameter.name:
        close = difflib.get_close_matches(parameter.name, sorted(PARAMETERS), n=1)
        if not close:  # the name may be a piece of a password, so it is not repeated
            raise UnreadableError("holds a parameter that libpq does not know")
        raise UnreadableError(f"holds the unknown parameter {parameter.name!r}", f"did you mean {close[0]!r}?")
    if parameter.name == "port" and not re.fullmatch(r"[0-9,\0]*", parameter.value.strip("'")):
        raise UnreadableError("names a port that is no number", "write port=5432")
    if "://" in parameter.value and parameter.name != "oauth_issuer":
        raise UnreadableError(f"holds a URI as its {parameter.name}", "write the whole DSN in one form")
