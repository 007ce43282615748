//! GGUF files with the shape of a real model and random weights.
//!
//! Speed does not depend on what the weights are, only on how many there are and how they are
//! stored; so a benchmark needs no download, and the same seed gives the same file everywhere. The
//! text of such a model is noise, but it is computed with the same tensors, kernels and vocabulary
//! size as that of the real model.
//!
//! [`ModelShape`] names the tensors, [`vocab`] gives the tokenizer, [`weights`] the numbers, and
//! [`build()`] writes the file and has llama.cpp quantise it; [`trial()`] shows that it works.

mod build;
mod shape;
mod trial;
pub mod vocab;
pub mod weights;

pub use build::{BuildOrder, BuildProgress, build};
pub use shape::{Architecture, Experts, ModelShape, SHAPES};
pub use trial::{DecodeTrial, embedding_trial, trial};
