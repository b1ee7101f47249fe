//! The HTTP proxy: [`super::http`] over sockets.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, ReadHalf},
    time::timeout,
};

use super::{
    connections::{Connection, Group},
    gate::{ASKING, Gate, carry, refuse, take_leave, unless_evicted},
    half_open::Client,
    http::{self, Body, CONNECTED, Refusal, Request},
    local::Stream,
    relay::relay_answer,
    stack::Stack,
    users::Users,
};

/// Serves one client.
pub(super) async fn serve<S: Stack>(
    gate: Arc<Gate<S>>,
    mut here: Stream,
    client: Client,
    mut connection: Connection,
) -> io::Result<()> {
    let mut input = Vec::new();
    let asked = match timeout(ASKING, read_head(&gate.users, &mut here, &mut input)).await {
        Ok(asked) => asked?,
        Err(_) => Err(Refusal::TimedOut),
    };
    let request = match asked {
        Ok(request) => request,
        Err(refusal) => return refuse(here, &refusal.encode("linerate: not as asked")).await,
    };
    let target = match &request {
        Request::Connect(target) | Request::Forward(target, ..) => target,
    };
    let mut here = here.unless(connection.become_one_of(Group::Clients, S::CONNECTION))?;
    // What a client sends on is not read now but for its end: `input` would grow.
    let dialed = gate.dialer.dial_for(client, &mut here, &mut input, target).await;
    let mut there = match dialed {
        Ok(there) => there,
        Err(error) => {
            let why = format!("linerate: {target}: {error}");
            refuse(here, &Refusal::of_error(&error).encode(&why)).await?;
            return Err(io::Error::new(error.kind(), why));
        }
    };
    match request {
        Request::Connect(_) => {
            here.write_all(CONNECTED).await?;
            there.write_all(&input).await?;
            carry::<S>(here, there, &connection).await
        }
        Request::Forward(_, head, body) => {
            there.write_all(&head).await?;
            exchange::<S>(here, there, (input, body), &connection).await
        }
    }
}

/// Reads up to the end of a head. What came behind it stays in `input`.
async fn read_head(
    users: &Users,
    stream: &mut Stream,
    input: &mut Vec<u8>,
) -> io::Result<Result<Request, Refusal>> {
    loop {
        if stream.read_buf(input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match http::parse(input, users) {
            Ok(Some((request, len))) => {
                input.drain(..len);
                return Ok(Ok(request));
            }
            Ok(None) => {}
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Sends a body and brings the answer back, until the origin closes.
async fn exchange<S: Stack>(
    here: Stream,
    mut there: S::Stream,
    (early, body): (Vec<u8>, Body),
    connection: &Connection,
) -> io::Result<()> {
    let (from_here, to_here) = tokio::io::split(here);
    let body = Limited { reader: from_here, early, body, is_over: false };
    let mut client = tokio::io::join(body, to_here);
    let moved = || connection.touch();
    let carried = unless_evicted(connection, relay_answer(&mut client, &mut there, &moved)).await;
    let (body, to_here) = client.into_inner();
    let mut here = body.reader.unsplit(to_here);
    if carried.is_err() {
        here.reset();
        S::reset(there);
    } else {
        take_leave(&mut here).await;
    }
    carried
}

/// Reads one body. Behind it there is nothing but the client's end: what it sends then
/// is a request to somebody else, maybe, and is not read.
struct Limited {
    reader: ReadHalf<Stream>,
    early: Vec<u8>,
    body: Body,
    is_over: bool,
}

impl AsyncRead for Limited {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_over {
            let mut byte = [0];
            let mut end = ReadBuf::new(&mut byte);
            ready!(Pin::new(&mut this.reader).poll_read(cx, &mut end))?;
            return if end.filled().is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let from = buffer.filled().len();
        if this.early.is_empty() {
            ready!(Pin::new(&mut this.reader).poll_read(cx, buffer))?;
            if buffer.filled().len() == from {
                return Poll::Ready(Ok(()));
            }
        } else {
            let len = this.early.len().min(buffer.remaining());
            buffer.put_slice(&this.early[..len]);
            this.early.drain(..len);
        }
        let (taken, is_over) = this.body.handle_input(&buffer.filled()[from..])?;
        buffer.set_filled(from + taken);
        this.is_over = is_over;
        // No bytes would be taken for the end.
        if taken == 0 { Pin::new(this).poll_read(cx, buffer) } else { Poll::Ready(Ok(())) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sys::process::OpenFiles;
    use tokio::{runtime::Builder, time::sleep};

    use super::*;
    use crate::{
        capacity::Capacity,
        connections::{Connections, Source},
        namespace::KernelStack,
        testing::connected,
    };

    /// RFC 9112, section 9.6.
    #[test]
    fn an_answer_to_half_a_body_arrives_whole() {
        const ANSWER: usize = 1 << 20;
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let (mut client, here) = connected(4096).await;
            let (there, mut origin) = connected(1 << 20).await;
            let exchanged = tokio::spawn(async move {
                let connections =
                    Connections::new(Capacity::new(OpenFiles { limit: 1000, open: 0 }, 0));
                let client = Source::Client(Client::User(1));
                let connection = connections.admit(Group::Clients, client, 4).unwrap();
                let body = (Vec::new(), Body::Bytes(1 << 30));
                exchange::<KernelStack>(Stream::Tcp(here), there, body, &connection).await
            });
            client.write_all(&[7; 1000]).await.unwrap();
            origin.read_exact(&mut [0; 1000]).await.unwrap();
            origin.write_all(&vec![7; ANSWER]).await.unwrap();
            drop(origin);
            for _ in 0..10 {
                client.write_all(&[7; 1000]).await.unwrap();
                sleep(Duration::from_millis(10)).await;
            }
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer.len(), ANSWER);
            drop(client);
            timeout(Duration::from_secs(5), exchanged).await.expect("it ends").unwrap().unwrap();
        });
    }
}
