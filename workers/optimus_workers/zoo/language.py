"""Language models: tokens (n, length) in, logits of each next token (n, length, vocabulary) out.

References: Zaremba et al. 2014 (LSTM; medium: 650 units, large: 1500); Radford et al. 2019 (the transformer of GPT-2:
norms before the branches, learned positions, output weights tied to the embedding).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from optimus_workers.errors import TaskError


class LstmLanguageModel(nn.Module):
    """An embedding, `depth` LSTM layers of `width` units with dropout between them, and a linear layer."""

    def __init__(self, vocabulary: int, width: int = 650, depth: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, depth, dropout=dropout if depth > 1 else 0.0, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, vocabulary)
        for weights in self.parameters():
            nn.init.uniform_(weights, -(width**-0.5), width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.dropout(self.embedding(tokens)))
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


class Transformer(nn.Module):
    """A decoder of `depth` blocks: no token sees a later one. `width` must be a multiple of `heads`."""

    def __init__(
        self, vocabulary: int, length: int, width: int = 256, depth: int = 4, heads: int = 4, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if width % heads:
            raise TaskError(f"width ({width}) must be a multiple of heads ({heads})")
        self.length = length
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.length:
            raise ValueError(f"{length} tokens are more than the {self.length} that this model has positions for")
        places = torch.arange(length, device=tokens.device)
        hidden = self.norm(self.blocks(self.tokens(tokens) + self.positions(places)))
        return functional.linear(hidden, self.tokens.weight)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        hidden = [nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)]
        self.mlp = nn.Sequential(*hidden, nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.norm1(x))
        added: Tensor = x + self.mlp(self.norm2(x))
        return added

    def _attention(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        # three of (n, heads, length, width / heads)
        query, key, value = self.projections(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        drop = self.drop if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=drop, is_causal=True)
        return functional.dropout(self.attended(mixed.transpose(1, 2).reshape(n, length, width)), drop)


def next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy (nats) of every token of `batch` (n, length + 1) after the first, a scalar."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
