"""Custom modules whose isolation is known by construction get the verdict that they deserve."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from neatpack.kernels_bridge.audit.paths import PATHS
from neatpack.kernels_bridge.audit.remedies import GIVE_A_BATCH
from neatpack.kernels_bridge.audit.report import Report
from neatpack.kernels_bridge.audit.run import audit_models
from neatpack.kernels_bridge.audit.surroundings import audit_environment
from neatpack.kernels_bridge.audit.table import table_lines
from neatpack.kernels_bridge.audit.targets import Builder
from neatpack.kernels_bridge.terminal import plain
from tests.audit import models, planted
from tests.audit.conftest import Audit


@pytest.mark.parametrize("model", [models.TokenByToken, models.StartsAtZero])
def test_a_model_without_any_mixing_is_never_clean(texts: list[bytes], model: type[nn.Module]) -> None:
    report = audit_models([Builder("custom", model)], texts, keep_weights=True).models[0]
    kinds = {(path.verdict, path.kind) for name, path in report.paths.items() if name != "configured"}
    assert kinds == {("inconclusive", "no_mixing")}
    assert report.paths["mask_2d"].remedy == "redraw or train the weights that let tokens mix"
    assert not report.is_clean


def test_what_declares_nothing_and_names_nothing_is_refused(audit: Audit) -> None:
    assert audit(models.TokenByToken).paths["configured"].verdict == "refused"


def test_a_leak_behind_a_projection_of_zeros_is_found_all_the_same(audit: Audit) -> None:
    path = audit(models.StartsAtZero).paths["configured"]
    assert (path.verdict, path.kind) == ("leak", "kwargs_dropped")


def test_a_leak_is_found_with_its_kind_and_place(audit: Audit) -> None:
    path = audit(models.Leaks).paths["mask_2d"]
    assert (path.verdict, path.kind) == ("leak", "attention")
    assert path.where == "attention (CausalAttention)"
    assert path.perturbation is not None
    assert path.perturbation > 1e-2
    assert path.gradient is not None
    assert path.gradient > 1e-2
    assert path.from_document is not None
    assert path.to_document is not None
    assert path.from_document < path.to_document


def test_dropped_arguments_are_listed_and_named_as_the_cause(audit: Audit) -> None:
    path = audit(models.Leaks).paths["varlen"]
    assert (path.verdict, path.kind) == ("leak", "kwargs_dropped")
    assert path.dropped == ("position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    assert "does not take cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k." in path.message


def test_a_leak_past_ids_that_were_read_is_named_by_its_mechanism(audit: Audit) -> None:
    path = audit(models.ReadsIdsHalf).paths["configured"]
    assert (path.verdict, path.kind, path.where) == ("leak", "convolution", "conv (Conv1d)")
    assert path.dropped == ("position_ids",)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_padding_that_is_no_number_is_not_clean(audit: Audit, value: float) -> None:
    class Padded(models.ReadsIds):
        def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
            logits = super().forward(input_ids, _packed_seq_ids)
            return logits if _packed_seq_ids is None else logits.masked_fill((_packed_seq_ids == 0)[..., None], value)

    path = audit(Padded).paths["configured"]
    assert (path.verdict, path.kind) == ("inconclusive", "not_finite")
    assert "at padding" in path.message


def test_swallowed_arguments_are_the_cause_as_well(audit: Audit) -> None:
    report = audit(models.IgnoresTheMask)
    for name in ("varlen", "seq_idx_on_native", "mask_4d_float", "positions"):
        path = report.paths[name]
        assert (path.verdict, path.kind, path.dropped) == ("leak", "kwargs_dropped", ()), name


def test_a_declared_model_is_clean_once_configured_and_leaks_by_habit(audit: Audit) -> None:
    report = audit(models.ReadsIds)
    assert report.is_clean
    assert report.configured.consumer == "declared"
    assert report.configured.packed_mask_type == "document_ids"
    assert report.paths["mask_2d"].verdict == "leak"
    assert report.paths["mask_2d"].remedy == "use configured, per_document"


def test_a_false_declaration_is_seen_through(audit: Audit) -> None:
    report = audit(models.DeclaresFalsely)
    path = report.paths["configured"]
    assert (path.verdict, path.kind) == ("leak", "kwargs_dropped")
    assert not report.is_clean


@pytest.mark.parametrize(
    ("model", "kind", "where"),
    [
        (models.Convolves, "convolution", "conv (Conv1d)"),
        (models.Recurs, "recurrence", "state (GRU)"),
        (models.JoinsRows, "mixing", "the model itself (JoinsRows)"),
    ],
)
def test_each_mechanism_is_named(audit: Audit, model: type[nn.Module], kind: str, where: str) -> None:
    path = audit(model).paths["mask_2d"]
    assert (path.verdict, path.kind, path.where) == ("leak", kind, where)


def test_an_embedding_of_another_class_is_watched_where_it_is_named(audit: Audit) -> None:
    path = audit(models.NamesItsEmbedding).paths["mask_2d"]
    assert path.gradient is not None
    assert path.gradient > 1e-2
    assert path.own_gradient is not None
    assert path.own_gradient > 1e-2


def test_lost_causality_without_a_leak_is_a_difference(audit: Audit) -> None:
    path = audit(models.LooksAhead).paths["configured"]
    assert (path.verdict, path.kind) == ("differs", "causality")


def test_noise_is_no_leak(audit: Audit) -> None:
    path = audit(models.DrawsNoise).paths["mask_2d"]
    assert (path.verdict, path.perturbation, path.gradient) == ("differs", 0.0, 0.0)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (models.Constant, "constant"),
        (models.NotANumber, "not_finite"),
        (models.NoGradient, "gradient_unseen"),
        (models.NoEmbedding, "gradient_unseen"),
    ],
)
def test_what_could_not_be_seen_is_never_clean(audit: Audit, model: type[nn.Module], kind: str) -> None:
    report = audit(model)
    assert report.error is None
    for name, path in report.paths.items():
        if name != "configured":
            assert (path.verdict, path.kind) == ("inconclusive", kind), name
    assert not report.is_clean


def test_a_leak_outweighs_an_unseen_gradient(audit: Audit) -> None:
    class LeaksUnwatched(models.Leaks):
        def forward(self, input_ids: Tensor) -> Tensor:
            return self.answer(self.attention(self.embed.weight[input_ids]))

    assert audit(LeaksUnwatched).paths["mask_2d"].verdict == "leak"


@pytest.mark.parametrize(("model", "words"), [(models.Raises, "cannot answer"), (models.ReturnsText, "no logits")])
def test_a_model_that_cannot_answer_is_reported(audit: Audit, model: type[nn.Module], words: str) -> None:
    report = audit(model)
    assert report.error is not None
    assert words in report.error
    assert report.paths == {}
    assert report.remedy == GIVE_A_BATCH
    assert not report.is_clean


def test_a_model_that_takes_other_rows_than_the_usual_ones_is_audited_on_those(audit: Audit) -> None:
    report = audit(lambda: planted.TakesWholeBlocks(planted.Attention()))
    assert report.is_clean
    assert "each document alone: declined (ValueError)" in report.paths["configured"].untried
    assert report.paths["mask_2d"].verdict == "error"
    leaking = audit(lambda: planted.TakesWholeBlocks(planted.Attention(planted.shifted_ids(1))))
    assert leaking.paths["configured"].verdict == "leak"


def test_a_model_that_fails_once_it_is_configured_is_told_to_be_given_a_batch(audit: Audit) -> None:
    class NeedsLabelsToPack(planted.Model):
        def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
            if _packed_seq_ids is not None:
                raise ValueError("give labels where documents are packed")
            return super().forward(input_ids)

    report = audit(lambda: NeedsLabelsToPack(planted.Attention()))
    path = report.paths["configured"]
    assert (path.verdict, path.remedy) == ("error", GIVE_A_BATCH)
    assert path.message == "ValueError: give labels where documents are packed"
    shown = " ".join(plain(table_lines(Report(audit_environment(), (report,)), 200)).split())
    assert GIVE_A_BATCH in shown


def test_a_builder_that_exits_is_reported_as_the_error_of_its_model(audit: Audit) -> None:
    def exits() -> nn.Module:
        raise SystemExit(2)

    assert audit(exits).error == "SystemExit: 2"


def test_a_forward_that_exits_is_an_error_of_its_path(audit: Audit) -> None:
    class Exits(models.ReadsIds):
        def forward(self, input_ids: Tensor, _packed_seq_ids: Tensor | None = None) -> Tensor:
            if _packed_seq_ids is not None:
                raise SystemExit("no ids, please")
            return super().forward(input_ids)

    paths = audit(Exits).paths
    assert (paths["configured"].verdict, paths["configured"].message) == ("error", "SystemExit: no ids, please")
    assert paths["per_document"].verdict == "clean"


@pytest.mark.parametrize("back", [1, 2, 3, 4])
def test_documents_that_meet_only_in_what_is_kept_from_call_to_call_are_found(texts: list[bytes], back: int) -> None:
    target = Builder("custom", lambda: models.Remembers(back))
    path = audit_models([target], texts, paths=["per_document"]).models[0].paths["per_document"]
    assert (path.verdict, path.gradient) == ("leak", 0.0)
    assert path.from_document is not None
    assert path.to_document == path.from_document + back


def test_every_path_is_reported_in_order(audit: Audit) -> None:
    assert list(audit(models.TokenByToken).paths) == [path.name for path in PATHS]
