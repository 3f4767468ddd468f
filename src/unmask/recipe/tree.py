"""The whole settings tree: everything that a recipe may set.

A recipe is a YAML file that states what differs from the defaults here; `unmask.recipe.loading` reads it. The settings
of each part are beside its code, in `*/settings.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from unmask.config import Settings, as_given
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.models.elmo.settings import ElmoModelSettings
from unmask.models.settings import DropoutSettings, ModelSettings
from unmask.models.sizes import AnyModelSettings
from unmask.objectives.settings import CAUSAL_SHARE, MaskedLMSettings
from unmask.objectives.table import AnyObjective
from unmask.packing.settings import PackingSettings, Phases, PhaseSettings
from unmask.recipe.pairings import contradiction, why_not_tokenized
from unmask.tasks.settings import DataSettings, EvaluationSettings, TaskSettings
from unmask.tokenization.settings import TokenizerSettings
from unmask.training.settings import Cut, OptimizerSettings, ScheduleSettings, SearchSettings, TrainSettings

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16"]


class PretrainRecipe(Settings):
    """Everything that decides a pre-training run."""

    program: ClassVar[str] = "pretrain"
    """The command that runs it."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Initial weights, order of the text, masks and dropout all follow from it."""
    device: Device = "auto"
    """`auto`: a GPU where there is one."""
    precision: Precision = "auto"
    """`bf16`: matrix products in bfloat16, weights in float32; `auto`: bf16 where the device supports it."""

    tokenizer: str | TokenizerSettings = TokenizerSettings()
    """A tokenizer's directory, or the settings of one to train on the corpus. A store or `init_from` brings its own:
    beside a store these settings have no effect, and a run's own recipe leaves them out."""
    corpus: list[str] | None = None
    """Files, folders and globs of text, or a mixture; a store is made from them first, in the run directory."""
    reading: ReadingSettings = ReadingSettings()
    cleaning: CleaningSettings = CleaningSettings()
    store: str | None = None
    """A store made by `unmask prepare`, in place of a corpus."""
    held_out: float = Field(default=0.01, ge=0, lt=1)
    """Share of documents held out for evaluation, chosen by the SHA-256 of their text; 0: nothing is evaluated
    but `eval.pairs`."""
    init_from: str | None = None
    """A model directory whose weights the run starts from, in place of random ones."""

    model: AnyModelSettings = ModelSettings()
    objective: AnyObjective = MaskedLMSettings()
    packing: PackingSettings = PackingSettings()
    phases: Phases = ()
    """Parts of the run with sequences or batches of their own; empty: the whole run follows `packing` and `train`."""
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    train: TrainSettings
    eval: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="before")
    @classmethod
    def _one_path_is_a_list(cls, values: Any) -> Any:
        """`corpus=FILE` on a command line is one path."""
        if isinstance(values, dict) and isinstance(values.get("corpus"), str):
            return {**values, "corpus": [values["corpus"]]}
        return values

    _as_given = field_validator("tokenizer", "model")(as_given)

    def as_written(self) -> dict[str, Any]:
        """Every key; but of tokenizer and model beside `init_from` only those that are given, and nothing of a
        tokenizer beside a store, which has its own."""
        values = super().as_written()
        for name, part in (("tokenizer", self.tokenizer), ("model", self.model)):
            if self.init_from is not None and isinstance(part, BaseModel):
                values[name] = part.model_dump(mode="json", exclude_unset=True)
        if self.store is not None:
            del values["tokenizer"]
        if isinstance(self.model, ElmoModelSettings):
            values["model"]["architecture"] = (
                self.model.architecture
            )  # by which it is distinguished from other settings
        return values

    def as_compared(self) -> dict[str, Any]:
        values = super().as_compared()
        if self.store is not None:  # what a recipe says of a tokenizer is for training one on a corpus
            del values["tokenizer"]
        return values

    @model_validator(mode="after")
    def _agrees(self) -> PretrainRecipe:
        if (self.corpus is None) == (self.store is None):
            both = "both are given" if self.store is not None else "neither is given"
            raise ValueError(f"the text comes from `corpus` (files) or from `store` (made by `unmask prepare`): {both}")
        if self.store is not None and isinstance(self.tokenizer, str):
            raise ValueError(f"store={self.store!r} brings its own tokenizer: leave out tokenizer={self.tokenizer!r}")
        if self.corpus is not None and "-" in self.corpus:
            raise ValueError(
                "corpus=-: standard input cannot be read again, for the tokenizer, the store and when the run is "
                "resumed; make a store of it with `unmask prepare -`, and give store="
            )
        if self.store is not None and (self.reading, self.cleaning) != (ReadingSettings(), CleaningSettings()):
            raise ValueError("reading and cleaning are for a `corpus`: the text of a store has been read and cleaned")
        if self.init_from is None:  # else `unmask.pretraining.start.open_start` checks against that model
            wrong = contradiction(self.objective, self.model.architecture, self.model.causal, self.packing)
            if wrong is not None:
                raise ValueError(wrong)
            if self.corpus is not None and isinstance(self.tokenizer, TokenizerSettings):
                wrong = why_not_tokenized(self.objective, self.tokenizer.kind, self.tokenizer.segmenter)
                if wrong is not None:
                    raise ValueError(wrong)
        self._check_phases()
        if self.packing.format == "stream" and self.packing.copies is not None:
            raise ValueError("packing.format=stream reads the documents as they are: leave out packing.copies")
        if self.train.patience is not None or self.train.metric is not None:
            raise ValueError("train.patience and train.metric are for fine-tuning: leave them out")
        if self.train.eval_every == "epoch":
            raise ValueError("train.eval_every=epoch is for fine-tuning: give a number of steps")
        if self.objective.is_static and self.packing.copies is not None:
            raise ValueError("objective.masking_mode=static shows ten fixed copies: leave out packing.copies")
        return self

    def _check_phases(self) -> None:
        begins, is_masked = 0.0, False
        for number, phase in enumerate(self.all_phases):
            phase.packing(self.packing)
            first, last = (
                self.objective.rates(progress, phase.causal_share).get(CAUSAL_SHARE)
                for progress in (begins, phase.until)
            )
            if phase.causal_share and first is None:
                raise ValueError(
                    f"phases.{number}.causal_share={phase.causal_share:g}: objective.causal_share is 0 here, or this "
                    "objective reads nothing from left to right then: give objective.name=masked_lm and "
                    "objective.causal_share, of which a phase may have another"
                )
            is_masked |= last != 1
            begins = phase.until
        if not is_masked:
            raise ValueError(
                "objective.causal_share=1: every sequence would be read from left to right and none masked: take less, "
                "or give the last phase less, such as phases.1.causal_share=0"
            )
        if self.phases and self.packing.format == "stream":
            raise ValueError(
                "packing.format=stream and phases do not go together: a lane's memory is carried from window to "
                "window; leave out phases"
            )
        if self.phases and self.train.minutes is not None:
            raise ValueError(
                "train.minutes and phases do not go together: how many steps a phase has would depend on how fast they "
                "are; give the budget as steps, tokens or epochs"
            )

    @property
    def all_phases(self) -> tuple[PhaseSettings, ...]:
        """The phases of the run: one, which is as `packing` and `train` say, where none are given."""
        return self.phases or (PhaseSettings(until=1),)

    @property
    def first_rates(self) -> dict[str, float]:
        """What the objective does in the first step; see `ObjectiveSettings.rates`."""
        return self.objective.rates(0.0, self.all_phases[0].causal_share)

    @property
    def mixes_directions(self) -> bool:
        """Whether a batch may have sequences that are read from left to right beside others."""
        shares = (self.objective.rates(0.0, phase.causal_share).get(CAUSAL_SHARE, 0.0) for phase in self.all_phases)
        return any(0 < share < 1 for share in shares)

    def cut_of(self, phase: PhaseSettings, number: int = 0) -> Cut:
        """How a phase's steps are cut; the number is for the names of keys."""
        own, batch_size = f"phases.{number}", phase.batch_size or self.train.batch_size
        return Cut(
            batch_size,
            min(phase.micro_batch_size or self.train.micro_batch_of(batch_size), batch_size),
            phase.packing(self.packing).max_length,
            f"{own}.micro_batch_size" if phase.micro_batch_size else "train.micro_batch_size",
            f"{own}.max_length" if phase.max_length else "packing.max_length",
        )

    @property
    def cuts(self) -> list[Cut]:
        """How the steps of each phase are cut."""
        return [self.cut_of(phase, number) for number, phase in enumerate(self.all_phases)]

    @property
    def longest(self) -> tuple[str, int]:
        """The key that allows the longest sequences, in any phase, and their length in tokens."""
        longest = max(self.cuts, key=lambda cut: cut.longest)
        return longest.length_key, longest.longest


