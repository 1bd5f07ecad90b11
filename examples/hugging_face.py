"""Fine-tuning a Hugging Face model for Optimus: needs `pip install transformers`, and nothing is downloaded by default.

Submit it from this folder:  optimus submit --task hugging_face:task --set weights=/models/distilbert --watch
Without `weights` (a folder that `save_pretrained` wrote) it trains a small BERT from scratch on made-up sentences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from optimus_workers.task import OptimizerSpec, TrainingTask

VOCABULARY, LENGTH = 100, 12


class Sentences:
    """Class 1 has more even words than odd ones: put your own tokenised texts here."""

    def __init__(self, n_examples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(VOCABULARY, (n_examples, LENGTH + 1), generator=generator)
        self.labels = ((self.words % 2 == 0).sum(dim=1) > LENGTH // 2).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def model(weights: str | None) -> nn.Module:
    from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

    if weights is not None:
        pretrained: nn.Module = AutoModelForSequenceClassification.from_pretrained(weights, num_labels=2)
        return pretrained
    size: dict[str, int] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=VOCABULARY, intermediate_size=64)
    config.update(size)
    return BertForSequenceClassification(config)


def evaluate(model: Any) -> dict[str, float]:
    test = Sentences(500, seed=1)
    return {"test_accuracy": (model(test.words).logits.argmax(1) == test.labels).float().mean().item()}


def task(weights: str | None = None, learning_rate: float = 3e-3) -> TrainingTask:
    return TrainingTask(
        model=lambda: model(weights),
        loss=lambda model, batch: model(**batch).loss,
        dataset=Sentences(2000, seed=0),
        optimizer=OptimizerSpec(kind="adamw", learning_rate=learning_rate),
        global_batch_size=120,
        evaluate=evaluate,
    )
