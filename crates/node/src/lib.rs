//! The linerate node.
