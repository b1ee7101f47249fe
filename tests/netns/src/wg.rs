//! Keys, and the output of `wg show INTERFACE dump`.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::host::Host;

/// A key pair, in wg(8)'s base64.
#[derive(Clone, Debug)]
pub struct Key {
    /// The private key.
    pub private: String,
    /// The public key.
    pub public: String,
}

impl Key {
    /// A new pair, made by `wg genkey` and `wg pubkey`.
    pub fn generate() -> Self {
        let made = Command::new("sh")
            .args(["-c", "key=$(wg genkey) && echo \"$key\" && echo \"$key\" | wg pubkey"])
            .stderr(Stdio::inherit())
            .output()
            .expect("sh is installed");
        let text = String::from_utf8_lossy(&made.stdout);
        let (private, public) = text.trim().split_once('\n').expect("wg is installed (make deps)");
        Self { private: private.to_owned(), public: public.to_owned() }
    }
}

/// A random preshared key in base64.
pub fn preshared_key() -> String {
    let mut bytes = [0; 32];
    let urandom = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    urandom.expect("/dev/urandom is readable");
    base64(&bytes)
}

/// RFC 4648 base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte));
        let group = group << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let index = (group >> (18 - 6 * place)) & 63;
            let letter = char::from(ALPHABET[index as usize]);
            text.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

/// An interface in `wg show INTERFACE dump`.
#[derive(Debug)]
pub struct Status {
    /// Its private key.
    pub private_key: String,
    /// Its public key.
    pub public_key: String,
    /// Its UDP port.
    pub listen_port: u16,
    /// Its firewall mark as printed: `off` or hexadecimal.
    pub fwmark: String,
    /// Its peers.
    pub peers: Vec<PeerStatus>,
}

/// A peer in `wg show INTERFACE dump`.
#[derive(Debug)]
pub struct PeerStatus {
    /// Its public key.
    pub public_key: String,
    /// `(none)` or the key.
    pub preshared_key: String,
    /// `(none)` or address and port.
    pub endpoint: String,
    /// Comma-separated, or `(none)`.
    pub allowed_ips: String,
    /// Unix seconds; 0 is never.
    pub latest_handshake: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// `off` or seconds.
    pub persistent_keepalive: String,
}

impl Status {
    /// Runs wg(8).
    ///
    /// # Panics
    /// If wg fails or the dump has other columns.
    pub fn of(host: &Host, interface: &str) -> Self {
        Self::parse(&host.run(format!("wg show {interface} dump")))
    }

    /// Parses the output of `wg show INTERFACE dump`.
    ///
    /// # Panics
    /// If the dump has other columns.
    pub fn parse(dump: &str) -> Self {
        let mut lines = dump.lines();
        let own: Vec<&str> =
            lines.next().expect("a dump starts with the interface").split('\t').collect();
        Self {
            private_key: own[0].to_owned(),
            public_key: own[1].to_owned(),
            listen_port: own[2].parse().expect("the third column is the port"),
            fwmark: own[3].to_owned(),
            peers: lines.map(PeerStatus::parse).collect(),
        }
    }

    /// The peer with this public key.
    ///
    /// # Panics
    /// If it is absent.
    pub fn peer(&self, public_key: &str) -> &PeerStatus {
        let peer = self.peers.iter().find(|peer| peer.public_key == public_key);
        peer.unwrap_or_else(|| panic!("no peer {public_key} in {self:#?}"))
    }
}

impl PeerStatus {
    fn parse(line: &str) -> Self {
        let column: Vec<&str> = line.split('\t').collect();
        assert_eq!(column.len(), 8, "a peer has eight columns: {line}");
        let number = |index: usize| column[index].parse().expect("a count is a number");
        Self {
            public_key: column[0].to_owned(),
            preshared_key: column[1].to_owned(),
            endpoint: column[2].to_owned(),
            allowed_ips: column[3].to_owned(),
            latest_handshake: number(4),
            received: number(5),
            sent: number(6),
            persistent_keepalive: column[7].to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_matches_the_vectors_of_rfc_4648_section_10() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (plain, encoded) in cases {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }
}