class FinetuneRecipe(Settings):
    """Everything that decides a fine-tuning run."""

    program: ClassVar[str] = "finetune"
    """The command that runs it."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """The new head, the order of the examples and dropout all follow from it."""
    device: Device = "auto"
    precision: Precision = "auto"

    init_from: str
    """The pre-trained model's directory, or the run that made it; the first of `search.checkpoints` where these are
    given in its place."""
    from_scratch: bool = False
    """True: only the architecture and the tokenizer of `init_from` are used and all weights are random (a baseline)."""
    keep_head: bool = False
    """True: the head of `init_from` is kept too, for fine-tuning on one task after another."""
    transfer_layers: int | None = Field(default=None, ge=0)
    """How many layers above the embeddings are taken from `init_from`, the others random (Radford et al. 2018, section
    5); null takes all, and the pooler."""
    freeze_layers: int | Literal["all"] | None = None
    """0 freezes the embeddings, n also the first n layers, `all` the whole encoder; null nothing."""
    model: DropoutSettings = DropoutSettings()

    task: TaskSettings = TaskSettings()
    data: DataSettings
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=5e-5)
    schedule: ScheduleSettings = ScheduleSettings(warmup_ratio=0.1)
    train: TrainSettings = TrainSettings(epochs=3, batch_size=32)
    search: SearchSettings = SearchSettings()

    @property
    def checkpoints(self) -> list[str]:
        """The models that its runs start from."""
        return self.search.checkpoints or [self.init_from]

    @model_validator(mode="before")
    @classmethod
    def _examples_are_asked_for_by_their_key(cls, values: Any) -> Any:
        return {"data": {}, **values} if isinstance(values, dict) else values

    @model_validator(mode="before")
    @classmethod
    def _the_first_checkpoint_is_where_it_starts(cls, values: Any) -> Any:
        search = values.get("search") if isinstance(values, dict) else None
        checkpoints = search.get("checkpoints") if isinstance(search, dict) else None
        if not checkpoints:
            return values
        given, of = values.get("init_from"), checkpoints if isinstance(checkpoints, list) else [checkpoints]
        if given is not None and given not in of:
            raise ValueError(f"init_from {given} is none of search.checkpoints, which are in its place: leave it out")
        return {**values, "init_from": str(of[0])}

    def as_written(self) -> dict[str, Any]:
        """Every key; but of the columns of dev and test only those that are given, since the others are as in train."""
        values = super().as_written()
        for name in ("dev_columns", "test_columns"):
            values["data"][name] = getattr(self.data, name).model_dump(mode="json", exclude_unset=True)
        return values

    @model_validator(mode="after")
    def _agrees(self) -> FinetuneRecipe:
        if self.train.patience is not None and self.data.dev is None:
            raise ValueError(
                f"train.patience {self.train.patience} waits for better figures on data.dev: give that file"
            )
        if self.train.metric is not None and self.data.dev is None:
            raise ValueError(
                f"train.metric {self.train.metric} chooses the best checkpoint by a figure on data.dev: give that file"
            )
        if self.task.thresholds == "dev" and self.data.dev is None:
            raise ValueError("task.thresholds=dev is chosen on data.dev: give that file")
        if self.task.calibration is not None and self.data.dev is None:
            raise ValueError(f"task.calibration={self.task.calibration} is chosen on data.dev: give that file")
        if self.train.shard:
            raise ValueError("train.shard=true is for pre-training: fine-tune without it, on one device or several")
        if self.from_scratch and (self.transfer_layers, self.freeze_layers, self.keep_head) != (None, None, False):
            raise ValueError(
                "from_scratch takes no weights of init_from: leave out transfer_layers, freeze_layers and keep_head"
            )
        if self.task.reads_features and self.freeze_layers != "all":
            key = "tagging_head" if self.task.tagging_head == "bilstm" else "feature_layers"
            given = f"task.{key}={getattr(self.task, key)}"
            raise ValueError(f"{given} reads frozen features: set freeze_layers=all")
        return self


class CorpusOptions(Settings):
    """What the command line may set for reading and cleaning text, outside a recipe."""

    reading: ReadingSettings = ReadingSettings()
    cleaning: CleaningSettings = CleaningSettings()


class TokenizerOptions(CorpusOptions):
    """What the command line may set for a tokenizer to train."""

    tokenizer: TokenizerSettings = TokenizerSettings()
