"""Ray clusters of several machines, here processes of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.cluster_utils import Cluster

NOTICED_SOON = {"health_check_period_ms": 500, "health_check_timeout_ms": 3000, "health_check_failure_threshold": 2}
"""A lost machine is noticed within a few seconds, not fifteen."""


@contextmanager
def ray_cluster(head_cpus: int = 0) -> Iterator[Cluster]:
    """A cluster whose head computes nothing, unless it has CPUs; `add_machine` adds to it."""
    head = {"num_cpus": head_cpus, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": NOTICED_SOON})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def add_machine(cluster: Cluster) -> Any:
    """A machine that does one thing at a time."""
    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    cluster.wait_for_nodes()
    return node


def lose(cluster: Cluster, node: Any) -> None:
    """Kills Ray on a machine, with SIGKILL."""
    cluster.remove_node(node, allow_graceful=False)
