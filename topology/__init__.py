"""cascade.topology: what a cascade should look like, as values; no database, no clock, no sockets.

topology = load("orders.yaml")
for node in topology.nodes_at("ams2"):
    print(node.set, node.name, node.role, [above.name for above in topology.sets[node.set].path(node.name)])
"""

from cascade.errors import Problem, TopologyError
from cascade.topology.dsn import expand, redact
from cascade.topology.model import Database, Node, Role, Set, Topology
from cascade.topology.parse import load, parse
from cascade.topology.schema import json_schema
from cascade.topology.validate import check
from cascade.topology.write import as_document, dump

__all__ = [
    "Database",
    "Node",
    "Problem",
    "Role",
    "Set",
    "Topology",
    "TopologyError",
    "as_document",
    "check",
    "dump",
    "expand",
    "json_schema",
    "load",
    "parse",
    "redact",
]
