"""Bad settings and models through `unmask finetune`: each refused in one message, which says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, check_last_error, tree_of, write_files

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


BAD_SETTINGS: dict[str, tuple[str, list[str], str]] = {
    # kind, settings, message; t.jsonl is good
    "no such task": ("classification", ["task.name=clasification"],
     "finetune/classification: task.name: there is no task 'clasification'; did you mean classification?"),
    "a setting in place of a task": ("classification", ["task.name=multi_label"],
     "finetune/classification: task.name: there is no task 'multi_label': it is classification, which reads several"),
    "of three other kinds": ("qa", ["task.truncation=false"],
     "finetune/qa: task: truncation is for classification, regression and choice, not for qa: leave it out"),
    "labels of a question": ("qa", ["task.labels=[a, b]"],
     "finetune/qa: task: labels is for classification and tagging"),
    "a column that is not there": ("classification", ["data.columns.text=review"],
     "t.jsonl:1: no column 'review': there is text, label. Name yours with --column text=NAME "),
    "a mistyped column": ("classification", ["data.columns.lable=stars"],
     "finetune/classification: unknown key data.columns.lable; did you mean data.columns.label?"),
    "half a pair": ("classification", ["data.columns.text_a=text"],
     "finetune/classification: data.columns: text_a and text_b belong together: give both"),
    "one label": ("classification", ["task.labels=[y]"],
     "finetune/classification: task.labels=[y]: expected at least 2 values"),
    "a label twice": ("classification", ["task.labels=[y, y]"],
     "finetune/classification: task: labels names 'y' twice"),
    "labels that are not all": ("classification", ["task.labels=[y, z]"],
     "t.jsonl:1: the label 'n' is none of the known ones (y, z): fix it, or train with it, in a row of data.train or"),
    "longer than the model": ("classification", ["task.max_length=64"],
     "task.max_length 64 is over the 40 positions of "),
    "nothing may be cut": ("classification", ["task.max_length=6", "task.truncation=false"],
     "t.jsonl:1: 10 tokens, over task.max_length 6, and task.truncation is false: shorten the text, raise "),
    "dev of other labels": ("classification", ["data.dev=dev.tsv"],
     "dev.tsv:2: the label 'odd' is none of the known ones (n, y)"),
    "a text as its label": ("classification", ["data.columns.label=text"],
     "t.jsonl:1: columns.text and columns.label are both column 'text', so the texts would be their own "
     "labels: name another column for one of them"),
    "words as their tags": ("tagging", ["data.train=t.conll", "data.columns.tags=1"],
     "t.conll: columns.tokens and columns.tags are both column 1, so the words would be their own tags: "),
    "tags as their words": ("tagging", ["data.train=t.conll", "data.columns.tokens=2"],
     "t.conll: columns.tokens and columns.tags are both column 2"),
    "forms as their tags": ("tagging", ["data.train=t.conllu", "data.columns.tags=form"],
     "t.conllu: columns.tokens and columns.tags are both column 2"),
    "a list as its tags": ("tagging", ["data.columns.tags=tokens"],
     "t.jsonl:1: columns.tokens and columns.tags are both column 'tokens'"),
    "dev of one column": ("tagging", ["data.dev=t.conll", "data.dev_columns.tags=1"],
     "t.conll: columns.tokens and columns.tags are both column 1"),
    "dev of other columns": ("classification", ["data.dev=other.tsv"],
     "other.tsv:2: no column 'text': there is review, label. Name yours with --column text=NAME (in a recipe "
     "data.columns.text; data.dev_columns and data.test_columns where these files differ)"),
    "test of a column that is not there": ("classification", ["data.test=t.jsonl", "data.test_columns.text=review"],
     "t.jsonl:1: no column 'review': there is text, label. Name yours with --column text=NAME (in a recipe "
     "data.columns.text; data.dev_columns and data.test_columns where these files differ)"),
    "dev of other choices": ("choice", ["data.dev=other.csv"],
     "other.csv:2: no column 'choices': expected context and choices; there is context, choice0, choice1, label. Name "
     "yours with --column context=NAME and --column choices=NAME (in a recipe data.columns.context and "
     "data.columns.choices; data.dev_columns and data.test_columns where these files differ), where choices is the "
     "column of a list, or, where each choice has a column of its own, [choice_a,choice_b]"),
    "dev that is not there": ("classification", ["data.dev=gone.tsv"], "gone.tsv: cannot be read: No such file"),
    "no model": ("classification", ["init_from=gone"],
     "gone: no such directory: expected a model's, or that of the run"),
    "layers of what moves": ("tagging", ["task.feature_layers=embeddings"],
     "finetune/tagging: task.feature_layers=embeddings reads frozen features: set freeze_layers=all"),
    "layers under a BiLSTM that moves": ("tagging", ["task.feature_layers=embeddings", "task.encoder_top=bilstm"],
     "finetune/tagging: task: encoder_top bilstm and feature_layers, of a frozen encoder, do not go together: keep "),
    "layers of BERT for texts": ("classification", ["task.feature_layers=embeddings"],
     "task.feature_layers=embeddings: texts are classified from chosen layers of an ELMo alone, and init_from's "),
    "layers for a question": ("qa", ["task.feature_layers=embeddings"],
     "finetune/qa: task: feature_layers is for classification, regression and tagging, not for qa: leave it out"),
    "a penalty of no mixture": ("classification", ["task.mixture_penalty=.1"],
     "task.mixture_penalty 0.1 is of the weights by which layers are mixed, and none are mixed here: leave it out"),
    "a BiLSTM on what moves": ("tagging", ["task.tagging_head=bilstm"],
     "finetune/tagging: task.tagging_head=bilstm reads frozen features: set freeze_layers=all"),
    "the next token of BERT": ("classification", ["task.auxiliary_lm_weight=.5"],
     "task.auxiliary_lm_weight 0.5 asks the encoder to predict the next token, and the tokens of init_from's (bert) "),
    "a head of another kind": ("classification", ["keep_head=true", "init_from={runs}/qa"],
     "{runs}/qa/model has a head for question_answering, and classification needs one for sequence_classification"),
    "a head of other labels": ("classification",
     ["keep_head=true", "init_from={runs}/classification", "data.train=dev.tsv"],
     "{runs}/classification/model has the labels n, y, and dev.tsv has even, odd: to keep the head give task.labels"),
    "no head to keep": ("classification", ["keep_head=true"],
     "{base} (BertModel) is an encoder without a head: expected a fine-tuned model, as "),
    "nothing to compare on": ("classification", ["search.restarts=2"],
     "search compares runs on dev: give data.dev, or leave out search"),
    "an ensemble of one": ("classification", ["search.ensemble=true", "data.dev=t.jsonl"],
     "finetune/classification: search: ensemble needs several runs of one configuration: set restarts"),
    "a rate twice": ("qa", ["search.learning_rates=[1e-3, 1e-3]"],
     "finetune/qa: search: learning_rates holds 0.001 twice"),
    "layers of a search": ("qa", ["search.transfer_layers=[0, 5]", "data.dev=t.jsonl"],
     "transfer_layers=5: the model has 2 layers: expected a number from 0 to 2"),
    "a search from nowhere": ("qa", ["search.checkpoints=[{base}, gone]", "data.dev=t.jsonl"],
     "gone: no such directory"),
    "no such metric": ("qa", ["train.metric=acuracy", "data.dev=t.jsonl"],
     "train.metric=acuracy: the task measures loss, "),
    "no such metric in a search": ("choice", ["train.metric=f1", "search.restarts=2", "data.dev=t.jsonl"],
     "train.metric=f1: the task measures loss, accuracy: name one of them"),
    "patience for nothing": ("qa", ["train.patience=2", "train.eval_every=1"],
     "finetune/qa: train.patience 2 waits for better figures on data.dev: give that file"),
    "a metric of nothing": ("qa", ["train.metric=f1"],
     "finetune/qa: train.metric f1 chooses the best checkpoint by a figure on data.dev: give that file"),
    "thresholds of nothing": ("classification", ["task.thresholds=dev", "task.multi_label=true"],
     "finetune/classification: task.thresholds=dev is chosen on data.dev: give that file"),
    "a temperature of nothing": ("classification", ["task.calibration=temperature"],
     "finetune/classification: task.calibration=temperature is chosen on data.dev: give that file"),
    "a model that is divided": ("classification", ["train.shard=true"],
     "finetune/classification: train.shard=true is for pre-training: fine-tune without it, on one device or several"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "words", "message"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings_are_refused(
    unmask: Command, place: Path, task_models: Any, kind: str, words: list[str], message: str
) -> None:
    others = {
        "dev.tsv": "text\tlabel\na\todd\nb\teven\n",
        "t.conll": "Ada B-PER\nran O\n\n",
        "t.conllu": "1\tAda\tAda\tPROPN" + 6 * "\t_" + "\n\n",
        "other.tsv": "review\tlabel\na\tn\n",
        "other.csv": "context,choice0,choice1,label\na,b,c,0\n",
    }
    write_files({"t.jsonl": task_models.examples[kind], **others})
    given = [word.format(base=task_models.base, runs=task_models.runs) for word in words]
    result = unmask("finetune", f"finetune/{kind}", *task_models.words(kind, "t.jsonl", *given), "--out", "run")
    check_last_error(result, message.format(base=task_models.base, runs=task_models.runs))
    assert tree_of(place).keys() == {"t.jsonl", *others}


def test_a_run_that_diverges_says_so(unmask: Command, place: Path, task_models: Any) -> None:
    write_files({"t.jsonl": task_models.examples["classification"]})
    changes = ("optimizer.learning_rate=1e30", "train.steps=8", "schedule.warmup_ratio=0", "train.log_every=1")
    words = task_models.words("classification", "t.jsonl", *changes)
    result = unmask("finetune", "finetune/classification", *words, "--out", "run")
    check_last_error(result, "the loss or its gradient is not finite at step ")
