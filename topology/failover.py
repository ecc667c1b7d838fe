"""What switchover, failover and resurrect want, as an edited topology; planning takes it from there.

Editing `role:` and `provider:` in the file by hand and applying it is the same.
"""

from __future__ import annotations

from dataclasses import replace

from cascade.errors import TopologyError
from cascade.topology.model import Node, Role, Set, Topology
from cascade.topology.observe import Observed


def switchover(topology: Topology, set_name: str, to: str) -> Topology:
    """Return the topology with another root; the old one, and those that copied from it, copy from the new one."""
    chosen = topology.find(set_name, to)
    found = topology.sets[set_name]
    if chosen.role.is_root:
        return topology
    if chosen.role is not Role.BRANCH:
        raise TopologyError(f"set {set_name}, node {to}: a {chosen.role} cannot become the root", hint="Name a branch.")
    if chosen.handler is not None:
        raise TopologyError(
            f"set {set_name}, node {to}: it runs the handler {chosen.handler}, and a root runs none",
            hint="Choose another node, or move the handler first.",
        )
    old = found.root
    nodes = _moved(found, old.name, to)
    nodes[to] = replace(chosen, role=old.role, provider=None)
    nodes[old.name] = replace(old, role=Role.BRANCH, provider=to)
    return with_nodes(topology, set_name, nodes)


def failover(topology: Topology, set_name: str, dead: str, to: str | None = None) -> Topology:
    """Return the topology without a node's services: a root is followed by `to`, a branch's subscribers move.

    They move to `to`, else to the lost branch's provider.  The lost node stays in the file, so that it can
    come back as a branch.  Only a root whose database lost its tail can follow itself, in a new term.
    """
    lost = topology.find(set_name, dead)
    found = topology.sets[set_name]
    if to == dead and not lost.role.is_root:
        raise TopologyError(f"set {set_name}: {dead} cannot follow itself", hint="Name another carrier.")
    if lost.role.is_root:
        if to is None:
            raise TopologyError(f"set {set_name}: nobody is named to follow the root {dead}", hint="Pass --to NODE.")
        return switchover(topology, set_name, to)
    if not lost.role.is_carrier:
        raise TopologyError(
            f"set {set_name}: nobody copies from {dead}, which is a {lost.role}",
            hint=f"cascade node mark-dead {set_name} {dead} frees what is kept for it.",
        )
    target = to or str(lost.provider)
    chosen = found.node(target)
    if not chosen.role.is_carrier:
        raise TopologyError(f"set {set_name}: {target} is a {chosen.role}, which keeps no queue", hint="Name a branch.")
    nodes = _moved(found, dead, target)
    if dead in {above.name for above in found.path(target)} - {target}:
        # The one that takes over copied from the lost node itself: it takes over its provider, too.
        nodes[target] = replace(nodes[target], provider=lost.provider)
    return with_nodes(topology, set_name, nodes)


def resurrect(topology: Topology, set_name: str, node: str, root: str | None = None) -> Topology:
    """Return the topology with a node as a branch; `root` is who reigns, where the file still has the node as root."""
    chosen = topology.find(set_name, node)
    if not chosen.role.is_carrier:
        raise TopologyError(f"set {set_name}: {node} is a {chosen.role}, which keeps no queue and has no tail")
    if not chosen.role.is_root:
        return topology
    if root is None or root == node:
        raise TopologyError(
            f"set {set_name}: {node} is the root in the file",
            hint=f"cascade topology export {set_name} shows who is root; cascade switchover makes another one root.",
        )
    return switchover(topology, set_name, root)


def as_observed(topology: Topology, observed: Observed) -> Topology:
    """Return the topology as the databases of a set have it: roles, providers and the revision."""
    found = topology.sets[observed.set]
    root = observed.tip.node if len(observed.tips) == 1 else found.root.name
    nodes = {}
    for name, node in found.nodes.items():
        role = observed.role_of(name)
        if name == root:
            nodes[name] = replace(node, role=found.root.role, provider=None)
        elif role is None and not node.role.is_root:
            nodes[name] = node
        else:
            kind = Role.BRANCH if node.role.is_carrier else node.role
            known = observed.provider_of(name) or (None if name in observed.views else node.provider)
            nodes[name] = replace(node, role=kind, provider=known if known in found.nodes else root)
    made = with_nodes(topology, observed.set, nodes)
    return with_revision(made, observed.set, observed.revision) if observed.revision else made


def with_nodes(topology: Topology, set_name: str, nodes: dict[str, Node]) -> Topology:
    """Return a topology with other nodes in a set."""
    return replace(topology, sets={**topology.sets, set_name: replace(topology.sets[set_name], nodes=nodes)})


def with_revision(topology: Topology, set_name: str, revision: int) -> Topology:
    """Return a topology that is based on a revision of a set."""
    return replace(topology, sets={**topology.sets, set_name: replace(topology.sets[set_name], revision=revision)})


def _moved(found: Set, old: str, new: str) -> dict[str, Node]:
    """Return the nodes of a set, those that copied from one node now copying from another."""
    return {
        name: replace(node, provider=new) if node.provider == old and name != new else node
        for name, node in found.nodes.items()
    }
