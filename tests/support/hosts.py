"""Two hosts on one machine: network namespaces, and ranks that run in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.ranks import environment


@contextmanager
def linked_hosts() -> Iterator[list[str]]:
    """Two network namespaces with a link between them; their names, which are also those of the link's ends.

    The test is skipped where they may not be made.
    """
    names = [f"um{os.getpid() % 10_000}{end}" for end in "ab"]

    def ip(*arguments: str) -> bool:
        return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0

    if shutil.which("ip") is None or not ip("netns", "add", names[0]):
        pytest.skip("needs the right to make network namespaces")
    try:
        ip("netns", "add", names[1])
        assert ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", names[1], "netns", names[1])
        for number, name in enumerate(names, start=1):
            assert ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", name)
            assert ip("-n", name, "link", "set", name, "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name)


def on_hosts(hosts: list[str], words: list[str]) -> list[subprocess.Popen[str]]:
    """Starts `unmask` once on each of two hosts, as the ranks of one run."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29512"}
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, "-m", "unmask", *words],
            env=environment(RANK=str(rank), GLOO_SOCKET_IFNAME=host, **place),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
