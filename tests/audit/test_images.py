"""Models that read images: two images that touch where one document ends and the next begins stay apart, or do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from neatpack.contracts.errors import EncodingError
from neatpack.kernels_bridge.audit import images
from neatpack.kernels_bridge.audit.documents import PackedDocuments, pack_documents
from neatpack.kernels_bridge.audit.images import ImageFeed
from neatpack.kernels_bridge.audit.report import ModelReport
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.targets import ModelType
from neatpack.kernels_bridge.audit.tiny_models import build_tiny_model, model_types
from neatpack.kernels_bridge.audit.tiny_sizes import IMAGE_FAMILIES, IMAGE_PLACES, IMAGE_TOKEN, OTHER_IMAGES
from neatpack.kernels_bridge.configure import configure_packing

CLEAN = ("clean", None)
ATTENTION = ("leak", "attention")
ERROR = ("error", None)
# Within an image tokens see later ones. A causal mask or kernel hides them.
IMAGE_HIDDEN = ("differs", "mask")

EXPECTED: dict[str, dict[str, tuple[str, str | None]]] = {
    "llava@images": {
        "varlen": CLEAN,
        "mask_4d_float": CLEAN,
        "positions": CLEAN,
        "positions+mask_2d": ATTENTION,
        "mask_2d": ATTENTION,
        "per_document": CLEAN,
        "configured": CLEAN,
    },
    # Given no positions, it takes two images that touch for one, and fails.
    "qwen2_vl@images": {
        "varlen": CLEAN,
        "varlen_no_positions": ERROR,
        "mask_4d_float": CLEAN,
        "positions": CLEAN,
        "positions+mask_2d": ATTENTION,
        "mask_2d": ERROR,
        "per_document": CLEAN,
    },
    # It takes two images that touch for one as well, and lets all their tokens see each other.
    "gemma3@images": {
        "varlen": IMAGE_HIDDEN,
        "mask_4d_per_layer": IMAGE_HIDDEN,
        "positions": ATTENTION,
        "positions_sdpa": ATTENTION,
        "mask_2d": ATTENTION,
        "per_document": CLEAN,
        "configured": ("refused", None),
    },
    # Its chunks are lost to a kernel, and its boundaries hold where masks are its own.
    "llama4@images": {"varlen": ("differs", "window"), "mask_4d_per_layer": CLEAN, "positions": CLEAN},
}


@pytest.fixture
def packed(texts: list[bytes]) -> PackedDocuments:
    return pack_documents(texts, 320, torch.device("cpu"), images=True)


@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts(family: Callable[[str], ModelReport], name: str) -> None:
    found = {path: (report.verdict, report.kind) for path, report in family(name).paths.items()}
    assert {path: found[path] for path in EXPECTED[name]} == EXPECTED[name]


SAMPLE = frozenset({"idefics2", "internvl", "llava", "mistral3", "qwen2_vl", "smolvlm"})


@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.sweep) for name in sorted(IMAGE_FAMILIES)],
)
def test_every_family_reads_its_images(name: str, packed: PackedDocuments, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = images.pixels_of

    def others(marker: int, shape: Sequence[int]) -> torch.Tensor:
        return drawn(marker + 1, shape)

    model = build_tiny_model(f"{name}@images", "eager")
    model.register_forward_pre_hook(ImageFeed(model), with_kwargs=True)
    alone = packed.input_ids[1:2, packed.places[3].span]
    other = torch.where(alone < IMAGE_TOKEN, alone + 1, alone)
    with torch.no_grad():
        logits = model(input_ids=alone, use_cache=False).logits
        again = model(input_ids=alone, use_cache=False).logits
        moved = model(input_ids=other, use_cache=False).logits
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(images, "pixels_of", others)
        seen = model(input_ids=alone, use_cache=False).logits
    assert not torch.allclose(logits, seen, atol=1e-3)
    assert torch.equal(logits, again)
    assert not torch.allclose(logits[:, -1], moved[:, -1], atol=1e-3)


def test_images_seen_both_ways_are_refused_by_a_bound_model_which_takes_text_alone() -> None:
    model = build_tiny_model("gemma3@images", "sdpa")
    configure_packing("sdpa", model)
    ids = torch.tensor([[1, 1, 2, 2]])
    given = {
        "input_ids": torch.tensor([[65, 66, 67, 68]]),
        "token_type_ids": torch.zeros_like(ids),
        "_packed_seq_ids": ids,
    }
    with torch.no_grad():
        assert model(**given).logits.shape[:2] == ids.shape
        with pytest.raises(EncodingError, match="tokens of one image see each other"):
            model(**given, pixel_values=torch.zeros(1, 3, 8, 8))


def test_the_rest_are_listed_with_the_reason(texts: list[bytes]) -> None:
    names = {name.removesuffix("@images") for name in model_types("images")}
    assert names >= IMAGE_FAMILIES | OTHER_IMAGES.keys()
    assert not IMAGE_FAMILIES & OTHER_IMAGES.keys()
    rest = sorted(names - IMAGE_FAMILIES)
    report = audit_models([ModelType(f"{name}@images") for name in rest], texts)
    for name, model in zip(rest, report.models, strict=True):
        assert model.error is not None
        assert OTHER_IMAGES.get(name, "in a form that is not made here") in model.error
        assert model.remedy
        assert model.remedy not in model.error


def test_two_images_touch_at_a_boundary_and_no_change_takes_them_away(packed: PackedDocuments) -> None:
    before, after = packed.places[3], packed.places[4]
    assert (before.row, before.stop) == (after.row, after.start)
    row = packed.input_ids[before.row]
    assert (row[before.stop - IMAGE_PLACES : after.start + IMAGE_PLACES] == IMAGE_TOKEN).all()
    changed = packed.with_changed(3, 4)
    assert torch.equal(changed == IMAGE_TOKEN, packed.input_ids == IMAGE_TOKEN)
    assert (changed != packed.input_ids).sum() == before.length + after.length - 2 * IMAGE_PLACES


@pytest.mark.parametrize(
    ("row", "markers"),
    [
        ("ab", []),
        ("ab#", ["b"]),
        ("#ab", ["a"]),
        ("ab#cd", ["b"]),
        ("ab##cd", ["b", "c"]),
        ("a#b##c", ["a", "b", "c"]),
    ],
)
def test_pixels_come_from_the_text_of_their_own_document(row: str, markers: Sequence[str]) -> None:
    tokens = [token for letter in row for token in ([IMAGE_TOKEN] * IMAGE_PLACES if letter == "#" else [ord(letter)])]
    assert images.image_markers(tokens) == list(map(ord, markers))


def test_pixels_of_another_document_are_a_leak(texts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    found = images.image_markers

    def exchanged(row: Sequence[int]) -> list[int]:
        return found(row)[::-1]

    monkeypatch.setattr(images, "image_markers", exchanged)
    path = audit_models([ModelType("llava@images")], texts, paths=["varlen"]).models[0].paths["varlen"]
    assert path.verdict == "leak"
    assert {path.from_document, path.to_document} == {4, 5}


def test_positions_of_images_that_do_not_restart_are_found(texts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    found = ImageFeed.positions_on_axes

    def shifted(feed: ImageFeed, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        axes = found(feed, tokens, positions)
        axes[2, tokens == IMAGE_TOKEN] += 1
        return axes

    monkeypatch.setattr(ImageFeed, "positions_on_axes", shifted)
    path = audit_models([ModelType("qwen2_vl@images")], texts, paths=["varlen"]).models[0].paths["varlen"]
    assert path.verdict == "differs"
