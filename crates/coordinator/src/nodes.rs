//! What administrators do with nodes.

use ipnet::IpNet;

use crate::{
    admin::check_tags,
    log::Parts,
    names,
    object::{Node, NodeId},
    refusal::Refusal,
    routes::is_exit,
    state::State,
    time::Time,
};

impl State {
    /// A node is gone: its streams end, and its peers are told.
    ///
    /// # Errors
    /// There is none.
    pub fn delete_node(&mut self, id: NodeId) -> Result<(), Refusal> {
        self.known(id)?;
        self.remove_node(id);
        Ok(())
    }

    /// The key of a node expires then; none for never.
    ///
    /// # Errors
    /// There is no such node.
    pub fn set_expiry(&mut self, id: NodeId, at: Option<Time>, now: Time) -> Result<(), Refusal> {
        self.known(id)?;
        self.change_node(id, now, |node| {
            node.expires = at;
            Parts::KEY
        });
        Ok(())
    }

    /// Gives a node a name of an administrator's.
    ///
    /// # Errors
    /// There is no such node, the name is taken, or none.
    pub fn rename_node(&mut self, id: NodeId, name: &str, now: Time) -> Result<(), Refusal> {
        let is_own = self.known(id)?.name == name;
        if !names::is_label(name) {
            return Err(Refusal::InvalidName(name.to_owned()));
        }
        if self.has_name(name) && !is_own {
            return Err(Refusal::NameTaken(name.to_owned()));
        }
        self.change_node(id, now, |node| {
            (node.name, node.renamed) = (name.to_owned(), true);
            Parts::WHOLE
        });
        Ok(())
    }

    /// Gives a node tags, which it has instead of an owner from then on.
    ///
    /// # Errors
    /// There is no such node, or a tag is none.
    pub fn tag_node(&mut self, id: NodeId, tags: &[String], now: Time) -> Result<(), Refusal> {
        self.known(id)?;
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

    /// Lets a node route these networks and no others. One half of an exit is both.
    ///
    /// # Errors
    /// There is no such node.
    pub fn approve_routes(&mut self, id: NodeId, nets: &[IpNet], now: Time) -> Result<(), Refusal> {
        self.known(id)?;
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

    fn known(&self, id: NodeId) -> Result<&Node, Refusal> {
        self.nodes.get(&id).map(|entry| &entry.node).ok_or(Refusal::NoNode(id))
    }
}

/// What an exit node routes.
const EXITS: [&str; 2] = ["0.0.0.0/0", "::/0"];
