//! The child's replies.

use super::{Kind, Step};

/// Length of a reply in bytes.
pub(super) const REPLY_LEN: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The namespace is set up. The TUN is attached.
    Tun {
        /// The index of the TUN's interface in the namespace.
        index: u32,
    },
    /// A socket is attached.
    Socket,
    /// A step or a request failed.
    Refused {
        /// The failed step of the setup.
        step: Step,
        errno: i32,
    },
}

impl Reply {
    pub(super) fn encode(self) -> [u8; REPLY_LEN] {
        let (kind, step, number) = match self {
            Self::Tun { index } => (b'T', 0, index.to_ne_bytes()),
            Self::Socket => (b'S', 0, [0; 4]),
            Self::Refused { step, errno } => (b'-', step as u8, errno.to_ne_bytes()),
        };
        let [a, b, c, d] = number;
        [kind, step, a, b, c, d]
    }

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let &[kind, step, a, b, c, d] = text else { return None };
        let number = [a, b, c, d];
        Some(match kind {
            b'T' => Self::Tun { index: u32::from_ne_bytes(number) },
            b'S' => Self::Socket,
            b'-' => {
                Self::Refused { step: Step::from_byte(step)?, errno: i32::from_ne_bytes(number) }
            }
            _ => return None,
        })
    }
}

impl Step {
    const ALL: [Self; 7] = [
        Self::Enter,
        Self::Loopback,
        Self::Tun,
        Self::Mtu,
        Self::Address,
        Self::Route,
        Self::Privileges,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&step| step as u8 == byte)
    }
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Tcp4, Self::Tcp6, Self::Udp4, Self::Udp6, Self::Ping4, Self::Ping6];

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_round_trip_and_other_bytes_are_rejected() {
        let refused = Step::ALL.map(|step| Reply::Refused { step, errno: -7 });
        for reply in refused.into_iter().chain([Reply::Tun { index: 70_000 }, Reply::Socket]) {
            assert_eq!(Reply::parse(&reply.encode()), Some(reply));
        }
        for text in [&b""[..], b"S", b"X00000", b"-\xff0000", b"S000000"] {
            assert_eq!(Reply::parse(text), None);
        }
        for kind in Kind::ALL {
            assert_eq!(Kind::from_byte(kind as u8), Some(kind));
        }
        assert_eq!(Kind::from_byte(6), None);
    }
}
