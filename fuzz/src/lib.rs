//! The fuzz targets' bodies. `cargo test` replays the committed corpora through
//! the same file (`tests/corpora`).
//!
//! ```text
//!   cargo +nightly fuzz run TARGET           goes on looking
//!   cargo +nightly fuzz cmin TARGET          keeps of the corpus what it needs
//! ```
#![forbid(unsafe_code)]

pub mod bodies;
