"""A two-tower ranking model: queries and documents are mapped to vectors whose cosine says how well they match.

Each example has one query, its document and some others that do not match it, so the examples of a batch stay
independent of each other. Reference: Huang et al., CIKM 2013 (DSSM: 30,000 letter trigrams, layers of 300, 300 and 128,
four documents that do not match, cosine scaled before the softmax).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from optimus_workers.data.examples import TensorExamples
from optimus_workers.task import OptimizerSpec, TrainingTask

Pairs = tuple[Tensor, Tensor]
"""Terms of queries (n, terms), and of 1 + others documents each (n, 1 + others, terms), the matching one first."""


class TwoTower(nn.Module):
    """Scores (n, 1 + others): the scaled cosine of each query with its documents."""

    def __init__(self, vocabulary: int, widths: tuple[int, ...] = (300, 300, 128), sharpness: float = 10.0) -> None:
        super().__init__()
        self.query, self.document = _tower(vocabulary, widths), _tower(vocabulary, widths)
        self.sharpness = sharpness

    def forward(self, batch: Pairs) -> Tensor:
        queries, documents = batch
        n, candidates, terms = documents.shape
        vectors = self.document(documents.reshape(n * candidates, terms)).view(n, candidates, -1)
        return self.sharpness * functional.cosine_similarity(self.query(queries).unsqueeze(1), vectors, dim=2)


def _tower(vocabulary: int, widths: tuple[int, ...]) -> nn.Module:
    """A bag of terms, summed (the first layer on a sparse count vector), then dense layers with tanh."""
    layers: list[nn.Module] = [nn.EmbeddingBag(vocabulary, widths[0], mode="sum"), Shift(widths[0]), nn.Tanh()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    nn.init.xavier_uniform_(layers[0].weight)  # type: ignore[arg-type]
    return nn.Sequential(*layers)


class Shift(nn.Module):
    """The bias of the first layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


@dataclass(frozen=True, slots=True)
class Corpus:
    """Made-up texts: every topic prefers some of the terms; a query matches the document of its own topic."""

    n_examples: int
    vocabulary: int
    terms: int
    others: int
    n_topics: int
    seed: int


def two_tower(
    n_examples: int = 4096,
    vocabulary: int = 2000,
    terms: int = 12,
    others: int = 4,
    n_topics: int = 20,
    width: int = 64,
    learning_rate: float = 0.01,
    global_batch_size: int = 96,
    micro_batches: int = 12,
    data_seed: int = 0,
) -> TrainingTask:
    """The two-tower model on a made-up corpus; `test_accuracy`: how often the matching document comes first."""
    corpus = Corpus(n_examples, vocabulary, terms, others, n_topics, data_seed)
    return TrainingTask(
        model=partial(TwoTower, vocabulary, (width, width, width // 2)),
        loss=match_loss,
        dataset=TensorExamples(partial(texts, corpus, draw=0)),
        collate=TensorExamples.collate,
        optimizer=OptimizerSpec(kind="adamw", learning_rate=learning_rate),
        global_batch_size=global_batch_size,
        micro_batches=micro_batches,
        evaluate=partial(_evaluate, corpus),
    )


def match_loss(model: nn.Module, batch: Pairs) -> Tensor:
    """Mean cross-entropy of picking the matching document, a scalar."""
    scores = model(batch)
    return functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64, device=scores.device))


def _evaluate(corpus: Corpus, model: nn.Module) -> dict[str, float]:
    batch = texts(corpus, draw=1)
    scores = model(batch)
    accuracy = (scores.argmax(dim=1) == 0).float().mean().item()
    return {"test_accuracy": accuracy, "test_loss": match_loss(model, batch).item()}


@cache
def texts(corpus: Corpus, *, draw: int) -> Pairs:
    """The examples; another `draw` gives others of the same topics."""
    chance = torch.Generator().manual_seed(2 * corpus.seed)
    preferences = torch.rand(corpus.n_topics, corpus.vocabulary, generator=chance) ** 8  # few terms are likely
    chance = torch.Generator().manual_seed(2 * (corpus.seed + 1009 * draw) + 1)
    topics = torch.randint(corpus.n_topics, (corpus.n_examples, 1 + corpus.others), generator=chance)
    same = topics[:, 1:] == topics[:, :1]
    topics[:, 1:] = torch.where(same, (topics[:, 1:] + 1) % corpus.n_topics, topics[:, 1:])
    documents = torch.multinomial(preferences[topics.flatten()], corpus.terms, generator=chance)
    queries = torch.multinomial(preferences[topics[:, 0]], corpus.terms, generator=chance)
    return queries, documents.view(corpus.n_examples, 1 + corpus.others, corpus.terms)
