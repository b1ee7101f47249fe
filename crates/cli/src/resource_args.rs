//! Arguments for the resources to use.

use std::{num::NonZero, thread};

use anyhow::Context;
use clap::Args;
use crypto::aead::Variant;
use process::{Resources, metrics::Address};
use wg::{Crypto, PostQuantum};

use crate::offloads::OffloadsOff;

/// Arguments of commands that create an interface or a proxy.
#[derive(Args)]
pub(crate) struct ResourceArgs {
    #[command(flatten)]
    offloads: OffloadsOff,
    /// How many cores to use; all by default. With four or more, each direction has a second
    /// thread.
    #[arg(long, value_name = "N")]
    cores: Option<NonZero<usize>>,
    /// Whether to measure the MTU of the path to each peer that supports it. The default is PathMtu in
    /// the file, otherwise on.
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"], hide_possible_values = true)]
    pmtu: Option<String>,
    /// Whether to agree on secrets that quantum computers cannot break: with each peer that supports it,
    /// or before any data is sent (`require`). The default is PostQuantum in the file, otherwise on.
    #[arg(long, value_name = "off|on|require", value_parser = post_quantum)]
    pq: Option<PostQuantum>,
    /// Which code computes handshakes and packets: the fastest for the processor, or only the libraries
    /// ring, x25519-dalek and blake2. The default is Crypto in the file, otherwise the fastest.
    #[arg(long, value_name = "fastest|library", value_parser = crypto)]
    crypto: Option<Crypto>,
    /// Encrypt with this code instead of the fastest for the processor; `library` is ring.
    #[arg(long, value_name = "CODE", value_parser = variant)]
    aead: Option<Variant>,
    /// Serve metrics for Prometheus at this loopback address or Unix socket: `127.0.0.1:9586`,
    /// `unix:/run/wg0-metrics.sock`. Off by default.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<Address>,
}

impl ResourceArgs {
    /// # Errors
    /// The processor does not support the chosen code.
    pub(crate) fn resources(&self) -> anyhow::Result<Resources> {
        if let Some(variant) = self.aead {
            crypto::aead::force(variant).context("--aead")?;
        }
        if !crypto::aead::IS_SECURE {
            tracing::error!("this build is only for benchmarks: packets are not encrypted");
        }
        let cores = self.cores.or(thread::available_parallelism().ok());
        let cores = cores.map_or(1, NonZero::get);
        let (offloads, metrics) = (self.offloads.rest(), self.metrics.clone());
        let path_mtu = self.pmtu.as_ref().map(|pmtu| pmtu == "on");
        Ok(Resources {
            offloads,
            cores,
            path_mtu,
            post_quantum: self.pq,
            crypto: self.crypto,
            metrics,
        })
    }
}

fn post_quantum(name: &str) -> Result<PostQuantum, String> {
    PostQuantum::from_name(name).ok_or_else(|| "must be off, on or require".to_owned())
}

fn crypto(name: &str) -> Result<Crypto, String> {
    Crypto::from_name(name).ok_or_else(|| "must be fastest or library".to_owned())
}

fn variant(name: &str) -> Result<Variant, String> {
    let names = || Variant::ALL.map(|variant| variant.to_string());
    let found = Variant::ALL.into_iter().find(|variant| variant.to_string() == name);
    found.ok_or_else(|| format!("must be one of {}", names().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_aead_code_lists_the_valid_names() {
        assert_eq!(variant("library"), Ok(Variant::Library));
        assert!(variant("rot13").unwrap_err().contains("library, "));
    }
}
