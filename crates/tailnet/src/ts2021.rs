//! The coordinator's protocol, ts2021: messages and encryption, for both ends.
//!
//! ```text
//!   GET /key                 the coordinator's key
//!   POST /ts2021             upgrade; the first Noise message is in a header    noise_handshake
//!     records                at most 4,096 bytes each                           record
//!       early payload        before HTTP/2, from the coordinator                early_payload
//!       HTTP/2               over a byte stream                               noise_stream
//!         /machine/register  registration of a node                             requests
//!         /machine/map       a stream of frames                                 map_frames
//! ```

pub mod early_payload;
pub mod map_frames;
pub mod noise_handshake;
pub mod noise_stream;
pub mod record;
pub mod requests;

/// The announced capability version. It declares which features this node supports (tailscale
/// `tailcfg/tailcfg.go`). 120 and 121 declare peer relays.
pub const CAPABILITY_VERSION: u16 = 121;

/// Path of the upgrade to Noise (tailscale `control/controlhttp/controlhttpcommon`).
pub const UPGRADE_PATH: &str = "/ts2021";
/// Name of the protocol after the upgrade.
pub const UPGRADE_PROTOCOL: &str = "tailscale-control-protocol";
/// The header with the first Noise message, in padded base64.
pub const HANDSHAKE_HEADER: &str = "X-Tailscale-Handshake";
/// The header with the node key, by which a coordinator can balance its load (tailscale
/// `control/ts2021`, `tailcfg.LBHeader`).
pub const LOAD_BALANCE_HEADER: &str = "Ts-Lb";
