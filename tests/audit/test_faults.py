"""Planted faults: wrong offsets, kernels that join documents, paths that lose what they were given. All are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from neatpack.adapters import flash_varlen_kwargs
from neatpack.kernels_bridge.audit import inputs, witness
from neatpack.kernels_bridge.audit.documents import PackedDocuments
from neatpack.kernels_bridge.audit.report import PathReport
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import ModelType
from neatpack.kernels_bridge.reference import varlen_attention

Fault = Callable[[Tensor], Tensor]


def _off_by_one(offsets: Tensor) -> Tensor:
    offsets = offsets.clone()
    offsets[1] += 1
    return offsets


def _last_document_lost(offsets: Tensor) -> Tensor:
    # The last document of the last row is joined to the one before it.
    return torch.cat([offsets[:-3], offsets[-2:]])


def _rows_joined(offsets: Tensor) -> Tensor:
    return offsets[(offsets % 19 != 0) | (offsets == 0) | (offsets == offsets[-1])]


def _one_segment(offsets: Tensor) -> Tensor:
    return offsets[[0, -1]]


@pytest.fixture
def varlen(texts: list[bytes]) -> Callable[[], PathReport]:
    """Audit a varlen kernel alone."""
    return lambda: audit_models([ModelType("llama")], texts, paths=["varlen"]).models[0].paths["varlen"]


@pytest.mark.parametrize("fault", [_off_by_one, _last_document_lost, _rows_joined, _one_segment])
def test_wrong_offsets_given_are_found(
    monkeypatch: pytest.MonkeyPatch, varlen: Callable[[], PathReport], fault: Fault
) -> None:
    def broken(packed: PackedDocuments, _windows: inputs.LayerWindows) -> dict[str, object]:
        offsets = fault(flash_varlen_kwargs(packed.document_ids)["cu_seq_lens_q"])
        longest = int(offsets.diff().max())
        return {
            "cu_seq_lens_q": offsets,
            "cu_seq_lens_k": offsets,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    monkeypatch.setitem(inputs.BUILDERS, "flash_varlen", broken)
    path = varlen()
    assert (path.verdict, path.kind) == ("leak", "padding" if fault is _rows_joined else "kwargs_dropped")
    assert path.boundaries_seen is False


@pytest.mark.parametrize("fault", [_off_by_one, _last_document_lost, _one_segment])
def test_a_kernel_that_misreads_its_offsets_is_found(
    monkeypatch: pytest.MonkeyPatch, varlen: Callable[[], PathReport], fault: Fault
) -> None:
    def broken(query: Tensor, key: Tensor, value: Tensor, *, cu_seqlens_q: Tensor, **rest: object) -> Tensor:
        offsets = fault(cu_seqlens_q)
        longest = int(offsets.diff().max())
        return varlen_attention(
            query,
            key,
            value,
            cu_seqlens_q=offsets,
            cu_seqlens_k=offsets,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            softmax_scale=rest["softmax_scale"],  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        )

    monkeypatch.setattr(witness, "varlen_attention", broken)
    path = varlen()
    assert (path.verdict, path.kind) == ("leak", "attention"), path.message
    assert path.boundaries_seen is True


def test_a_kernel_that_sees_later_tokens_is_found(
    monkeypatch: pytest.MonkeyPatch, varlen: Callable[[], PathReport]
) -> None:
    def broken(*states: Tensor, causal: bool, **rest: object) -> Tensor:
        del causal
        return varlen_attention(*states, causal=False, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(witness, "varlen_attention", broken)
    path = varlen()
    assert (path.verdict, path.kind) == ("differs", "causality")


def test_positions_that_do_not_restart_are_found(monkeypatch: pytest.MonkeyPatch, texts: list[bytes]) -> None:
    def broken(packed: PackedDocuments, _windows: inputs.LayerWindows) -> dict[str, object]:
        return {"position_ids": torch.arange(packed.input_ids.shape[1]).expand_as(packed.input_ids)}

    monkeypatch.setitem(inputs.BUILDERS, "position_ids", broken)
    paths = audit_models([ModelType("gpt2")], texts, paths=["varlen", "positions"]).models[0].paths
    assert (paths["varlen"].verdict, paths["varlen"].kind) == ("differs", "positions")
    assert paths["positions"].verdict == "leak"
