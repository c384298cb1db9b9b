"""What is installed here, and which kernels can run: told from distribution metadata, without importing the kernels."""

from __future__ import annotations

import importlib.util
import platform
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Final

import neatpack
from neatpack.kernels_bridge.terminal import Line, Span, line

PACKAGES: Final = (
    "typing-extensions",
    "numpy",
    "pydantic",
    "torch",
    "transformers",
    "safetensors",
    "hypothesis",
    "rich",
    "kernels",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "causal-conv1d",
    "mamba-ssm",
    "flash-linear-attention",
    "transformer-engine",
    "megatron-core",
)
"""Distributions whose versions are shown."""


@dataclass(frozen=True)
class Kernel:
    """A way to run attention or a recurrence over packed rows.

    Attributes:
        name: what models call it.
        consumer: the consumer of neatpack that binds it.
        needs: distributions that have to be installed.
        capability: the least CUDA compute capability; None where no GPU is needed.
    """

    name: str
    consumer: str
    needs: tuple[str, ...]
    capability: tuple[int, int] | None = None


KERNELS: Final = (
    Kernel("reference", "reference", ("torch",)),
    Kernel("eager, sdpa", "block_causal", ("torch", "transformers")),
    Kernel("flex_attention", "flex", ("torch", "transformers")),
    Kernel("flash_attention_2", "hf_flash", ("torch", "transformers", "flash-attn"), (8, 0)),
    Kernel("flash_attention_3", "hf_flash", ("torch", "transformers", "flash-attn-3"), (9, 0)),
    Kernel("flash_attention_4", "hf_flash", ("torch", "transformers", "flash-attn-4"), (9, 0)),
    Kernel("kernels-community/...", "hf_flash", ("torch", "transformers", "kernels"), (8, 0)),
    Kernel("fa4", "native_fa4", ("torch", "flash-attn-4"), (8, 0)),
    Kernel("torch's varlen_attn", "torch_varlen", ("torch",), (8, 0)),
    Kernel("te", "thd", ("torch", "transformer-engine"), (8, 0)),
    Kernel("megatron", "thd", ("torch", "megatron-core"), (7, 0)),
    Kernel("a model's own", "declared", ("torch",)),
    Kernel("a model's own, by rows", "per_document", ("torch",)),
    Kernel("causal-conv1d", "recurrent", ("torch", "causal-conv1d"), (7, 0)),
    Kernel("mamba-ssm", "recurrent", ("torch", "mamba-ssm"), (7, 0)),
    Kernel("flash-linear-attention", "recurrent", ("torch", "flash-linear-attention"), (7, 0)),
)


@dataclass(frozen=True)
class Device:
    """The GPU that torch would use.

    Attributes:
        name: its name, or why there is none.
        capability: its CUDA compute capability; None where there is none.
    """

    name: str
    capability: tuple[int, int] | None


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution; None where it is not installed.

    Example:
        >>> installed_version("no-such-distribution") is None
        True
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def find_device() -> Device:
    """Ask torch for a GPU. This is the one question that metadata cannot answer."""
    if importlib.util.find_spec("torch") is None:
        return Device("torch is not installed", None)
    import torch

    if not torch.cuda.is_available():
        return Device("torch sees no CUDA device", None)
    return Device(torch.cuda.get_device_name(), torch.cuda.get_device_capability())


def reason_against(kernel: Kernel, device: Device) -> str | None:
    """Say why a kernel cannot run here; None where it can.

    Example:
        >>> reason_against(Kernel("k", "none", ("no-such-distribution",)), Device("none", None))
        'no-such-distribution is not installed'
    """
    missing = [name for name in kernel.needs if installed_version(name) is None]
    if missing:
        return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    if kernel.capability is None:
        return None
    if device.capability is None:
        return device.name
    if device.capability < kernel.capability:
        needed, found = (".".join(map(str, pair)) for pair in (kernel.capability, device.capability))
        return f"needs compute capability {needed}, and {device.name} has {found}"
    return None


def doctor_lines(width: int) -> list[Line]:
    """Lay out versions, device and kernels.

    Args:
        width: columns to keep to.
    """
    device = find_device()
    capability = "" if device.capability is None else f", compute capability {'.'.join(map(str, device.capability))}"
    return [
        line("versions", "bold"),
        *_version_lines(),
        line(""),
        line("device", "bold"),
        line(f"  {device.name}{capability}"),
        line(""),
        line("kernels", "bold"),
        *_kernel_lines(device, width),
    ]


def _version_lines() -> Iterator[Line]:
    yield line(f"  {'python':<24}{platform.python_version()} on {platform.platform()}")
    yield line(f"  {'neatpack':<24}{neatpack.__version__}")
    for name in PACKAGES:
        version = installed_version(name)
        yield line(f"  {name:<24}{version}") if version else line(f"  {name:<24}not installed", "dim")


def _kernel_lines(device: Device, width: int) -> Iterator[Line]:
    for kernel in KERNELS:
        reason = reason_against(kernel, device)
        verdict = Span("usable  ", "green") if reason is None else Span("not here", "yellow")
        yield (Span(f"  {kernel.name:<24}"), verdict, Span(f"  consumer {kernel.consumer}"))
        if reason is not None:
            for part in textwrap.wrap(reason, width - 26):
                yield line(" " * 26 + part, "dim")
