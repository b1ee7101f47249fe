//! The handle of a stream, by which its client may resume it at any server of the network.

use serde_json::json;

use crate::{frame::Fields, object::NodeId, request::MapRequest};

/// The handle of a stream, and of the stream that it may resume.
#[derive(Debug, Default)]
pub(crate) struct StreamHandle {
    /// The prefix of handles in this network; empty if the stream cannot be resumed.
    network: String,
    /// The handle of the previous stream, and the position in it.
    previous: Option<(String, i64)>,
    /// The handle of this stream, set with the first frame.
    name: String,
    /// The epoch of the handle.
    epoch: i64,
}

impl StreamHandle {
    /// Returns the handle of a stream that may resume the stream of the request.
    pub(crate) fn new(network: &str, request: &MapRequest) -> Self {
        let previous = Some((request.previous_stream.clone(), request.previous_seq));
        Self { network: network.to_owned(), previous, ..Self::default() }
    }

    /// The position in the previous stream of this node, if it belongs to the same network and epoch.
    pub(crate) fn resumed_from(&self, id: NodeId, epoch: i64) -> Option<i64> {
        let (name, position) = self.previous.as_ref()?;
        self.possible(id, epoch).contains(name).then_some(*position)
    }

    /// The two possible handles of the node's streams, equal at all servers with the same epoch. A stream that does
    /// not resume takes the handle that its client did not name.
    fn possible(&self, id: NodeId, epoch: i64) -> [String; 2] {
        ["", "-b"].map(|end| format!("{}-{epoch:x}-{id}{end}", self.network))
    }

    /// Chooses the handle: the previous one if the stream resumes, else the other one.
    pub(crate) fn choose(&mut self, id: NodeId, epoch: i64, is_resumed: bool) {
        let previous = self.previous.as_ref().map(|(name, _)| name);
        let is_good = |name: &String| (previous == Some(name)) == is_resumed;
        self.epoch = epoch;
        if !self.network.is_empty() {
            self.name = self.possible(id, epoch).into_iter().find(is_good).unwrap_or_default();
        }
    }

    /// The epoch for which the handle was chosen.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Adds the handle to a frame, unless the stream cannot be resumed.
    pub(crate) fn put(&self, fields: &mut Fields) {
        if !self.name.is_empty() {
            fields.put("MapSessionHandle", json!(self.name).to_string());
        }
    }
}
