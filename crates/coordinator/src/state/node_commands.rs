//! Commands of administrators on nodes.

use ipnet::IpNet;

use super::State;
use crate::{
    change_log::Parts,
    names,
    object::{Node, NodeId},
    refusal::Refusal,
    routers::is_exit,
    tags::check_tags,
    time::Time,
};

impl State {
    /// Deletes a node. Its streams end, and its peers are notified.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn delete_node(&mut self, id: NodeId) -> Result<(), Refusal> {
        self.find_node(id)?;
        self.remove_node(id);
        Ok(())
    }

    /// Sets the time at which a node's key expires; `None` for never.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn set_expiry(&mut self, id: NodeId, at: Option<Time>, now: Time) -> Result<(), Refusal> {
        self.find_node(id)?;
        self.change_node(id, now, |node| {
            node.expires = at;
            Parts::KEY
        });
        Ok(())
    }

    /// Renames a node. The name no longer follows the host's.
    ///
    /// # Errors
    /// The node does not exist, or the name is taken or invalid.
    pub fn rename_node(&mut self, id: NodeId, name: &str, now: Time) -> Result<(), Refusal> {
        let is_own = self.find_node(id)?.name == name;
        if !names::is_label(name) {
            return Err(Refusal::InvalidName(name.to_owned()));
        }
        if self.nodes.has_name(name) && !is_own {
            return Err(Refusal::NameTaken(name.to_owned()));
        }
        self.change_node(id, now, |node| {
            (node.name, node.renamed) = (name.to_owned(), true);
            Parts::WHOLE
        });
        Ok(())
    }

    /// Sets the tags of a node, which replace its owner.
    ///
    /// # Errors
    /// The node does not exist, or a tag is invalid.
    pub fn tag_node(&mut self, id: NodeId, tags: &[String], now: Time) -> Result<(), Refusal> {
        self.find_node(id)?;
        if tags.is_empty() {
            return Err(Refusal::LastTag);
        }
        check_tags(tags)?;
        let mut tags = tags.to_vec();
        tags.sort_unstable();
        tags.dedup();
        self.change_node(id, now, |node| {
            (node.tags, node.user, node.expires) = (tags, None, None);
            Parts::WHOLE
        });
        self.approve_routes_of(id, now);
        Ok(())
    }

    /// Sets the approved routes of a node. One default route stands for both.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn approve_routes(&mut self, id: NodeId, nets: &[IpNet], now: Time) -> Result<(), Refusal> {
        self.find_node(id)?;
        let mut nets: Vec<IpNet> = nets.iter().map(IpNet::trunc).collect();
        if nets.iter().any(is_exit) {
            nets.extend(EXITS.map(|net| net.parse::<IpNet>().expect("a network")));
        }
        nets.sort_unstable();
        nets.dedup();
        self.change_node(id, now, |node| {
            node.approved = nets;
            Parts::WHOLE
        });
        Ok(())
    }

    fn find_node(&self, id: NodeId) -> Result<&Node, Refusal> {
        self.nodes.get(id).map(|entry| &entry.node).ok_or(Refusal::NoNode(id))
    }
}

/// The routes of an exit node.
const EXITS: [&str; 2] = ["0.0.0.0/0", "::/0"];
