//! The SOCKS5 proxy: [`super::socks`] over sockets.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    associate::associate,
    connections::{Connection, Group},
    gate::{ASKING, Gate, carry, refuse},
    half_open::Client,
    local::Stream,
    namespace::unspecified,
    socks::{Negotiation, Reply, Request, State},
    stack::Stack,
    users::Users,
};
use config::target::Target;

/// Serves one client.
pub(super) async fn serve<S: Stack>(
    gate: Arc<Gate<S>>,
    mut stream: Stream,
    client: Client,
    mut connection: Connection,
) -> io::Result<()> {
    let asked = timeout(ASKING, negotiate(&gate.users, &mut stream, &connection)).await??;
    match asked {
        Some((Request::Connect(target), early)) => {
            let admitted = connection.become_in_time(Group::Clients, S::CONNECTION).await;
            let stream = stream.unless(admitted)?;
            connect(&gate, (stream, client, connection), &target, early).await
        }
        Some((Request::UdpAssociate(from), _)) => {
            let admitted = connection.become_in_time(Group::Clients, S::ASSOCIATION).await;
            let stream = stream.unless(admitted)?;
            associate(gate, stream, &from, &connection).await
        }
        None => refuse(stream, &[]).await,
    }
}

/// Talks to a client until it has asked for something. What came behind that is there,
/// too.
async fn negotiate(
    users: &Users,
    stream: &mut Stream,
    connection: &Connection,
) -> io::Result<Option<(Request, Vec<u8>)>> {
    let mut negotiation = Negotiation::new(users);
    // No message is longer, but for the rest of a client that does not wait.
    let mut buffer = [0; 1024];
    loop {
        let len = match stream.read(&mut buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => len,
        };
        negotiation.handle_input(&buffer[..len]);
        while let Some(output) = negotiation.poll_output() {
            // It sent a whole message: parts of one do not keep its place.
            connection.touch();
            stream.write_all(&output).await?;
        }
        match negotiation.state() {
            State::Asking => {}
            State::Refused => return Ok(None),
            State::Asked(request) => {
                let request = request.clone();
                return Ok(Some((request, negotiation.into_rest())));
            }
        }
    }
}

async fn connect<S: Stack>(
    gate: &Gate<S>,
    (mut here, client, connection): (Stream, Client, Connection),
    target: &Target,
    mut early: Vec<u8>,
) -> io::Result<()> {
    let nowhere = unspecified(true);
    match gate.dialer.dial_for(client, &mut here, &mut early, target).await {
        Ok(mut there) => {
            here.write_all(&Reply::Succeeded.encode(nowhere)).await?;
            there.write_all(&early).await?;
            carry::<S>(here, there, &connection).await
        }
        Err(error) => {
            refuse(here, &Reply::of_error(&error).encode(nowhere)).await?;
            Err(io::Error::new(error.kind(), format!("{target}: {error}")))
        }
    }
}
