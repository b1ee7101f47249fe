//! The linerate sys.
