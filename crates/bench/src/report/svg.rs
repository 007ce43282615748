//! Inline SVG
