//! The `loquent` command line.

fn main() {}
