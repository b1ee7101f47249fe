//! The linerate engine.
