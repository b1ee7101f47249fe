//! Floor 4: a machine in a tailnet.
#![forbid(unsafe_code)]
