"""The models of the studies: transformers in which only the attention differs."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

ATTENTIONS = ("standard", "flash", "block_sparse", "sdpa")
NO_TARGET = -100  # of a word that an encoder need not guess


def standard_attention(q, k, v, *, causal, dropout):
    """Attention as it is written down: the whole matrix of scores, its softmax, its product with the values.

    q, k, v: (batch, heads, sequence, head_dim). Plain PyTorch, which keeps the matrices for the backward pass.
    """
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return functional.dropout(scores.softmax(-1), dropout) @ v


def flash_attention(q, k, v, *, causal, dropout, block_mask=None):
    """The same by Tessera, which never holds the matrix."""
    from tessera.torch import attention

    return attention(q, k, v, causal=causal, dropout=dropout, block_mask=block_mask, layout="bhsd")


def torch_attention(q, k, v, *, causal, dropout):
    """The same by PyTorch's scaled_dot_product_attention, with the backend that it chooses."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)


def block_mask_of(sequence, block_size):
    """The blocks that block-sparse attention keeps: the butterfly of the FlashAttention paper."""
    from tessera import BlockMask

    return BlockMask.butterfly(sequence, sequence, block_q=block_size, block_k=block_size)


class Attention(nn.Module):
    """Multi-head self-attention; `kind` is one of ATTENTIONS."""

    def __init__(self, kind, width, heads, *, causal, dropout=0.0, block_size=128):
        super().__init__()
        self.kind, self.heads, self.causal, self.dropout, self.block_size = kind, heads, causal, dropout, block_size
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self._masks = {}

    def block_mask(self, sequence):
        if self.kind != "block_sparse":
            return None
        if sequence not in self._masks:
            self._masks[sequence] = block_mask_of(sequence, self.block_size)
        return self._masks[sequence]

    def forward(self, x):
        batch, sequence, width = x.shape
        q, k, v = self.qkv(x).view(batch, sequence, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        if self.kind in ("standard", "sdpa"):
            attention = standard_attention if self.kind == "standard" else torch_attention
            out = attention(q, k, v, causal=self.causal, dropout=dropout)
        else:
            mask = self.block_mask(sequence)
            out = flash_attention(q, k, v, causal=self.causal, dropout=dropout, block_mask=mask)
        return self.out(out.transpose(1, 2).reshape(batch, sequence, width))


class Block(nn.Module):
    """A layer of a transformer: attention and a network of two linear maps, each beside a residual."""

    def __init__(self, kind, width, heads, inner, *, causal, dropout=0.0, block_size=128):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(kind, width, heads, causal=causal, dropout=dropout, block_size=block_size)
        self.network = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.network(self.norm2(x)))


class Transformer(nn.Sequential):
    """The transformer of the training grid: layers and nothing else, from vectors to vectors."""

    def __init__(self, kind, width, depth, *, head_dim=64, causal=False):
        heads = width // head_dim
        super().__init__(*(Block(kind, width, heads, 4 * width, causal=causal) for _ in range(depth)))


@dataclass(frozen=True)
class GptConfig:
    """A language model and how it is trained: a GPT or, with masked words, an encoder."""

    vocabulary: int
    width: int
    depth: int
    heads: int
    inner: int
    sequence: int
    dropout: float = 0.1
    init_std: float = 0.02
    block_size: int = 128  # of block-sparse attention
    batch: int = 1  # sequences in a step before accumulation
    accumulation: int = 1
    learning_rate: float = 1e-4
    betas: tuple = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup: int = 1000  # steps
    epochs: float = 5.0
    steps: int = 0  # 0: as many as the epochs need
    evaluate_every: int = 50
    compiled: bool = False
    masked: float = 0.0  # share of the words that an encoder must guess; 0: a GPT, which guesses the next word

    @property
    def causal(self):
        return self.masked == 0

    @property
    def step_tokens(self):
        return self.batch * self.accumulation * self.sequence


class Gpt(nn.Module):
    """GPT-2's architecture: learned positions, layers, one matrix for tokens in and out. An encoder has the same without the
    causal mask, and a token more: the place of a masked word."""

    def __init__(self, config, kind):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary + (0 if config.causal else 1), config.width)
        self.positions = nn.Embedding(config.sequence, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.Sequential(*(
            Block(kind, config.width, config.heads, config.inner, causal=config.causal, dropout=config.dropout,
                  block_size=config.block_size)
            for _ in range(config.depth)
        ))  # fmt: skip
        self.norm = nn.LayerNorm(config.width)
        self.apply(self._initialise)

    def _initialise(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.config.init_std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets=None):
        """The logits (batch, sequence, vocabulary), or with `targets` their mean cross-entropy in nats over those that are not
        NO_TARGET."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits = functional.linear(self.norm(self.layers(self.dropout(x))), self.tokens.weight[: self.config.vocabulary])
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=NO_TARGET)


def count_parameters(model):
    """Returns how many parameters the model learns; a shared one counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def autocast(device, dtype):
    """Mixed precision: products in `dtype` ("fp32": none), parameters and sums in fp32."""
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device.split(":")[0], kinds[dtype], enabled=dtype != "fp32")
