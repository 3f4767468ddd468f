"""Devices and the links between them, as their makers state them.

Rates are those of dense matrix products, not of sparse ones, which makers print in larger type. A link's speed is that
of one direction, since each device of a ring sends and receives at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What joins devices.

    Attributes:
        speed: bytes/s in one direction: of one device where it joins the devices of a node; where it joins nodes, of
            all adapters of a node together.
    """

    title: str
    speed: float


NVLINK = "nvlink"

# NVIDIA's data sheets of H100 (900 GB/s, both directions together), A100 (600 GB/s); PCI-SIG: 16 lanes of PCIe 4.
NVLINK_4 = Link("NVLink 4", 450e9)
NVLINK_3 = Link("NVLink 3", 300e9)
PCIE_4 = Link("PCIe 4, 16 lanes", 32e9)
# Gloo over the loopback device: two processes with a thread each on a Xeon of two cores, beside other work, sent .5 to
# .7 GB/s while they added up 18 to 110 MB.
LOOPBACK = Link("gloo on one machine", 0.6e9)

LINKS = {
    # A DGX H100 has eight adapters of 400 Gb/s, one for each GPU (NVIDIA's data sheet of the DGX H100).
    "ib400": Link("InfiniBand, 8 adapters of 400 Gb/s a node", 8 * 50e9),
    "eth100": Link("Ethernet, 1 adapter of 100 Gb/s a node", 12.5e9),
}
"""What joins nodes, by the name that `--link` takes."""

REACHED_OF_LINKS = 0.8
"""Assumed: the share of a link's stated speed that an all-reduce of many megabytes reaches. NVIDIA's `nccl-tests` are
commonly reported with 75 to 100 % of it on NVLink."""

REACHED_OF_PEAK = 0.4
"""Assumed: the share of a GPU's stated rate that a step's necessary operations reach (MFU, Chowdhery et al. 2022,
appendix B), with which the recipes' headers reckon. BERT-Base reached .36 on an H100 (docs/results/gpu.md)."""


@dataclass(frozen=True)
class Device:
    """A device to compute on.

    Attributes:
        rates: FLOP/s of matrix products, by precision.
        memory: bytes.
        bandwidth: of its memory, bytes/s.
        watts: of the board at its limit; None: unknown.
        inside: what joins the devices of a node.
        per_node: how many devices a node has.
    """

    title: str
    rates: dict[str, float]
    memory: float
    bandwidth: float
    watts: float | None
    inside: Link
    per_node: int = 8


CPU = "cpu"
GPUS = {
    # NVIDIA's data sheets of H100 SXM5 and H200 SXM: 1,979 TFLOP/s in bf16 with sparsity, half of it without.
    "h100": Device("H100 SXM, 80 GB", {"bf16": 989.4e12, "fp32": 66.9e12}, 80e9, 3.35e12, 700, NVLINK_4),
    "h200": Device("H200 SXM, 141 GB", {"bf16": 989.4e12, "fp32": 66.9e12}, 141e9, 4.8e12, 700, NVLINK_4),
    # NVIDIA's data sheet of the A100 80 GB SXM.
    "a100": Device("A100 SXM, 80 GB", {"bf16": 312e12, "fp32": 19.5e12}, 80e9, 2.039e12, 400, NVLINK_3),
    # NVIDIA's whitepapers on the architectures GA102 (RTX A6000) and Ada (RTX 4090): products in bf16 added up in fp32.
    "a6000": Device("RTX A6000", {"bf16": 154.8e12, "fp32": 38.7e12}, 48e9, 768e9, 300, PCIE_4),
    "4090": Device("GeForce RTX 4090", {"bf16": 165.2e12, "fp32": 82.6e12}, 24e9, 1008e9, 450, PCIE_4),
}
"""GPUs by the name that `--gpu` takes."""
