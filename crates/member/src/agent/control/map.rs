//! The stream of maps.

use std::{sync::Arc, time::Duration};

use mesh::dialing::Candidate;
use tailnet::{
    keys::NodePublic,
    map_messages::MapResponse,
    ts2021::{
        map_frames::{FrameReader, LONGEST},
        requests::{Announcement, MapHead, MapPosition, MapRequest, PingRequest},
    },
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout_at},
};
use zeroize::Zeroizing;

use super::{Event, connection::Connection, error::ControlError};

const WHAT: &str = "map";
/// The time limit of a frame, from the end of the previous one. A coordinator sends a keepalive
/// each minute (tailscale `controlclient/direct.go`, `watchdogTimeout`).
const WATCHDOG: Duration = Duration::from_secs(120);
/// The longest handle of a stream that is stored, in bytes.
const MAX_HANDLE: usize = 256;

/// The limit of frames that are read and not handled yet, in KiB.
const MAX_PENDING_KIB: usize = LONGEST >> 10;

/// The memory for pending maps.
pub(super) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_PENDING_KIB))
}

/// A stream of maps and its effects.
pub(super) struct Stream<'a> {
    pub connection: &'a Connection,
    pub events: &'a mpsc::Sender<Event>,
    /// The memory for pending maps.
    pub room: &'a Arc<Semaphore>,
    /// Pings that need only a request as their answer.
    pub pings: mpsc::Sender<PingRequest>,
    /// The dial plan for the next connection.
    pub plan: &'a mut Vec<Candidate>,
    /// The position for the next connection, if the stream can be resumed.
    pub position: &'a mut Option<MapPosition>,
    /// The auth key, in case the coordinator has deleted the node. The first map removes it.
    pub auth_key: &'a mut Option<Zeroizing<String>>,
    /// The URL of the last ping. Each ping is answered once.
    pub last_ping: String,
}

impl Stream<'_> {
    /// Follows the stream. Returns when the channel of events is closed.
    pub(super) async fn follow(
        &mut self,
        node_key: NodePublic,
        announced: &Announcement,
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
                // Later frames depend on this one.
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
                // The time that the receiver took does not count.
                deadline = Instant::now() + WATCHDOG;
            }
        }
    }

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
        // A closed channel shows when the map is sent.
        let _ = self.events.send(Event::Connected { resumed }).await;
        Ok(())
    }

    /// Returns false if the channel of events is closed.
    async fn handle_map(
        &mut self,
        mut head: MapHead,
        map: Box<MapResponse>,
        room: OwnedSemaphorePermit,
    ) -> Result<bool, ControlError> {
        if let Some(plan) = head.dial_plan.take() {
            *self.plan = plan.candidates().into_iter().map(Candidate::from).collect();
        }
        head.ping_request = head.ping_request.take().filter(|ping| ping.url != self.last_ping);
        if let Some(ping) = &head.ping_request {
            self.last_ping.clone_from(&ping.url);
        }
        if let Some(ping) = head.ping_request.take_if(|ping| ping.types.is_empty()) {
            // The channel has capacity for one ping: a flood is not answered.
            let _ = self.pings.try_send(ping);
        }
        let (handle, seq) = (std::mem::take(&mut head.handle), head.seq);
        let is_delivered = self.events.send(Event::Map { head, map, room }).await.is_ok();
        // A map that was not delivered must be sent again.
        if !is_delivered || seq == 0 {
            return Ok(is_delivered);
        }
        // A stream has a new handle after its coordinator was replaced by another version.
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
