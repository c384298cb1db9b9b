"""Whatever stands in place of an argument of a public function: an answer, or an error of the family with a way out.

Functions and their arguments are found by introspection, so that a new one is tried as well.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.masked import masked_tensor

from neatpack import adapters
from neatpack.adapters import AttentionCost, Piece, RowPlan, RowStream, StaticBounds
from neatpack.adapters.wire import WireCapabilities, WirePackingOptions
from neatpack.contracts.capabilities import PackingCapabilities
from neatpack.contracts.errors import PackingError, Problem
from tests.adapters.batches import training_batch

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of",
    "ignore:Sparse",
    "ignore:torch.quantize",
    "ignore:the matrix",
    "ignore:attn_impl",
    "ignore:unbind is not implemented",
)

_IDS: Final = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]])
_PLACES: Final = torch.arange(4)
_PLAN: Final = adapters.plan_rows([2, 1], 4)
_COST: Final = AttentionCost(1.0, 1.0)
_RANKED: Final = adapters.balance_rows(_PLAN, 1, cost=_COST)
_CONTRACT: Final = PackingCapabilities("document_ids", requires_packed_sequence_metadata=True)
_VIEWS: Final = {"full_attention": adapters.LayerView(), "sliding_attention": adapters.LayerView(window=2)}
_SPANS: Final = [[(0, 1)], [], [(0, 1)], []]


class _Tokenizer:
    eos_token_id = 1
    bos_token_id = 2


def _derived() -> dict[str, object]:
    """Give a batch with all that is derived from its ids."""
    lengths = adapters.thd_lengths(_IDS)
    return {
        **adapters.adapt_model_inputs(training_batch(_IDS)),
        **adapters.build_packed_sequence_metadata(_IDS),
        **adapters.flash_varlen_kwargs(_IDS),
        "seq_lens": lengths.seq_lens,
        "seq_lens_padded": lengths.seq_lens_padded,
        "seq_idx": adapters.segment_index(_IDS).seq_idx,
        "attention_mask": _IDS,
        "names": ["one", "two"],
    }


_BATCH: Final[dict[str, object]] = {
    **adapters.adapt_model_inputs(training_batch(_IDS)),
    "document_keys": torch.tensor([[0, 1], [2, 3]]),
    "rewards": torch.ones(2, 4, 2),
    "names": ["one", "two"],
}

_ARGUMENTS: Final[dict[str, object]] = {
    "attention_document_ids": _IDS,
    "attention_eligibility": _IDS > 0,
    "attention_mask": _IDS,
    "attn_implementation": "sdpa",
    "axes": 3,
    "axis": 0,
    "batch": _BATCH,
    "batch_size": 2,
    "blocked": -math.inf,
    "block_size": (2, 2),
    "bos_token_id": 2,
    "bounds": StaticBounds(3, 8, 4),
    "capacity": 4,
    "chunk": 2,
    "contract": _CONTRACT,
    "cost": _COST,
    "cu_seqlens": adapters.gathered_rows(_IDS).cu_seqlens,
    "depth": 1,
    "document_ids": _IDS,
    "document_keys": torch.tensor([[0, 1], [2, 3]]),
    "document_starts": torch.zeros(2, 2, dtype=torch.int64),
    "documents": [torch.tensor([1, 2]), torch.tensor([3])],
    "documents_per_row": 2,
    "done": 0,
    "eos_token_id": [1],
    "flat": adapters.thd_flat(_IDS),
    "given": _derived(),
    "groups": [[0, 1], [2, 3]],
    "index": adapters.segment_index(_IDS),
    "input_ids": _IDS,
    "key_ids": _IDS[0],
    "key_places": _PLACES,
    "kwargs": adapters.flash_varlen_kwargs(_IDS),
    "label_shift": "model",
    "labels": torch.arange(8).view(2, 4),
    "layers": 1,
    "layout": "contiguous",
    "length": 3,
    "lengths": [2, 1],
    "linear": 1.0,
    "longest_padding": 2,
    "matrix": adapters.length_matrix(_IDS),
    "microbatches": 2,
    "multiple": 4,
    "open_rows": 2,
    "output_format": "thd",
    "packed_token_indices": adapters.gathered_rows(_IDS).packed_token_indices,
    "packing": _CONTRACT,
    "packing_contract": _CONTRACT,
    "pad_token_id": 0,
    "padding_mask": _IDS == 0,
    "parameters": 1,
    "parts": [torch.ones(4, 3)],
    "path": "no such file.json",
    "per": "document",
    "places": torch.tensor([[0, 1, -1], [0, 1, 2]]),
    "plan": _PLAN,
    "position_ids": adapters.build_position_ids(_IDS),
    "quadratic": 1.0,
    "query_ids": _IDS[0][:, None],
    "query_places": _PLACES[:, None],
    "rank": 0,
    "ranks": 1,
    "reduction": "sum",
    "rows": [[0, 1]],
    "rows_per_rank": 1,
    "segments": adapters.as_segments(_IDS),
    "sequence": 4,
    "sequence_length": 4,
    "shape": (2, 4),
    "spans": _SPANS,
    "starts": torch.tensor(0),
    "state": _RANKED.state(0),
    "states": adapters.gathered_states(_IDS),
    "status": torch.zeros(4, dtype=torch.int32),
    "steps": _RANKED.steps,
    "stops": torch.tensor(4),
    "strides": (4, 1),
    "tokenizer": _Tokenizer(),
    "total_tokens": 9,
    "value": _IDS,
    "values": torch.ones(2, 4),
    "views": _VIEWS,
    "width": 5,
    "window": 2,
}
"""What is right, by the names of arguments. Those that are not here are given as by default."""

_OF_ONE: Final[dict[str, dict[str, object]]] = {
    "AttentionCost.of": {"lengths": np.array([1, 2])},
    "AttentionCost.of_model": {"width": 1},
    "DocumentRows.take": {"batch": 0},
    "DocumentRows.is_padded": {"batch": 0},
    "RankPlan": {"rows": _PLAN},
    "RowPlan": {
        **{name: getattr(_PLAN, name) for name in ("lengths", "documents", "starts", "stops", "bounds")},
        "dropped": (),
    },
    "RowPlan.from_rows": {"dropped": []},
    "RowPlan.from_state": {"state": _PLAN.state()},
    "RowStream.from_state": {"state": RowStream(5, 2).state()},
    "pipeline_chunk_dims": {"batch": {name: each for name, each in _BATCH.items() if name != "names"}},
    "StaticBounds": {"documents": 1, "segments": 1, "longest": 1},
    "adapt_model_inputs": {"batch": _derived()},
    "apply_packing_contract": {"batch": _derived(), "flat": False},
    "block_causal_mask_bytes": {"batch": 2},
    "build_block_causal_mask": {"dtype": torch.float32},
    "build_layer_masks": {"dtype": torch.float32},
    "check_thd_offsets": {"given": {"cu_seqlens": torch.tensor([0, 2, 3, 4, 7])}},
    "collate_documents": {"rows": [0, -1], "contract": _CONTRACT},
    "convert_batch_output": {"batch": _derived()},
    "document_ids_from_lengths": {"lengths": [[2, 1], [4]]},
    "document_ids_from_row_offsets": {"rows": adapters.row_offsets(_IDS)},
    "document_ids_from_thd_lengths": {"lengths": adapters.thd_lengths(_IDS)},
    "document_ids_from_tokens": {"pad_token_id": 0},
    "enable_xdoc_attention": {"batch": _derived()},
    "fla_kwargs": {"rows": 1},
    "flatten_thd_lengths": {"lengths": adapters.thd_lengths(_IDS)},
    "layer_masks_bytes": {"batch": 2},
    "mask_labels": {"inside_documents": True},
    "mtp_targets": {"inside_documents": True},
    "physical_offsets_from_positions": {"position_ids": torch.tensor([[0, 1, 0, 0]])},
    "segment_ids_from_offsets": {"cu_seqlens": torch.tensor([0, 2, 3])},
    "split_rows": {"batch": _derived()},
    "static_block_causal_mask": {"dtype": torch.float32},
    "unpack": {"plan": None},
    "varlen_kernel_kwargs": {"flat": adapters.gathered_flat(_IDS)},
}
"""What is right for one function or class alone."""

_NOT_CALLED: Final = (
    "ContextShard", "DocumentRows", "Documents", "Piece", "RankPlanState", "RowPlanState", "RowSpan", "RowStreamState",
    "Segments", "SpecialTokens", "StaticRule", "StaticScan", "StreamedRow", "StreamedRowState", "VisibleSquare",
)  # fmt: skip
"""Classes of results, and of what is read alone."""

_METHODS: Final[dict[str, Callable[..., object]]] = {
    "AttentionCost.of": _COST.of,
    "AttentionCost.of_model": AttentionCost.of_model,
    "DocumentRows.is_padded": adapters.document_rows(_IDS).is_padded,
    "DocumentRows.put_back": adapters.document_rows(_IDS).put_back,
    "DocumentRows.take": adapters.document_rows(_IDS).take,
    "RankPlan.from_state": adapters.RankPlan.from_state,
    "RankPlan.rank_rows": _RANKED.rank_rows,
    "RankPlan.state": _RANKED.state,
    "RowPlan.from_rows": RowPlan.from_rows,
    "RowPlan.from_state": RowPlan.from_state,
    "RowStream.from_state": RowStream.from_state,
    "RowStream.rows": RowStream(5, 2).rows,
    "WireCapabilities.read": WireCapabilities.read,
    "WirePackingOptions.read": WirePackingOptions.read,
}


def _public() -> dict[str, Callable[..., object]]:
    named: dict[str, Any] = {name: getattr(adapters, name) for name in adapters.__all__ if name not in _NOT_CALLED}
    # Constants and names of types have no signature of their own.
    called = {name: each for name, each in named.items() if inspect.isfunction(each) or inspect.isclass(each)}
    return {**called, **_METHODS}


_FUNCTIONS: Final = _public()


def _arguments(name: str) -> dict[str, object]:
    """Give what is right for each argument of a function; of those that may be left out, by default."""
    if name.startswith("Wire"):
        entries = {"packed_mask_type": "document_ids"} if "Capabilities" in name else {"capacity": 4}
        return {"entries": entries}
    own = _OF_ONE.get(name, {})
    given: dict[str, object] = {}
    for each in inspect.signature(_FUNCTIONS[name]).parameters.values():
        right = own.get(each.name, _ARGUMENTS.get(each.name, each.default))
        assert right is not inspect.Parameter.empty, f"give {each.name} of {name} a right value here"
        given[each.name] = right
    return given


def _sub(value: Tensor) -> Tensor:
    return value.as_subclass(type("Own", (Tensor,), {}))


def _nested(layout: torch.layout) -> Tensor:
    values = [torch.tensor([1, 1]), torch.tensor([1])]
    return torch.nested.nested_tensor(values, layout=layout)  # pyright: ignore[reportUnknownMemberType]


def _wrong() -> Iterator[object]:
    """Give what hardly any argument may be, made anew, since some are used up."""
    yield from (None, True, "3", "", b"3", 2.5, math.nan, -1, 0, 2**31, -(2**63), 10**400, 1j, object(), Tensor)
    yield from ([], [None], [[1, 1, 0]], ["a"], (), (1, "a"), {}, {"a": 1}, {1: None}, {1}, iter(range(3)))
    yield from (ChainMap({}, _derived()), MappingProxyType(_derived()), Piece(0, 0, 1), _PLAN, adapters.as_segments)
    yield from (np.int64(3), np.float32(2.5), np.True_, np.timedelta64(2, "s"), np.array(1), np.array(1.5))
    yield from (np.array(["a"]), np.ones((2, 4), np.int64), np.matrix([[1, 2]]), np.array([None, 1], object))
    yield from (np.ma.masked_equal(np.array([1, 2]), 2), np.zeros(2, [("a", "i4")]), np.array([2**63], np.uint64))
    ones = torch.ones(2, 4, dtype=torch.int64)
    yield from (torch.tensor(1), torch.tensor(1.5), torch.tensor(True), ones[0], ones[:0], ones[:, :0], ones[..., None])
    yield from (ones.float(), ones.float().requires_grad_(), ones.to(torch.complex64), ones.bool(), -ones, ones.T)
    yield from (ones.to(torch.uint8), torch.full((2, 4), 2**64 - 1, dtype=torch.uint64), torch.full((2, 4), -(2**63)))
    yield from (ones.to("meta"), ones.to_sparse(), ones.to_sparse_csr(), ones.bool().to_sparse(), _sub(ones))
    yield from (ones.to(torch.float8_e4m3fn), torch.full((2, 4), math.nan), ones[:1, :1].expand(2, 4))
    yield from (_nested(torch.strided), _nested(torch.jagged), masked_tensor(ones, ones.bool()))
    yield from (torch.quantize_per_tensor(ones.float(), 1.0, 0, torch.quint8), adapters.as_segments(ones), torch.int64)


def _refused_or_answered(function: Callable[..., object], arguments: Mapping[str, object]) -> None:
    before = {name: dict(cast("Any", each)) for name, each in arguments.items() if isinstance(each, dict)}
    given = {name: dict(cast("Any", each)) if isinstance(each, dict) else each for name, each in arguments.items()}
    problems = _problems(function, given)
    assert all(problem.field and problem.message and problem.remedy.endswith(".") for problem in problems)
    assert all(str(problem).endswith(problem.remedy) for problem in problems)
    if problems:  # Who is refused finds everything as it was.
        left: dict[str, Any] = {name: given[name] for name in before}
        assert {name: list(entries) for name, entries in left.items()} == {
            name: [*each] for name, each in before.items()
        }
        assert all(left[name][key] is entry for name, entries in before.items() for key, entry in entries.items())


def _problems(function: Callable[..., object], arguments: Mapping[str, object]) -> Sequence[Problem]:
    try:
        answer = function(**arguments)
        if isinstance(answer, Iterator):
            list(cast("Iterable[object]", answer))
    except PackingError as error:
        return error.problems
    return ()


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_what_is_right_is_answered(name: str) -> None:
    """Or else the tests below would be refused for another reason."""
    if name != "load_batch":
        arguments = _arguments(name)
        _FUNCTIONS[name](**{each: dict(cast("Any", v)) if isinstance(v, dict) else v for each, v in arguments.items()})


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_whatever_stands_in_place_of_an_argument(name: str) -> None:
    arguments = _arguments(name)
    for argument in arguments:
        for wrong in _wrong():
            _refused_or_answered(_FUNCTIONS[name], {**arguments, argument: wrong})


def _spoiled(value: object, wrong: object) -> Iterator[object]:
    """Give a value with something else in place of each of its parts, or beside them."""
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value)
        for key, entry in entries.items():
            yield {**entries, key: wrong}
            yield from ({**entries, key: spoiled} for spoiled in _spoiled(entry, wrong))
        yield {**entries, "more": wrong}
        yield {**entries, 3: wrong}
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        parts = list(cast("Iterable[object]", value))
        kind: Any = list if isinstance(value, list) else tuple
        for index, part in enumerate(parts):
            for spoiled in (wrong, *_spoiled(part, wrong)):
                yield kind([*parts[:index], spoiled, *parts[index + 1 :]])
        yield kind([*parts, wrong])
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, adapters.Segments)):
        for field in dataclasses.fields(value):
            with suppress(PackingError):
                yield dataclasses.replace(cast("Any", value), **{field.name: wrong})


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_whatever_stands_in_place_of_a_part_of_an_argument(name: str) -> None:
    arguments = _arguments(name)
    for argument, right in arguments.items():
        for wrong in _wrong():
            for spoiled in _spoiled(right, wrong):
                _refused_or_answered(_FUNCTIONS[name], {**arguments, argument: spoiled})
