//! How much may be in the network.

mod cubic;

pub use cubic::Cubic;
