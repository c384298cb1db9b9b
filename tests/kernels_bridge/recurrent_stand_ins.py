"""Kernels of recurrent layers in plain torch, step by step, under the names and arguments of the real packages.

Transformers looks for the packages once, when it imports a modeling module, so this runs in a process of its own:
`python -m tests.kernels_bridge.recurrent_stand_ins FAMILY...` prints what each family does, as JSON.
"""

# ruff: noqa: N803 - names of the kernels' arguments
from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Convolve `[batch, channels, sequence]`, and look back only within a segment."""
    batch, _, length = x.shape
    segments = torch.zeros(batch, length, dtype=torch.int32) if seq_idx is None else seq_idx
    out = torch.zeros_like(x) if bias is None else bias[None, :, None].expand_as(x).clone()
    for back in range(weight.shape[1]):
        moved, same = torch.zeros_like(x), torch.zeros(batch, length, dtype=torch.bool)
        moved[..., back:] = x[..., : length - back]
        same[:, back:] = segments[:, back:] == segments[:, : length - back]
        out = out + weight[None, :, -1 - back, None] * moved * same[:, None]
    return silu(out) if activation in ("silu", "swish") else out


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Scan a state space over `[batch, sequence, heads, head_dim]`, from zero where a segment begins."""
    del chunk_size, z
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    keys, queries = (each.repeat_interleave(x.shape[2] // each.shape[2], dim=2) for each in (B, C))
    state = torch.zeros(x.shape[0], *x.shape[2:], B.shape[-1])
    outputs: list[Tensor] = []
    for step in range(x.shape[1]):
        if seq_idx is not None and step:
            state = state * (seq_idx[:, step] == seq_idx[:, step - 1])[:, None, None, None]
        decay = torch.exp(dt[:, step] * A)[..., None, None]
        state = state * decay + (dt[:, step, :, None] * x[:, step])[..., None] * keys[:, step, :, None]
        outputs.append((state * queries[:, step, :, None]).sum(-1))
    out = torch.stack(outputs, dim=1)
    out = out if D is None else out + D[:, None] * x
    return (out, state) if return_final_states else out


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Apply the gated delta rule to `[batch, sequence, heads, head_dim]`; offsets are taken of one row alone."""
    assert initial_state is None
    assert not output_final_state
    assert cu_seqlens is None or q.shape[0] == 1, "offsets are those of one row"
    if use_qk_l2norm_in_kernel:
        q, k = (each * torch.rsqrt((each * each).sum(-1, keepdim=True) + 1e-6) for each in (q, k))
    q, k = (each.repeat_interleave(v.shape[2] // each.shape[2], dim=2) for each in (q, k))
    decay = g.exp()[..., None] if g.ndim == 4 else g.exp()[..., None, None]
    starts: set[int] = set() if cu_seqlens is None else set(map(int, cu_seqlens))
    state = torch.zeros(*k.shape[:1], k.shape[2], k.shape[3], v.shape[3])
    outputs: list[Tensor] = []
    for step in range(q.shape[1]):
        state = torch.zeros_like(state) if step in starts else state * decay[:, step]
        change = (v[:, step] - (state * k[:, step, ..., None]).sum(-2)) * beta[:, step, :, None]
        state = state + k[:, step, ..., None] * change[..., None, :]
        outputs.append((state * q[:, step, ..., None]).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, dim=1), None


def unused(*_args: object, seq_idx: Tensor | None = None, cu_seqlens: Tensor | None = None, **_options: object) -> None:
    """Stand for a kernel that computes the same in another way, and leave it to those above."""
    del seq_idx, cu_seqlens


def install() -> None:
    """Put the stand-ins where Transformers looks for the packages."""
    kernels: dict[str, dict[str, object]] = {
        "causal_conv1d": {"causal_conv1d_fn": causal_conv1d_fn, "causal_conv1d_update": unused},
        "mamba_ssm": {
            "mamba_chunk_scan_combined": mamba_chunk_scan_combined,
            "mamba_split_conv1d_scan_combined": unused,
            "selective_state_update": unused,
        },
        "fla": {
            "chunk_gated_delta_rule": chunk_gated_delta_rule,
            "chunk_kda": chunk_gated_delta_rule,
            "fused_recurrent_gated_delta_rule": unused,
            "fused_recurrent_kda": unused,
        },
    }
    for package, functions in kernels.items():
        module = ModuleType(package)
        vars(module).update(functions)
        sys.modules[package] = module


def outcome(name: str) -> dict[str, object]:
    """Say what a family is bound to, what is wrong with it, and what would be without some of the boundaries."""
    from neatpack.kernels_bridge import configure_packing, get_binding, use_consumer
    from neatpack.kernels_bridge.consumers.recurrent import CONSUMER
    from tests.kernels_bridge.packed import IDS, TOKENS, alone, first_fault, tiny
    from tests.kernels_bridge.spoilt import Spoilt

    model: Any = tiny(name)
    with torch.no_grad():
        expected = alone(model)
    configure_packing("eager", model)
    binding = get_binding(model)
    assert binding is not None
    found: dict[str, object] = {"consumer": binding.consumer, "fault": first_fault(model, expected)}
    labels = TOKENS.masked_fill(IDS == 0, -100)
    with torch.no_grad():
        output = model(input_ids=TOKENS, labels=labels, _packed_seq_ids=IDS)
    losses = torch.nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    found["loss"] = float((losses - output.loss).abs()) < 1e-4
    for lost in ("seq_idx", "cu_seqlens", "cu_seq_lens_q"):
        with use_consumer(Spoilt(CONSUMER, lost)):
            try:
                found[f"without {lost}"] = first_fault(model, expected)
            except Exception as error:  # noqa: BLE001  # to raise is to notice
                found[f"without {lost}"] = type(error).__name__
    return found


if __name__ == "__main__":
    install()
    print(json.dumps({name: outcome(name) for name in sys.argv[1:]}))  # noqa: T201  # read by the tests
