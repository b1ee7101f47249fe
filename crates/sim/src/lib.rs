//! The linerate sim.
