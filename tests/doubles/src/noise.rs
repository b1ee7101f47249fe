//! The coordinator's end of Noise.

use std::{io, sync::Arc};

use snow::StatelessTransportState;
use tailnet::{
    control::{
        noise::prologue,
        record::{Opener, RECORD, Sealer},
    },
    keys::MachineKey,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

/// Reads a member's first message; the answer to it, and the keys.
pub fn respond(key: &MachineKey, message: &[u8]) -> Option<(Vec<u8>, StatelessTransportState)> {
    let version = u16::from_be_bytes(*message.first_chunk()?);
    let mut state = snow::Builder::new("Noise_IK_25519_ChaChaPoly_BLAKE2s".parse().ok()?)
        .prologue(prologue(version).as_bytes())
        .ok()?
        .local_private_key(key.bytes())
        .ok()?
        .build_responder()
        .ok()?;
    state.read_message(message.get(5..)?, &mut [0; 128]).ok()?;
    let mut reply = [2, 0, 48].to_vec();
    reply.resize(51, 0);
    state.write_message(&[], &mut reply[3..]).ok()?;
    Some((reply, state.into_stateless_transport_mode().ok()?))
}

/// Opens the records of `sealed` for `plain`, and seals what comes from there, until either ends.
pub async fn pass(
    sealed: impl AsyncRead + AsyncWrite,
    keys: StatelessTransportState,
    plain: impl AsyncRead + AsyncWrite,
) -> io::Result<()> {
    let keys = Arc::new(keys);
    let (mut sealer, mut opener) = (Sealer::new(Arc::clone(&keys)), Opener::new(keys));
    let (mut from_member, mut to_member) = split(sealed);
    let (mut from_us, mut to_us) = split(plain);
    let inward = async {
        let (mut buffer, mut opened) = ([0; RECORD], Vec::new());
        loop {
            let len = from_member.read(&mut buffer).await?;
            if len == 0 {
                return Ok(());
            }
            opener.handle_bytes(&buffer[..len], &mut opened).map_err(io::Error::other)?;
            to_us.write_all(&opened).await?;
            opened.clear();
        }
    };
    let outward = async {
        let (mut buffer, mut records) = ([0; 4 * RECORD], Vec::new());
        loop {
            let len = from_us.read(&mut buffer).await?;
            if len == 0 {
                return to_member.shutdown().await;
            }
            let mut rest = &buffer[..len];
            while !rest.is_empty() {
                let taken = sealer.seal(rest, &mut records).map_err(io::Error::other)?;
                rest = &rest[taken..];
            }
            to_member.write_all(&records).await?;
            records.clear();
        }
    };
    tokio::select! {
        ended = inward => ended,
        ended = outward => ended,
    }
}
