"""A small Llama-architecture language model in plain JAX: parameters, forward pass, loss, AdamW step.

Rotary embedding acts on pairs (2i, 2i+1), as the `llama` architecture of GGUF expects, so that no weight
has to be permuted on export. Weights are stored as [in, out] here and transposed by export.py.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; all counts, no units."""

    vocab: int = 2048
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

    def normal(rows, cols, scale=0.02):
        return jnp.asarray(rng.normal(0.0, scale, (rows, cols)), jnp.float32)

    out_scale = 0.02 / (2 * shape.layers) ** 0.5
    layers = [
        {
            "attn_norm": jnp.ones(shape.width),
            "q": normal(shape.width, shape.width),
            "k": normal(shape.width, kv_width),
            "v": normal(shape.width, kv_width),
            "o": normal(shape.width, shape.width, out_scale),
            "ffn_norm": jnp.ones(shape.width),
            "gate": normal(shape.width, shape.ffn),
            "up": normal(shape.width, shape.ffn),
            "down": normal(shape.ffn, shape.width, out_scale),
        }
        for _ in range(shape.layers)
    ]
    return {"embed": normal(shape.vocab, shape.width), "layers": layers, "norm": jnp.ones(shape.width)}


def count_params(params):
    """Number of scalars in the parameter tree."""
    return sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))


def rms_norm(x, weight, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, cos, sin):
    """Rotary embedding of x [batch, time, heads, head_dim] on neighbouring pairs."""
    even, odd = x[..., 0::2], x[..., 1::2]
    pairs = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return pairs.reshape(x.shape)


def attention(layer, x, shape, rope, bias):
    """Causal attention within segments; a plain product per head, since XLA's batched ones are slow on a CPU."""
    batch, time, _ = x.shape
    q = rotate((x @ layer["q"]).reshape(batch, time, shape.heads, shape.head_dim), *rope)
    k = rotate((x @ layer["k"]).reshape(batch, time, shape.kv_heads, shape.head_dim), *rope)
    v = (x @ layer["v"]).reshape(batch, time, shape.kv_heads, shape.head_dim)
    group = shape.heads // shape.kv_heads
    rows = []
    for row in range(batch):
        heads = []
        for head in range(shape.heads):
            scores = q[row, :, head] @ k[row, :, head // group].T / shape.head_dim**0.5 + bias[row]
            raised = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
            heads.append((raised @ v[row, :, head // group]) / raised.sum(-1, keepdims=True))
        rows.append(jnp.concatenate(heads, axis=-1))
    return jnp.stack(rows) @ layer["o"]


def forward(params, tokens, positions, segments, shape, picks=None):
    """Logits [batch, time, vocab]; a token sees earlier tokens of its own segment only.

    With `picks` [batch, count] the logits of those places alone: the head is a fifth of the work, and most places of a
    training row are not scored.
    """
    x = params["embed"][tokens]
    freqs = shape.rope_base ** (-jnp.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = positions[..., None, None] * freqs
    rope = (jnp.cos(angles), jnp.sin(angles))
    time = tokens.shape[1]
    causal = jnp.tril(jnp.ones((time, time), bool))
    mask = causal[None] & (segments[:, :, None] == segments[:, None, :])
    bias = jnp.where(mask, 0.0, -1e30)
    for layer in params["layers"]:
        x = x + attention(layer, rms_norm(x, layer["attn_norm"], shape.eps), shape, rope, bias)
        h = rms_norm(x, layer["ffn_norm"], shape.eps)
        x = x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]
    if picks is not None:
        x = jnp.take_along_axis(x, picks[..., None], axis=1)
    return rms_norm(x, params["norm"], shape.eps) @ params["embed"].T


def weighted_loss(params, batch, shape):
    """Mean cross-entropy of the next token at batch["picks"], in nats, weighted by batch["weights"]."""
    logits = forward(params, batch["tokens"], batch["positions"], batch["segments"], shape, batch["picks"])
    log_norm = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    weights = batch["weights"]
    return jnp.sum((log_norm - picked) * weights) / (jnp.sum(weights) + 1e-6)


def make_step(shape, decay=0.05, b1=0.9, b2=0.98, clip=1.0):
    """A jitted AdamW step: (params, m, v, step, rate, batch) to (params, m, v, loss)."""

    def step_fn(params, m, v, step, rate, batch):
        loss, grads = jax.value_and_grad(weighted_loss)(params, batch, shape)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree_util.tree_leaves(grads)))
        grads = jax.tree_util.tree_map(lambda g: g * jnp.minimum(1.0, clip / (norm + 1e-6)), grads)
        m = jax.tree_util.tree_map(lambda a, g: b1 * a + (1 - b1) * g, m, grads)
        v = jax.tree_util.tree_map(lambda a, g: b2 * a + (1 - b2) * g * g, v, grads)

        def update(p, a, b):
            direction = (a / (1 - b1**step)) / (jnp.sqrt(b / (1 - b2**step)) + 1e-8)
            # Norm weights (vectors) are left out of the decay, as usual.
            return p - rate * (direction + (decay * p if p.ndim > 1 else 0.0))

        return jax.tree_util.tree_map(update, params, m, v), m, v, loss

    return jax.jit(step_fn, donate_argnums=(0, 1, 2))


def zeros_like(params):
    """A tree of zeros for the optimiser's moments."""
    return jax.tree_util.tree_map(jnp.zeros_like, params)
