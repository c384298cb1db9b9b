"""How far a model says that its layers reach, and what an audit says where no document was longer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from neatpack.kernels_bridge import audit_isolation
from neatpack.kernels_bridge.audit.spans import Span, longest_span
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model
from tests.audit import planted
from tests.audit.planted import Attention, Convolution, Model


class Tells(Model):
    """Has a configuration, as models of Transformers do."""

    def __init__(self, **fields: object) -> None:
        super().__init__(Attention())
        self.config = SimpleNamespace(_attn_implementation="eager", **fields)


@pytest.mark.parametrize(
    ("fields", "span"),
    [
        ({}, None),
        ({"sliding_window": 512}, Span(512, "sliding_window")),
        ({"sliding_window": None, "use_sliding_window": True, "max_window_layers": 28}, None),
        ({"attention_chunk_size": 8, "compress_ratios": [1, 128, 4]}, Span(128, "compress_ratios")),
        ({"compress_rates": {"csa": 4, "hca": 64}}, Span(64, "compress_rates")),
        ({"mamba_chunk_size": 256, "mamba_d_conv": 4}, Span(256, "mamba_chunk_size")),
        ({"conv_L_cache": 3, "hidden_size": 999, "chunk_size_feed_forward": 99}, Span(3, "conv_L_cache")),
    ],
)
def test_a_configuration_tells_by_the_names_of_its_fields(fields: dict[str, object], span: Span | None) -> None:
    assert longest_span(Tells(**fields)) == span


def test_modules_tell_what_they_convolve() -> None:
    layers = nn.Sequential(nn.Conv1d(2, 2, 4), nn.Sequential(nn.Conv1d(2, 2, 3, dilation=(16,))), nn.Linear(99, 99))
    assert longest_span(layers) == Span(33, "1.0.kernel_size")
    assert longest_span(Model(Attention(), Convolution())) is None
    assert longest_span(Model(Attention(), planted.Conv1dLayer())) == Span(3, "layers.1.conv.kernel_size")


@pytest.mark.parametrize(
    ("family", "span"), [("llama", None), ("mistral", 4), ("lfm2", 3), ("llama4_text", 4), ("deepseek_v4", 128)]
)
def test_families_tell(family: str, span: int | None) -> None:
    found = longest_span(build_tiny_model(family))
    assert (None if found is None else found.places) == span


@pytest.mark.parametrize(
    ("window", "most", "words"),
    [(4, None, []), (500, None, []), (500, 400, []), (4096, None, ["4096", "160"]), (4096, 160, [])],
)
def test_a_span_that_no_document_was_longer_than_is_said(window: int, most: int | None, words: list[str]) -> None:
    report = audit_isolation(Tells(sliding_window=window, max_position_embeddings=most))
    assert report.is_clean
    assert bool(report.path.untried) == bool(words)
    assert all(word in report.path.untried[0] for word in words)


def test_so_it_is_said_of_a_batch_of_the_callers_own() -> None:
    ids = torch.tensor([[1] * 5 + [2] * 6])
    batch: dict[str, Tensor] = {"input_ids": torch.arange(11)[None], "_packed_seq_ids": ids}
    for window, untried in [(5, ()), (6, ("sliding_window is 6, and the longest document has 6 tokens",))]:
        report = audit_isolation(Tells(sliding_window=window), batch)
        assert (report.verdict, report.path.untried) == ("clean", untried)
