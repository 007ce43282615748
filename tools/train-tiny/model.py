"""A small Llama-architecture language model in PyTorch: parameters, forward pass, loss, and the optimiser's step.

Rotary embedding acts on pairs (2i, 2i+1), as the `llama` architecture of GGUF expects, so that no weight has to be
permuted on export; matrices are [out, in], as GGUF has them. Master weights are float32; the products run in bfloat16,
which on a CPU with bfloat16 instructions is 1.6 times as fast.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; all counts, no units."""

    vocab: int = 4096
    layers: int = 4
    width: int = 192
    heads: int = 6
    kv_heads: int = 2
    ffn: int = 512
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def head_dim(self):
        return self.width // self.heads


def init_params(shape, seed):
    """Random parameters (normal, 0.02; the matrices that write into the residual stream scaled down)."""
    rng = np.random.default_rng(seed)
    kv_width = shape.kv_heads * shape.head_dim
    out_scale = 0.02 / (2 * shape.layers) ** 0.5

    def normal(rows, cols, scale=0.02):
        return torch.from_numpy(rng.normal(0.0, scale, (rows, cols)).astype(np.float32))

    layers = [
        {
            "attn_norm": torch.ones(shape.width),
            "q": normal(shape.width, shape.width),
            "k": normal(kv_width, shape.width),
            "v": normal(kv_width, shape.width),
            "o": normal(shape.width, shape.width, out_scale),
            "ffn_norm": torch.ones(shape.width),
            "gate": normal(shape.ffn, shape.width),
            "up": normal(shape.ffn, shape.width),
            "down": normal(shape.width, shape.ffn, out_scale),
        }
        for _ in range(shape.layers)
    ]
    return {"embed": normal(shape.vocab, shape.width), "layers": layers, "norm": torch.ones(shape.width)}


def leaves(params):
    """All tensors of the parameter tree, in a fixed order."""
    return [params["embed"], params["norm"]] + [layer[key] for layer in params["layers"] for key in layer]


def count_params(params):
    """Number of scalars in the parameter tree."""
    return sum(leaf.numel() for leaf in leaves(params))


def rms_norm(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def rotate(x, turns):
    """Rotary embedding of x [batch, time, heads, head_dim]: neighbouring pairs are complex numbers times `turns`."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def attention(layer, x, shape, turns, bias):
    """Causal attention within segments; plain products, since PyTorch's fused one is slow to differentiate on a CPU."""
    batch, time, _ = x.shape
    grouped = (batch * shape.kv_heads, -1, shape.head_dim)
    q = rotate(F.linear(x, layer["q"]).view(batch, time, shape.heads, shape.head_dim), turns) * shape.head_dim**-0.5
    k = rotate(F.linear(x, layer["k"]).view(batch, time, shape.kv_heads, shape.head_dim), turns)
    v = F.linear(x, layer["v"]).view(batch, time, shape.kv_heads, shape.head_dim)
    # The query heads that share a key-value head lie one below the other.
    q, k, v = (t.transpose(1, 2).reshape(grouped) for t in (q, k, v))
    scores = (q @ k.mT).view(batch, shape.heads, time, time) + bias
    mixed = scores.softmax(-1).view(batch * shape.kv_heads, -1, time) @ v
    return F.linear(mixed.view(batch, shape.heads, time, -1).transpose(1, 2).flatten(-2), layer["o"])


def forward(params, tokens, positions, segments, shape, picks=None, kind=torch.bfloat16):
    """Logits [batch, time, vocab]; a token sees earlier tokens of its own segment only.

    With `picks` (indices into the flattened places) the logits of those places alone, as [count, vocab]: most places of
    a training row are not scored. The products run in the type `kind`.
    """
    freqs = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    turns = torch.polar(torch.ones(1), positions[..., None, None] * freqs)
    time = tokens.shape[1]
    mask = torch.ones(time, time, dtype=torch.bool).tril() & (segments[:, :, None] == segments[:, None, :])
    bias = torch.where(mask, 0.0, -1e30).to(kind)[:, None]
    x = F.embedding(tokens, params["embed"]).to(kind)
    for layer in params["layers"]:
        cast = {key: layer[key].to(kind) for key in MATRICES}
        x = x + attention(cast, rms_norm(x, layer["attn_norm"], shape.eps), shape, turns, bias)
        h = rms_norm(x, layer["ffn_norm"], shape.eps)
        x = x + F.linear(F.silu(F.linear(h, cast["gate"])) * F.linear(h, cast["up"]), cast["down"])
    if picks is not None:
        x = x.flatten(0, 1)[picks]
    return F.linear(rms_norm(x, params["norm"], shape.eps), params["embed"].to(kind)).float()


def weighted_loss(params, batch, shape):
    """Mean cross-entropy of the next token at batch["picks"], in nats, weighted by batch["weights"]."""
    logits = forward(params, batch["tokens"], batch["positions"], batch["segments"], shape, batch["picks"])
    losses = F.cross_entropy(logits, batch["targets"], reduction="none")
    return (losses * batch["weights"]).sum() / batch["weights"].sum()


def orthogonal(stack, rounds=5):
    """Nearest orthogonal matrices of a stack [count, rows, cols], roughly, by a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (stack / (stack.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


class Optimiser:
    """Muon (Jordan et al., 2024) for the layers' matrices, AdamW for the embedding and the norms.

    Muon turns the momentum of a matrix into the nearest orthogonal one, so that rare directions are learned as fast as
    common ones. Its step is scaled by 0.2 sqrt(max(rows, cols)), so that AdamW's rate and decay fit both.
    """

    def __init__(self, params, decay=0.1, momentum=0.95):
        self.decay, self.momentum = decay, momentum
        self.matrices = {}
        for layer in params["layers"]:
            for key in MATRICES:
                self.matrices.setdefault(tuple(layer[key].shape), []).append(layer[key])
        self.buffers = {shape: torch.zeros(len(group), *shape) for shape, group in self.matrices.items()}
        norms = [leaf for leaf in leaves(params) if leaf.ndim == 1]
        groups = [{"params": [params["embed"]], "weight_decay": decay}, {"params": norms, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98))
        for leaf in leaves(params):
            leaf.requires_grad_(True)

    @torch.no_grad()
    def step(self, rate):
        """One update with the gradients at hand, which it then clears."""
        for shape, group in self.matrices.items():
            grads, buffer = torch.stack([matrix.grad for matrix in group]), self.buffers[shape]
            buffer.lerp_(grads, 1 - self.momentum)
            updates = orthogonal(grads.lerp(buffer, self.momentum)) * (0.2 * max(shape) ** 0.5)
            for matrix, update in zip(group, updates):
                matrix.mul_(1 - rate * self.decay).sub_(update, alpha=rate)
                matrix.grad = None
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.adam.zero_grad()
