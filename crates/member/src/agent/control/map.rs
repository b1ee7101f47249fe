//! The map's stream.

use std::{sync::Arc, time::Duration};

use tailnet::{
    control::{
        dial::Candidate,
        frame::{FrameReader, LONGEST},
        messages::{Announced, MapHead, MapPosition, MapRequest, PingRequest},
    },
    keys::NodePublic,
    messages::MapResponse,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout_at},
};
use zeroize::Zeroizing;

use super::{Event, connection::Connection, error::ControlError};

const WHAT: &str = "map";
/// How long a frame may take, from the one before to its last byte. A coordinator sends a sign of
/// life each minute (tailscale `controlclient/direct.go`, `watchdogTimeout`).
const WATCHDOG: Duration = Duration::from_secs(120);
/// The longest name of a stream that is kept, in bytes.
const MAX_HANDLE: usize = 256;

/// The most KiB of frames that are read and wait to be handled.
const MAX_PENDING_KIB: usize = LONGEST >> 10;

/// Room for maps that wait.
pub(super) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_PENDING_KIB))
}

/// A stream that is followed.
pub(super) struct Stream<'a> {
    pub connection: &'a Connection,
    pub events: &'a mpsc::Sender<Event>,
    /// Room for maps that wait there.
    pub room: &'a Arc<Semaphore>,
    /// Pings that are answered by a request without more.
    pub pings: mpsc::Sender<PingRequest>,
    /// Where to connect the next time.
    pub plan: &'a mut Vec<Candidate>,
    /// How far the stream was followed, where it can be resumed.
    pub position: &'a mut Option<MapPosition>,
    /// The auth key for the case that the coordinator deleted the node. The first map removes it.
    pub auth_key: &'a mut Option<Zeroizing<String>>,
    /// A ping is answered once.
    pub last_ping: String,
}

impl Stream<'_> {
    /// Follows the stream. Ends when nobody listens.
    pub async fn follow(
        &mut self,
        node_key: NodePublic,
        announced: &Announced,
    ) -> Result<(), ControlError> {
        let previous = self.position.clone();
        let request = MapRequest::stream(node_key, announced).from(previous.as_ref());
        let response = self.connection.map(node_key, WHAT, &request);
        let timed_out = ControlError::StreamTimedOut(WATCHDOG);
        let Ok(response) = timeout_at(Instant::now() + WATCHDOG, response).await else {
            return Err(timed_out);
        };
        let mut body = response?.into_body();
        let (mut reader, mut is_first) = (FrameReader::default(), true);
        let requested_handle = previous.as_ref().map(|previous| previous.handle.as_str());
        let mut deadline = Instant::now() + WATCHDOG;
        loop {
            let Ok(piece) = timeout_at(deadline, self.connection.next_piece(&mut body)).await
            else {
                return Err(timed_out);
            };
            reader.handle_bytes(&piece?);
            loop {
                // What the next one builds on is not known without this one.
                let unreadable = |why: String| ControlError::BadResponse(WHAT, why);
                let frame = reader.poll_frame().map_err(|error| unreadable(error.to_string()))?;
                let Some(frame) = frame else { break };
                let weight = (frame.len() >> 10).clamp(1, MAX_PENDING_KIB) as u32;
                let room = Arc::clone(self.room).acquire_many_owned(weight).await;
                let room = room.map_err(ControlError::connection_ended)?;
                let (head, map) = read(frame).map_err(|error| unreadable(error.to_string()))?;
                let is_map = !head.keep_alive;
                if is_first && is_map {
                    is_first = false;
                    self.handle_first_map(&head, requested_handle).await?;
                }
                if !self.handle_map(head, map, room).await? {
                    return Ok(());
                }
                // What the listener took is not the coordinator's.
                deadline = Instant::now() + WATCHDOG;
            }
        }
    }

    /// The first map of the stream is here.
    async fn handle_first_map(
        &mut self,
        head: &MapHead,
        requested_handle: Option<&str>,
    ) -> Result<(), ControlError> {
        let resumed = requested_handle == Some(&head.handle);
        if !resumed && !head.has_node {
            let why = "the first map does not name this node".into();
            return Err(ControlError::BadResponse(WHAT, why));
        }
        *self.position = self.position.take().filter(|_| resumed);
        *self.auth_key = None;
        // Nobody may listen: the map is told next, and then it shows.
        let _ = self.events.send(Event::Connected { resumed }).await;
        Ok(())
    }

    /// False when nobody listens.
    async fn handle_map(
        &mut self,
        mut head: MapHead,
        map: Box<MapResponse>,
        room: OwnedSemaphorePermit,
    ) -> Result<bool, ControlError> {
        if let Some(plan) = head.dial_plan.take() {
            *self.plan = plan.candidates();
        }
        head.ping_request = head.ping_request.take().filter(|ping| ping.url != self.last_ping);
        if let Some(ping) = &head.ping_request {
            self.last_ping.clone_from(&ping.url);
        }
        if let Some(ping) = head.ping_request.take_if(|ping| ping.types.is_empty()) {
            // One at a time: a flood is not answered.
            let _ = self.pings.try_send(ping);
        }
        let (handle, seq) = (std::mem::take(&mut head.handle), head.seq);
        let is_delivered = self.events.send(Event::Map { head, map, room }).await.is_ok();
        // What nobody took is to be told again.
        if !is_delivered || seq == 0 {
            return Ok(is_delivered);
        }
        // A stream that has followed its coordinator to other versions has another name from there on.
        match self.position {
            _ if (1..=MAX_HANDLE).contains(&handle.len()) => {
                *self.position = Some(MapPosition { handle, seq });
            }
            Some(position) => position.seq = seq,
            None => {}
        }
        Ok(is_delivered)
    }
}

fn read(frame: Vec<u8>) -> serde_json::Result<(MapHead, Box<MapResponse>)> {
    Ok((MapHead::read(&frame)?, Box::new(MapResponse::read(&frame)?)))
}
