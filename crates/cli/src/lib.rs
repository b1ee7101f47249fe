//! The linerate cli.
