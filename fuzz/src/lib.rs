//! The fuzz targets' bodies. `cargo test` replays the committed corpora with
//! the same file (`tests/corpora`).
//!
//! ```text
//!   cargo +nightly fuzz run TARGET           searches for new inputs
//!   cargo +nightly fuzz cmin TARGET          minimizes the corpus
//! ```
#![forbid(unsafe_code)]

pub mod bodies;
