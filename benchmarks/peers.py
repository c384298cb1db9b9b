"""The functions of other packages that ours are compared with. None of them is needed to run the harness."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from benchmarks.records import Unavailable


def find(module: str, name: str) -> Callable[..., Any]:
    """Import a function of a package that may be missing.

    Raises:
        Unavailable: the package is not installed, lacks something that it imports, or has no such function.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function: Callable[..., Any] = getattr(import_module(module), name)
    except ImportError as error:
        raise Unavailable(f"{module.partition('.')[0]} cannot be imported: {error}") from error
    except AttributeError as error:
        raise Unavailable(f"{module} has no {name}") from error
    return function


class SegmentTree(Protocol):
    """TRL's tree of the rooms that some row has left."""

    def add(self, val: int) -> None:
        """Say that a row has so much room."""

    def remove(self, val: int) -> None:
        """Say that no row has so much room any more."""

    def search(self, val: int) -> int:
        """Give the least room that is enough."""
        ...


_AUTOMODEL = "nemo_automodel.components.datasets"

automodel_metadata = partial(find, f"{_AUTOMODEL}.packing", "build_packed_sequence_metadata")
automodel_unpad = partial(find, f"{_AUTOMODEL}.packing", "get_unpad_data")
automodel_varlen = partial(find, f"{_AUTOMODEL}.packed_seq", "packed_seq_params_from_doc_ids")
automodel_kwargs = partial(find, f"{_AUTOMODEL}.packed_seq", "to_flash_attention_kwargs")
automodel_mask = partial(find, f"{_AUTOMODEL}.utils", "_indexed_mask_to_4d_block_causal")
transformers_varlen = partial(
    find, "transformers.modeling_flash_attention_utils", "prepare_fa_kwargs_from_position_ids"
)
transformers_collator = partial(find, "transformers", "DataCollatorWithFlattening")
torchtitan_varlen = partial(find, "torchtitan.models.common.attention", "create_varlen_metadata_for_document")
fla_positions = partial(find, "fla.ops.utils.index", "prepare_position_ids")
fla_sequence_ids = partial(find, "fla.ops.utils.index", "prepare_sequence_ids")
trl_tree = partial(find, "trl.data_utils", "_SegmentTree")
