//! What a tunnel carries and costs, measured on the rig of `linerate-netns`.
//!
//! Both ends of the tunnel and the programs that make the traffic share this machine's cores, so
//! a figure means something only beside another one of the same run.

#![forbid(unsafe_code)]

mod run;
mod table;

pub use run::{Bare, Run, Sample, Samples, Way};
pub use table::{Style, Table};
