"""What only the whole shows to be wrong: one rule, one function; all rules are asked, and all answers told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

from cascade.errors import Problem
from cascade.topology import dsn as dsns
from cascade.topology.combine import Derived, Placed, merge_leaves
from cascade.topology.draft import Draft, NodeDraft, SetDraft, quoted
from cascade.topology.model import Role, Topology, did_you_mean
from cascade.topology.write import as_document

NO_PASSWORD = "leave it out: libpq finds it in pgpass, in the service file or in PGPASSWORD"


def check(topology: Topology) -> list[Problem]:
    """Return what is wrong with a topology, however it was made; nothing, if it came from a file."""
    return find_problems(Draft(source=topology.source, values=as_document(topology)))


def find_problems(draft: Draft) -> list[Problem]:
    """Ask every rule about a draft."""
    return [problem for rule in RULES for problem in rule(draft)]


def dsns_hold_no_secret(draft: Draft) -> Iterator[Problem]:
    """A file is shared and its DSNs are stored, so a secret has no place in them, nor has its variable."""
    for name, dsn in draft.databases.items():
        if dsn is not None and dsns.holds_secret(dsn):
            how = ", if only as a variable" if re.search(r"passw(or)?d\s*=\s*'?\$\{|:\$\{[^/]*@", dsn) else ""
            yield draft.problem(("databases", name, "dsn"), f"the DSN holds a password{how}", NO_PASSWORD)


def dsns_can_be_read(draft: Draft) -> Iterator[Problem]:
    """libpq must be able to read a DSN."""
    for name, dsn in draft.databases.items():
        if dsn is None or dsns.holds_secret(dsn):
            continue
        try:
            dsns.read(dsn)
        except dsns.UnreadableError as error:
            yield draft.problem(("databases", name, "dsn"), f"the DSN {error}", error.remedy)


def options_hold_no_secret(draft: Draft) -> Iterator[Problem]:
    """Options are shown like everything else in a file."""
    for node in draft.nodes:
        for option in node.values.get("options") or {}:
            if re.search("passw|secret|token|api_?key|credential", option, re.I):
                fact = f"option {quoted(option)} looks like a secret"
                yield draft.problem(
                    (*node.path, "options", option), fact, "let the handler read it from its environment"
                )


def databases_are_defined(draft: Draft) -> Iterator[Problem]:
    """The database of a node is one of `databases`."""
    if draft.values.get("databases") is None:
        return
    for node in draft.nodes:
        if node.database is not None and node.database not in draft.databases:
            remedy = did_you_mean(node.database, draft.databases, f"add {node.database} to databases")
            yield draft.problem((*node.path, "database"), f"no database {quoted(node.database)}", remedy)


def a_database_has_one_node_of_a_set(draft: Draft) -> Iterator[Problem]:
    """A queue is one table in a database, so it cannot be there twice."""
    for found in draft.sets.values():
        first: dict[str, str] = {}
        for node in found.nodes.values():
            if node.database is None:
                continue
            if node.database in first:
                fact = f"database {node.database} has node {first[node.database]} of this set already"
                yield draft.problem((*node.path, "database"), fact, "give each node of a set a database of its own")
            first.setdefault(node.database, node.name)


def databases_of_a_set_differ(draft: Draft) -> Iterator[Problem]:
    """Two names for one database are one database."""
    for found in draft.sets.values():
        first: dict[str, str] = {}
        for node in found.nodes.values():
            dsn = draft.databases.get(node.database or "")
            if dsn is None or first.get(dsn) == node.database:
                continue
            if dsn in first:
                fact = f"databases {first[dsn]} and {node.database} have the same DSN"
                yield draft.problem((*node.path, "database"), fact, "give each node of a set a database of its own")
            first.setdefault(dsn, node.database or "")


def a_set_has_one_root(draft: Draft) -> Iterator[Problem]:
    """A plain set has one root, a combined set one combined-root."""
    for found in draft.sets.values():
        wanted = Role.COMBINED_ROOT if found.is_combined else Role.ROOT
        roots = [node for node in found.nodes.values() if node.role and node.role.is_root]
        if not roots and found.is_whole:
            yield draft.problem(found.path, "no root", f"give one node the role {wanted}")
        for node in roots[1:]:
            fact = f"a second root; {roots[0].name} is one"
            yield draft.problem(
                (*node.path, "role"), fact, f"make one of them a branch of the other: provider: {roots[0].name}"
            )


def a_root_fits_its_set(draft: Draft) -> Iterator[Problem]:
    """The events of a combined set come from its parts, those of a plain one from producers."""
    for found in draft.sets.values():
        for node in found.nodes.values():
            if node.role is Role.ROOT and found.is_combined:
                fact, remedy = "a root in a combined set", "write role: combined-root"
            elif node.role is Role.COMBINED_ROOT and not found.is_combined:
                fact, remedy = "a combined-root in a set that combines none", "write role: root, or add combines: [...]"
            else:
                continue
            yield draft.problem((*node.path, "role"), fact, remedy)


def only_a_root_has_no_provider(draft: Draft) -> Iterator[Problem]:
    """Every other node copies from one."""
    for node in draft.nodes:
        if node.role is None:
            continue
        if node.role.is_root and "provider" in node.values:
            fact = f"a {node.role} with a provider"
            yield draft.problem((*node.path, "provider"), fact, "remove it, or write role: branch")
        elif not node.role.is_root and "provider" not in node.values:
            others = [name for name in carriers(draft.sets[node.set]) if name != node.name]
            remedy = f"add provider: {others[0] if others else '...'}"
            yield draft.problem(node.path, f"a {node.role} needs a provider", remedy)


def providers_can_provide(draft: Draft) -> Iterator[Problem]:
    """A provider is another node of the set that keeps the queue."""
    for node in draft.nodes:
        if node.provider is None or (node.role and node.role.is_root):
            continue
        found, path = draft.sets[node.set], (*node.path, "provider")
        provider = found.nodes.get(node.provider)
        others = [name for name in carriers(found) if name != node.name]
        if provider is None:
            known = [name for name in found.nodes if name != node.name]
            remedy = did_you_mean(node.provider, known, one_of(others))
            yield draft.problem(path, f"no provider {quoted(node.provider)}", remedy)
        elif provider is node:
            yield draft.problem(path, "it is its own provider", one_of(others))
        elif provider.role and not provider.role.is_carrier:
            fact = f"its provider {provider.name} is a {provider.role}, which keeps no queue"
            yield draft.problem(path, fact, f"make {provider.name} a branch, or {one_of(others)}")


def providers_lead_to_the_root(draft: Draft) -> Iterator[Problem]:
    """Whoever follows the providers must not come back to where it began."""
    for found in draft.sets.values():
        below = [node for node in found.nodes.values() if not (node.role and node.role.is_root)]
        providers = {node.name: node.provider for node in below}
        for cycle in cycles(providers):
            if len(cycle) > 1:  # a node that is its own provider has been told
                way = " -> ".join([*cycle, cycle[0]])
                roots = [node.name for node in found.nodes.values() if node.role and node.role.is_root]
                remedy = f"let one of them copy from {roots[0] if roots else 'a root'}, or from a node below it"
                yield draft.problem(
                    (*found.nodes[cycle[0]].path, "provider"), f"providers form a circle: {way}", remedy
                )


def handlers_run_where_events_are_processed(draft: Draft) -> Iterator[Problem]:
    """Only branches and leaves process events."""
    for node in draft.nodes:
        if node.role and not node.role.is_processor and "handler" in node.values:
            remedy = "remove it, or move it to a branch or leaf"
            yield draft.problem((*node.path, "handler"), f"a {node.role} runs no handler", remedy)


def only_a_leaf_chooses_its_start(draft: Draft) -> Iterator[Problem]:
    """A branch has to carry all that its provider does."""
    for node in draft.nodes:
        if node.role and node.role is not Role.LEAF and "start" in node.values:
            yield draft.problem(
                (*node.path, "start"), f"a {node.role} cannot choose its start", "remove it; a leaf can"
            )


def merge_leaves_feed_a_combined_set(draft: Draft) -> Iterator[Problem]:
    """A merge-leaf names the combined set; its database carries that set, which combines this one."""
    for node in draft.nodes:
        if node.role is not None:
            yield from _merge_problems(draft, node)


def _merge_problems(draft: Draft, node: NodeDraft) -> Iterator[Problem]:
    path, into = (*node.path, "into"), node.values.get("into")
    if node.role is not Role.MERGE_LEAF:
        if "into" in node.values:
            yield draft.problem(path, f"a {node.role} feeds no combined set", "remove it, or write role: merge-leaf")
        return
    if "into" not in node.values:
        wanted = next((found.name for found in draft.sets.values() if node.set in found.combines), "...")
        yield draft.problem(node.path, "a merge-leaf needs the combined set that it feeds", f"add into: {wanted}")
    elif into is not None:
        found = draft.sets.get(into)
        if found is None:
            remedy = did_you_mean(into, [name for name in draft.sets if name != node.set], "name a combined set")
            yield draft.problem(path, f"no set {quoted(into)}", remedy)
        elif node.set not in found.combines and (found.values.get("combines") is not None or not found.is_combined):
            yield draft.problem(path, f"set {into} does not combine {node.set}", f"add {node.set} to its combines")
        elif node.database is not None and found.is_whole and node.database not in databases_of_carriers(found):
            fact = f"database {node.database} does not carry set {into}"
            remedy = "put the merge-leaf where the combined-root or a branch of that set is"
            yield draft.problem((*node.path, "database"), fact, remedy)


def parts_are_known(draft: Draft) -> Iterator[Problem]:
    """What is combined are other sets of the file."""
    for found in draft.sets.values():
        for index, part in enumerate(found.values.get("combines") or []):
            if part is None or (part in draft.sets and part != found.name):
                continue
            others = [name for name in draft.sets if name != found.name]
            fact = "it combines itself" if part == found.name else f"no set {quoted(part)} to combine"
            remedy = did_you_mean(part, others, f"known are {', '.join(others)}" if others else "add that set")
            yield draft.problem((*found.path, "combines", index), fact, remedy)


def parts_can_be_merged(draft: Draft) -> Iterator[Problem]:
    """Where a combined set is merged, and where it may go on, there is room for a merge-leaf of every part."""
    for leaf in merge_leaves({name: found for name, found in draft.sets.items() if found.is_whole}):
        part, combined = draft.sets[leaf.part], draft.sets[leaf.into]
        dsn = draft.databases.get(leaf.database)
        twins = [n for n in part.nodes.values() if dsn and n.database and draft.databases.get(n.database) == dsn]
        if leaf.obstacle is not None or twins:
            path = (*combined.path, "combines", combined.values["combines"].index(leaf.part))
            yield draft.problem(path, *_no_room(leaf, leaf.obstacle or twins[0]))


def _no_room(leaf: Derived, other: Placed) -> tuple[str, str]:
    """Return what keeps a merge-leaf from its place, and what would help."""
    kind = "combined-root" if leaf.is_at_root else "combined-failover"
    lacks = f"{kind} {leaf.name} has no merge-leaf of part {leaf.part}"
    if other.database != leaf.database and other.name == leaf.name:
        values = f"{{database: {leaf.database}, role: merge-leaf, provider: {leaf.provider}, into: {leaf.into}}}"
        return f"{lacks}: {other.name} is another node of that set", f"write it out under a name of its own: {values}"
    what = f"feeds set {other.into} from it" if other.into else f"has node {other.name} of it"
    elsewhere = f"give {leaf.name} or {other.name} a database of its own"
    another = f"; or write merge-leaves out where another branch is: it is the {kind} then"
    return f"{lacks}: database {leaf.database} {what} already", elsewhere + ("" if leaf.is_at_root else another)


def parts_come_once(draft: Draft) -> Iterator[Problem]:
    """A part that is reached twice, directly or through another combined set, would bring its events twice."""
    for found in draft.sets.values():
        reached = Counter(parts_below(found.name, draft.sets))
        for part, times in reached.items():
            if times > 1:
                fact = f"part {part} is combined twice"
                remedy = (
                    "remove one" if found.combines.count(part) > 1 else "remove it here or in a set that is combined"
                )
                yield draft.problem((*found.path, "combines"), fact, remedy)


def sets_do_not_combine_in_circles(draft: Draft) -> Iterator[Problem]:
    """An event must come to rest somewhere."""
    told: set[frozenset[str]] = set()
    for name, found in draft.sets.items():
        cycle = combination_cycle(name, draft.sets)
        if cycle and len(cycle) > 1 and frozenset(cycle) not in told:
            told.add(frozenset(cycle))
            way = " -> ".join([*cycle, cycle[0]])
            yield draft.problem((*found.path, "combines"), f"sets combine one another: {way}", "remove one of them")


def signals_can_be_reached(draft: Draft) -> Iterator[Problem]:
    """A broker is named by a URL without a password."""
    url = (draft.values.get("signals") or {}).get("mqtt")
    if url is None:
        return
    path, remedy = ("signals", "mqtt"), "write mqtt://host:port or mqtts://host:port"
    try:
        text = dsns.with_defaults(url)
        parts = urlsplit(text.replace("\0", "1"))
        is_good = parts.scheme in ("mqtt", "mqtts") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        yield draft.problem(path, "the URL of mqtt cannot be read", remedy)
        return
    rest = (parts.path.strip("/"), parts.query, parts.fragment)
    if parts.password is not None:
        yield draft.problem(path, "the URL of mqtt holds a password", "name the user only")
    elif text != "\0" and (not is_good or any(rest) or re.search(r"\s", text)):
        yield draft.problem(path, "the URL of mqtt cannot be used", remedy)


def carriers(found: SetDraft) -> list[str]:
    """Return the nodes of a set that keep its queue."""
    return [node.name for node in found.nodes.values() if node.role and node.role.is_carrier]


def databases_of_carriers(found: SetDraft) -> set[str | None]:
    """Return the databases that keep the queue of a set."""
    return {found.nodes[name].database for name in carriers(found)}


def one_of(names: list[str]) -> str:
    """Return the advice to take one of these nodes."""
    return f"copy from {' or '.join(names[:3])}" if names else "add a branch to copy from"


def cycles(next_of: Mapping[str, str | None]) -> list[list[str]]:
    """Return the cycles of a graph in which every node has at most one successor, each once."""
    found, seen = [], set[str]()
    for start in next_of:
        way: dict[str, None] = {}
        at: str | None = start
        while at is not None and at not in seen and at not in way:
            way[at] = None
            at = next_of.get(at)
        if at in way:
            names = list(way)
            found.append(names[names.index(at) :])
        seen |= set(way)
    return found


def parts_below(name: str, sets: Mapping[str, SetDraft]) -> list[str]:
    """Return all that a set combines, directly or not, as often as it is reached; a set is opened once."""
    found, opened, waiting = [], set[str](), [name]
    while waiting:
        at = waiting.pop()
        if at in opened or at not in sets:
            continue
        opened.add(at)
        found += sets[at].combines
        waiting += sets[at].combines
    return found


def combination_cycle(start: str, sets: Mapping[str, SetDraft]) -> list[str] | None:
    """Return a shortest way from a set through its parts back to itself."""
    ways, seen = [[start]], set[str]()
    for way in ways:
        for part in sets[way[-1]].combines:
            if part == start:
                return way
            if part in sets and part not in seen:
                seen.add(part)
                ways.append([*way, part])
    return None


RULES: tuple[Callable[[Draft], Iterator[Problem]], ...] = (
    dsns_hold_no_secret,
    dsns_can_be_read,
    options_hold_no_secret,
    databases_are_defined,
    a_database_has_one_node_of_a_set,
    databases_of_a_set_differ,
    a_set_has_one_root,
    a_root_fits_its_set,
    only_a_root_has_no_provider,
    providers_can_provide,
    providers_lead_to_the_root,
    handlers_run_where_events_are_processed,
    only_a_leaf_chooses_its_start,
    merge_leaves_feed_a_combined_set,
    parts_are_known,
    parts_can_be_merged,
    parts_come_once,
    sets_do_not_combine_in_circles,
    signals_can_be_reached,
)
