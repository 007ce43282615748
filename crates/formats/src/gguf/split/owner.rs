//! Determines by a tensor's name which part of a model it belongs to.

/// The part of a model to which a tensor belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner<'a> {
    Layer(u32, &'a str),
    Embeddings,
    Positions,
    Norm,
    Head,
    Shared,
}

/// Returns the owner of the tensor `name`; `None` for names that no supported architecture has.
pub(super) fn owner(name: &str) -> Option<Owner<'_>> {
    if let Some(rest) = name.strip_prefix("blk.") {
        let (layer, rest) = rest.split_once('.')?;
        return layer.parse().ok().map(|layer| Owner::Layer(layer, rest));
    }
    match name {
        "token_embd.weight" => Some(Owner::Embeddings),
        "position_embd.weight" => Some(Owner::Positions),
        "output_norm.weight" | "output_norm.bias" => Some(Owner::Norm),
        "output.weight" | "output.bias" => Some(Owner::Head),
        "rope_freqs.weight" | "rope_factors_long.weight" | "rope_factors_short.weight" => {
            Some(Owner::Shared)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_owners() {
        assert_eq!(owner("blk.12.attn_q.weight"), Some(Owner::Layer(12, "attn_q.weight")));
        assert_eq!(owner("output_norm.bias"), Some(Owner::Norm));
        assert_eq!(owner("blk.x.attn_q.weight"), None);
        assert_eq!(owner("mm.0.weight"), None);
    }
}
