"""The ways in which a packed batch is given to a model, as data: what the audit tries on every model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

PathName = Literal[
    "configured",
    "varlen",
    "varlen+seq_idx",
    "varlen+seq_idx+cu_seqlens",
    "varlen_no_positions",
    "varlen_on_native",
    "seq_idx_on_native",
    "mask_4d_float",
    "mask_4d_bool",
    "mask_4d_float_sdpa",
    "mask_4d_bool_sdpa",
    "mask_4d_per_layer",
    "positions",
    "positions_sdpa",
    "positions+mask_2d",
    "positions+cache",
    "mask_2d",
    "per_document",
]
PATH_NAMES: Final[tuple[PathName, ...]] = get_args(PathName)

Attention = Literal["kernel", "eager", "sdpa", "built"]
"""What attends: a reference kernel bound in place of a flash kernel, one of Transformers' own implementations, or
whatever the model was built with."""

Given = Literal[
    "position_ids",
    "flash_varlen",
    "seq_idx",
    "cu_seqlens",
    "mask_4d_float",
    "mask_4d_bool",
    "mask_4d_per_layer",
    "mask_2d",
    "packed_seq_ids",
]
"""What a path gives a model beside the tokens."""

CARRY_BOUNDARIES: Final[frozenset[Given]] = frozenset(get_args(Given)) - {"mask_2d"}
"""What says where documents end. A 2-D mask says only what is padding."""


@dataclass(frozen=True)
class Path:
    """One way to give a packed batch to a model.

    Attributes:
        name: what the report calls it.
        stands_for: who gives a batch in this way.
        attention: what attends.
        given: the arguments beside the tokens.
        leaves_cache: whether `use_cache` is left at the model's default; else it is False.
        apart: whether each document goes through the model in a call of its own.
        of_encoders: whether encoders are given batches in this way, too.
        instead: the nearest path that does right where this one does wrong, and what to change for it.
    """

    name: PathName
    stands_for: str
    attention: Attention
    given: tuple[Given, ...] = ()
    leaves_cache: bool = False
    apart: bool = False
    of_encoders: bool = True
    instead: tuple[PathName, str] | None = None

    @property
    def carries_boundaries(self) -> bool:
        """Whether anything that it gives says where documents end."""
        return not CARRY_BOUNDARIES.isdisjoint(self.given)

    def carries_boundaries_in(self, argument: str) -> bool:
        """Whether this argument says where documents end. Positions do so only where nothing else does."""
        if argument == "position_ids":
            return len(CARRY_BOUNDARIES.intersection(self.given)) == 1
        return argument != "attention_mask" or "mask_2d" not in self.given


PATHS: Final = (
    Path(
        "configured",
        "what configure_packing chooses, given _packed_seq_ids",
        "built",
        ("position_ids", "packed_seq_ids"),
    ),
    Path(
        "varlen",
        "flash attention given the four varlen arguments",
        "kernel",
        ("position_ids", "flash_varlen"),
        instead=("varlen+seq_idx", "give seq_idx as well"),
    ),
    Path(
        "varlen+seq_idx",
        "the same for models with convolutions or recurrent state",
        "kernel",
        ("position_ids", "flash_varlen", "seq_idx"),
        of_encoders=False,
        instead=("varlen", "leave out seq_idx"),
    ),
    Path(
        "varlen+seq_idx+cu_seqlens",
        "the same for layers that read cu_seqlens",
        "kernel",
        ("position_ids", "flash_varlen", "seq_idx", "cu_seqlens"),
        of_encoders=False,
        instead=("varlen+seq_idx", "leave out cu_seqlens"),
    ),
    Path(
        "varlen_no_positions",
        "varlen arguments from a loader that emits no positions",
        "kernel",
        ("flash_varlen",),
        instead=("varlen", "give position_ids that restart"),
    ),
    Path(
        "varlen_on_native",
        "varlen arguments given to a model whose attention is native",
        "eager",
        ("flash_varlen",),
        instead=("varlen", "use flash attention, or bind a kernel"),
    ),
    Path(
        "seq_idx_on_native",
        "seq_idx alone",
        "eager",
        ("seq_idx",),
        of_encoders=False,
        instead=("varlen+seq_idx", "give the varlen arguments as well"),
    ),
    Path(
        "mask_4d_float",
        "one additive 4-D mask, eager attention",
        "eager",
        ("position_ids", "mask_4d_float"),
        instead=("mask_4d_per_layer", "give each kind of layer its own mask"),
    ),
    Path(
        "mask_4d_bool",
        "one bool 4-D mask, eager attention",
        "eager",
        ("position_ids", "mask_4d_bool"),
        instead=("mask_4d_float", "give an additive mask: eager adds 0 and 1"),
    ),
    Path(
        "mask_4d_float_sdpa",
        "one additive 4-D mask, sdpa",
        "sdpa",
        ("position_ids", "mask_4d_float"),
        instead=("mask_4d_per_layer", "give each kind of layer its own mask"),
    ),
    Path(
        "mask_4d_bool_sdpa",
        "one bool 4-D mask, sdpa",
        "sdpa",
        ("position_ids", "mask_4d_bool"),
        instead=("mask_4d_per_layer", "give each kind of layer its own mask"),
    ),
    Path(
        "mask_4d_per_layer",
        "an additive 4-D mask for each kind of layer, windowed where the layer is",
        "eager",
        ("position_ids", "mask_4d_per_layer"),
    ),
    Path("positions", "positions that restart, eager attention", "eager", ("position_ids",)),
    Path("positions_sdpa", "positions that restart, sdpa", "sdpa", ("position_ids",)),
    Path(
        "positions+mask_2d",
        "positions that restart, and a tokenizer's 2-D mask",
        "eager",
        ("position_ids", "mask_2d"),
        instead=("positions", "give no attention_mask"),
    ),
    Path(
        "positions+cache",
        "positions that restart, with the cache that is on by default",
        "eager",
        ("position_ids",),
        leaves_cache=True,
        of_encoders=False,
        instead=("positions", "pass use_cache=False"),
    ),
    Path("mask_2d", "a tokenizer's 2-D mask alone", "eager", ("mask_2d",)),
    Path("per_document", "each document in a call of its own", "built", apart=True),
)
"""Every path, in the order of the report: first the one that a training job takes."""
