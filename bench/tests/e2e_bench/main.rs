//! The bench and `linerate bench`, run as their users run them.

#![forbid(unsafe_code)]

mod interrupt;
mod smoke;
