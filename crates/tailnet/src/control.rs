//! The coordinator's protocol, ts2021: what is said to it, and what is decided between answers.
//!
//! ```text
//!   GET /key                 the coordinator's key
//!   POST /ts2021             upgrade; the first Noise message is in a header    noise
//!     records                at most 4,096 bytes each                           record
//!       early payload        before HTTP/2, from the coordinator                early
//!       HTTP/2
//!         /machine/register  who may be a node                                  register
//!         /machine/map       a stream of frames                                 frame
//! ```
//!
//! Where to connect is [`dial`], when to try again [`backoff`].

pub mod backoff;
pub mod dial;
pub mod early;
pub mod frame;
pub mod messages;
pub mod noise;
pub mod proxy;
pub mod record;
pub mod register;
pub mod stream;

/// The capability version that is announced: a promise of what this node does (tailscale
/// `tailcfg/tailcfg.go`). 120 and 121 promise peer relays.
pub const CAPABILITY_VERSION: u16 = 121;

/// Where Noise begins (tailscale `control/controlhttp/controlhttpcommon`).
pub const UPGRADE_PATH: &str = "/ts2021";
/// What the connection is upgraded to.
pub const UPGRADE_PROTOCOL: &str = "tailscale-control-protocol";
/// The header with the first Noise message, in padded base64.
pub const HANDSHAKE_HEADER: &str = "X-Tailscale-Handshake";
/// The header by which a coordinator spreads its load: the node key (tailscale
/// `control/ts2021`, `tailcfg.LBHeader`).
pub const LOAD_BALANCE_HEADER: &str = "Ts-Lb";
