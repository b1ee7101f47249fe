//! The SOCKS5 proxy: [`super::socks`] on sockets.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    connections::{Connection, Group},
    half_open::Client,
    local::Stream,
    namespace::unspecified,
    serve::{ProxyContext, REQUEST_TIMEOUT, carry, refuse},
    socks::{Negotiation, Reply, Request, State},
    stack::Stack,
    udp_associate::associate,
    users::Users,
};
use config::target::Target;

/// Serves one client.
pub(super) async fn serve<S: Stack>(
    context: Arc<ProxyContext<S>>,
    mut stream: Stream,
    client: Client,
    mut connection: Connection,
) -> io::Result<()> {
    let request =
        timeout(REQUEST_TIMEOUT, negotiate(&context.users, &mut stream, &connection)).await??;
    match request {
        Some((Request::Connect(target), early)) => {
            let admitted = connection.wait_to_change_group(Group::Clients, S::CONNECTION).await;
            let stream = stream.or_reset(admitted)?;
            connect(&context, (stream, client, connection), &target, early).await
        }
        Some((Request::UdpAssociate(from), _)) => {
            let admitted = connection.wait_to_change_group(Group::Clients, S::ASSOCIATION).await;
            let stream = stream.or_reset(admitted)?;
            associate(context, stream, &from, &connection).await
        }
        None => refuse(stream, &[]).await,
    }
}

/// Negotiates with a client until it has sent a request. Returns the request and the bytes after it,
/// or `None` if the client was refused.
async fn negotiate(
    users: &Users,
    stream: &mut Stream,
    connection: &Connection,
) -> io::Result<Option<(Request, Vec<u8>)>> {
    let mut negotiation = Negotiation::new(users);
    // No message is longer. A client that does not wait for replies may send more.
    let mut buffer = [0; 1024];
    loop {
        let len = match stream.read(&mut buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => len,
        };
        negotiation.handle_input(&buffer[..len]);
        while let Some(output) = negotiation.poll_output() {
            // A complete message counts as activity, a part of one does not.
            connection.touch();
            stream.write_all(&output).await?;
        }
        match negotiation.state() {
            State::Negotiating => {}
            State::Refused => return Ok(None),
            State::Requested(request) => {
                let request = request.clone();
                return Ok(Some((request, negotiation.into_rest())));
            }
        }
    }
}

async fn connect<S: Stack>(
    context: &ProxyContext<S>,
    (mut here, client, connection): (Stream, Client, Connection),
    target: &Target,
    mut early: Vec<u8>,
) -> io::Result<()> {
    let unspecified_address = unspecified(true);
    match context.dialer.dial_for(client, &mut here, &mut early, target).await {
        Ok(mut there) => {
            here.write_all(&Reply::Succeeded.encode(unspecified_address)).await?;
            there.write_all(&early).await?;
            carry::<S>(here, there, &connection).await
        }
        Err(error) => {
            refuse(here, &Reply::of_error(&error).encode(unspecified_address)).await?;
            Err(io::Error::new(error.kind(), format!("{target}: {error}")))
        }
    }
}
